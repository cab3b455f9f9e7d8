"""The papers' tables, the settings of the runs that train their rows, ``envsuite papers``, and docs/papers.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.papers.__main__ import PAGE
from benchmarks.papers.page import page, rows
from benchmarks.papers.plans import PLANS, config_of, read_plans
from benchmarks.papers.plans import text_of as plans_text
from docs.build import ROOT
from envsuite.cli import main
from envsuite.core.registration import ENVIRONMENTS
from tools.freeze import digest
from trainers.papers.index import PaperRun, Row, published_rows, read_data, read_papers
from trainers.papers.settings import applies, read_settings, setting_of, text_of
from trainers.run.cli import dump

FROZEN = Path(__file__).with_name("papers.json")
"""Hashes of the resolved settings of every run."""
ROW, TABLE, KINDS, STYLES = map(
    str.split,
    ("model row run evaluate missing metric source note", "table caption kind body metrics uncovered rows",
     "results formulas settings calibration", "direct react reflexion"),
)  # fmt: skip
VALUE = re.compile(r"[-+]?\d+(\.\d+)?%?(±\d+(\.\d+)?)?")
DASHES = ("-", "\N{EN DASH}")
PAPERS = ROOT.parent / "shared" / "papers"
RUNS = published_rows()
with_texts = pytest.mark.skipif(not PAPERS.is_dir(), reason=f"the papers' texts are not in {PAPERS}")

BODIES = {
    ("hgpo", "1"): ("Table 1:", "**Comparing", 4), ("hgpo", "2"): ("Table 2:", "Table 3:", 5),
    ("hgpo", "3"): ("Metric\tEpoch", "cal context", 4), ("hgpo", "4"): ("Table 4:", "higher-level", 4),
    ("hgpo", "5"): ("Table 5:", "groups structures", 4), ("hgpo", "7"): ("Table 7:", "Figure 7", 4),
    ("steppo", "2"): ("Table 2:", "5.1 ", 9), ("steppo", "3"): ("Table 3:", "PPO, GRPO, and", 4),
    ("steppo", "4"): ("Table 4:", "Credit Assignment", 3), ("steppo", "6"): ("Table 6:", "Table 6 reports", 3),
    ("scpo", "1"): ("Type\tMethod", "Table 1:", 9), ("scpo", "2"): ("Variant\tPick", "Table 2:", 7),
    ("scpo", "5"): ("Sub-stage", "Table 5:", 2),
    ("spear", "1"): ("Table 1:", "Table 2:", 9), ("spear", "2"): ("Table 2:", "Table\u00a01 demonstrates", 2),
    ("spear", "3"): ("Table 3:", "Table 4:", 9), ("spear", "4"): ("Table 4:", "To investigate", 2),
    ("spear", "6"): ("Table 6:", "Refer to", 1),
}  # fmt: skip
"""Tables in the papers' texts: beginnings of the lines before and after their rows, and the number of their columns."""


def figures_of(rows: Iterable[Row]) -> list[str]:
    """All figures of rows, in their order."""
    return [value for row in rows for figures in row.figures.values() for value in figures.values()]


def printed(paper: str, number: str) -> list[list[str]]:
    """The figures of each row of a table, as the paper's text has them."""
    first, last, columns = BODIES[paper, number]
    lines = (PAPERS / f"{paper}.txt").read_text("utf-8").split("\n")
    begin = next(place for place, line in enumerate(lines) if line.startswith(first))
    end = next(place for place, line in enumerate(lines) if place > begin and line.startswith(last))
    found = []
    for line in lines[begin + 1 : end]:
        line = re.sub(r"</?(b|math)>|[$*\\]|\([+-][\d.]+%\)", "", line.replace("\\pm", "±"))
        words, figures = re.sub(r" *± *", "±", line).split(), []
        while words and len(figures) < columns and (VALUE.fullmatch(words[-1]) or words[-1] in DASHES):
            figures.append(words.pop())
        found.append([figure for figure in reversed(figures) if figure not in DASHES])
    return [figures for figures in found if figures]


def test_every_entry_of_the_index_is_well_formed():
    papers = read_data("index.yaml")["papers"]
    for key, table in ((key, table) for key, paper in papers.items() for table in paper["tables"]):
        metrics, rows, kind = table.get("metrics", {}), table.get("rows", []), table.get("kind", "results")
        place = f"{key}, table {table['table']}"
        assert {*table} <= {*TABLE} and kind in KINDS and bool(rows) == (kind == "results"), place
        assert len({(row.get("model"), row["row"]) for row in rows}) == len(rows), f"{place}: two rows have one name"
        for row in rows:
            assert {*row} <= {*ROW, *metrics} and len({*row} & {"run", "evaluate", "missing"}) == 1, (place, row)
            assert row.get("evaluate", "direct") in STYLES, (place, row)
            words = " ".join(row.get(env, "-") for env in metrics).split()
            assert all(word == "-" or VALUE.fullmatch(word) for word in words), (place, row)


def test_every_layer_applies_to_a_run_with_each_of_its_words():
    parts = [field.name for field in fields(PaperRun)]
    for layer in read_data("settings.yaml")["layers"]:
        assert layer.keys() <= {*parts, "settings", "recipe", "gpus", "stated", "taken"}, layer
        narrower = [{**layer, key: word} for key in parts if key in layer for word in layer[key].split()]
        assert all(any(applies(part, run) for run in RUNS) for part in narrower), layer


def test_the_settings_of_every_run_are_the_frozen_ones_and_what_the_index_says():
    configs = {run: config_of(run) for run in RUNS}
    assert {run.name: digest(dump(config)) for run, config in configs.items()} == json.loads(FROZEN.read_bytes())
    for run, config in configs.items():
        setting = setting_of(run)
        assert config.model.path.lower().startswith(f"qwen/{run.model}"), run.name
        assert all(env.id in ENVIRONMENTS and env.kwargs["source"].startswith("official") for env in config.envs)
        assert all(env.split != "train" for env in config.evaluation.envs) and config.evaluation.envs, run.name
        assert setting.stated and setting.taken, run.name
        if run.env == "webshop":
            named = {(env.kwargs["source"], env.kwargs["goals"]) for env in (*config.envs, *config.evaluation.envs)}
            wanted = ("official-full", "human") if run.paper == "steppo" else ("official-1k", "synthetic")
            noted = any("not of held-out goals" in note for note in setting.taken)
            assert named == {wanted} and noted == (run.paper != "steppo"), run.name
    assert len({setting_of(run).settings["name"] for run in RUNS}) == len(RUNS)
    for run, own in RUNS.items():
        assert all(row.model == run.model and row.runs[run.env] == run for row in own), run.name


def test_the_page_is_what_index_and_plans_say_and_has_all_figures_of_the_index_and_no_other():
    known = {value for paper in read_papers() for table in paper.tables for value in figures_of(table.rows)}
    assert PAGE.read_text("utf-8") == page(read_plans())
    text = rows(read_plans())
    assert all(value in text for value in known)
    assert {*re.findall(r"[-.\d]+%?±[.\d]+", text)} <= known


@with_texts
@pytest.mark.parametrize("place", BODIES, ids=lambda place: "-".join(place))
def test_every_row_of_a_table_is_accounted_for_with_its_figures(place):
    tables = {(paper.key, table.number): table for paper in read_papers() for table in paper.tables}
    assert [figures_of([row]) for row in tables[place].rows] == printed(*place)


@with_texts
def test_the_tables_that_the_papers_have_are_in_the_index():
    for paper in read_papers():
        text = (PAPERS / f"{paper.key}.txt").read_text("utf-8")
        captions = set(re.findall(r"Table ?([A-Z]\\?\.\d|\d+):", text))
        assert {caption.replace("\\", "") for caption in captions} == {table.number for table in paper.tables}


@with_texts
def test_the_figures_of_bipace_stand_in_its_text_which_has_lost_most_cells():
    text = (PAPERS / "bipace.txt").read_text("utf-8").replace("\\", "")
    (paper,) = (paper for paper in read_papers() if paper.key == "bipace")
    line = next(line for line in text.split("\n") if line.startswith("Table 2:"))
    at = 0
    for value in figures_of(next(table for table in paper.tables if table.number == "2").rows):
        at = line.find(value, at)
        assert at >= 0, value
        at += len(value)
    for table in paper.tables:
        assert all(value in text for value in figures_of(table.rows))
        assert not table.absent or all(row.source for row in table.rows if row.figures)


def test_every_run_has_a_plan_that_fits_its_paper_s_hardware():
    plans = read_plans()
    assert plans.keys() == RUNS.keys() and plans_text(plans) == PLANS.read_text("utf-8")
    for run, plan in plans.items():
        assert plan.fits and plan.gpus == setting_of(run).gpus and plan.seconds > 0.0, run.name
        assert f"--num_processes {plan.ranks} " in text_of(run), run.name
        assert setting_of(run).settings["rollout"]["tasks"] % plan.ranks == 0, run.name


def test_papers_list_has_a_line_for_each_run(capsys):
    for words, runs in ([], RUNS), (["hgpo"], [run for run in RUNS if run.paper == "hgpo"]):
        assert main(["papers", "list", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("\t")[::2] for line in lines] == [[run.name, setting_of(run).gpus] for run in runs]
        assert "papers/hgpo/table1-webshop-qwen2.5-7b-rloo\tRLOO: score 80.3±3.2, success 65.7±4.0\t4xH100" in lines


def test_what_papers_show_prints_is_a_file_with_the_settings_of_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for run in RUNS:
        assert main(["papers", "show", run.name]) == 0
        Path("run.yaml").write_text(text := capsys.readouterr().out, encoding="utf-8")
        assert read_settings("run.yaml") == read_settings(run.name), run.name
        notes = " ".join(text.replace("\n#", "").split())
        assert all(note in notes for note in (*setting_of(run).stated, *setting_of(run).taken)), run.name


def test_a_wrong_name_is_answered_in_one_line_with_the_nearest(capsys):
    for words in ["train", "--config"], ["plan", "--config"], ["papers", "show"]:
        assert main([*words, "papers/hgpo/table1-alfworld-qwen2.5-1.5b-hgpo-k3"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "hgpo-k3: no paper's run has this name" in line and "qwen2.5-1.5b-hgpo-k2," in line
