"""configs/papers and docs/papers.md: every row of the papers' tables, and the files that run them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.__main__ import main, problems
from benchmarks.papers.configs import settings_of
from benchmarks.papers.index import FOLDER, INDEX, ROOT, VALUE, Run, read_index
from benchmarks.papers.page import page
from benchmarks.papers.plans import Planned, config_of, plan, read_plans
from benchmarks.papers.plans import text_of as plans_text
from benchmarks.papers.setting import MODELS
from benchmarks.papers.settings import setting_of
from envsuite.core.errors import DataError
from envsuite.core.registration import ENVIRONMENTS
from trainers.credit.recipes import recipe
from trainers.run.config import TrainConfig

DASHES = ("-", "\N{EN DASH}")
PAPERS = ROOT.parent / "shared" / "papers"
RUNS = read_index().runs

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


def printed(paper: str, number: str) -> list[list[str]]:
    """The figures of each row of a table, as the paper's text has them."""
    first, last, columns = BODIES[paper, number]
    lines = (PAPERS / f"{paper}.txt").read_text(encoding="utf-8").split("\n")
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


def test_every_file_is_what_settings_and_index_say_and_no_other_is_there() -> None:
    assert not list(problems(read_index()))
    assert main(["--check"]) == 0


def test_every_file_says_what_is_run_and_resolves_and_names_are_unique() -> None:
    for run in RUNS:
        config, entry = config_of(run), setting_of(run)
        assert config.recipe == entry.recipe and recipe(entry.recipe).method["estimator"] == config.method.estimator
        assert config.model.path == MODELS[run.model], run.path
        assert all(env.id in ENVIRONMENTS and env.kwargs["source"].startswith("official") for env in config.envs)
        assert all(env.split != "train" for env in config.evaluation.envs) and config.evaluation.envs, run.path
        assert set(settings_of(run)) <= {field.name for field in fields(TrainConfig)}
        assert entry.stated and entry.taken, run.path
        assert run.path.as_posix() == f"{run.paper}/{run.table}-{run.env}-{run.model}-{run.name}.yaml"
        if run.env == "webshop":
            named = {(env.kwargs["source"], env.kwargs["goals"]) for env in (*config.envs, *config.evaluation.envs)}
            wanted = ("official-full", "human") if run.paper == "steppo" else ("official-1k", "synthetic")
            said = any("not of held-out goals" in note for note in entry.taken)
            assert named == {wanted} and said == (run.paper != "steppo"), run.path
    assert len({settings_of(run)["name"] for run in RUNS}) == len(RUNS)
    for run, rows in read_index().published.items():
        assert all(row.model == run.model and row.runs[run.env] == run for row in rows), run.path


def test_every_figure_of_a_file_and_of_the_page_is_one_of_the_index() -> None:
    index = read_index()
    known = {value for row in index.rows for values in row.values.values() for value in values if value is not None}
    text = page(index, read_plans())
    for value in known:
        assert value in text, value
    cells = [
        line.split(" | ")[2].replace("<br>", " ")
        for line in text.splitlines()
        if line.startswith("| ") and " | " in line
    ][1:]
    shown = [word.rstrip(",") for cell in cells for word in cell.split() if "±" in word]
    assert shown and set(shown) <= known
    for run in RUNS:
        head = (FOLDER / run.path).read_text(encoding="utf-8").split("# Stated:")[0]
        assert {word.rstrip(",;") for word in head.split() if "±" in word} <= known, run.path


@pytest.mark.skipif(not PAPERS.is_dir(), reason=f"the papers' texts are not in {PAPERS}")
@pytest.mark.parametrize("place", BODIES, ids=lambda place: "-".join(place))
def test_every_row_of_a_table_is_accounted_for_with_its_figures(place: tuple[str, str]) -> None:
    (table,) = (table for table in read_index().tables if (table.paper, table.number) == place)
    ours = [
        [value for env in table.metrics for value in row.values.get(env, ()) if value is not None] for row in table.rows
    ]
    assert ours == printed(*place)


@pytest.mark.skipif(not PAPERS.is_dir(), reason=f"the papers' texts are not in {PAPERS}")
def test_the_tables_that_the_papers_have_are_in_the_index() -> None:
    for paper in read_index().papers:
        text = (PAPERS / f"{paper.key}.txt").read_text(encoding="utf-8")
        captions = set(re.findall(r"Table ?([A-Z]\\?\.\d|\d+):", text))
        assert {caption.replace("\\", "") for caption in captions} == {table.number for table in paper.tables}


@pytest.mark.skipif(not PAPERS.is_dir(), reason=f"the papers' texts are not in {PAPERS}")
def test_the_figures_of_bipace_stand_in_its_text_which_has_lost_most_cells() -> None:
    text = (PAPERS / "bipace.txt").read_text(encoding="utf-8").replace("\\", "")
    (paper,) = (paper for paper in read_index().papers if paper.key == "bipace")
    line = next(line for line in text.split("\n") if line.startswith("Table 2:"))
    at = 0
    for row in next(table for table in paper.tables if table.number == "2").rows:
        for value in (value for values in row.values.values() for value in values if value is not None):
            at = line.find(value, at)
            assert at >= 0, (row.label, value)
            at += len(value)
    for table in paper.tables:
        assert all(value in text for row in table.rows for values in row.values.values() for value in values if value)
        assert not table.absent or all(row.source for row in table.rows if row.values)


def test_plans_are_those_of_the_files() -> None:
    plans = read_plans()
    for run in RUNS:
        found = plans[run]
        assert found.gpus == setting_of(run).gpus and found.seconds > 0.0
        assert found.fits, f"{run.path}: {found} does not fit the paper's hardware"
        assert settings_of(run)["rollout"]["tasks"] % found.ranks == 0, run.path
    assert plans_text(plans) == (FOLDER / "plans.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgpo table1 alfworld qwen2.5-1.5b hgpo-k2", "scpo table1 webshop qwen2.5-1.5b scpo"])
def test_a_kept_plan_is_what_the_planner_says_now(name: str) -> None:
    run = Run(*name.split(" "))
    ((_, made),) = plan([run])
    assert made == read_plans()[run]


TENTHS = st.floats(0.1, 1e4).map(lambda number: round(number, 1))


@given(st.builds(Planned, st.sampled_from(["2xH100", "4x8xH100"]), TENTHS, TENTHS, TENTHS))
def test_plans_survive_their_file(made: Planned) -> None:
    run = RUNS[0]
    (key, entry) = next(iter(yaml.safe_load(plans_text({run: made})).items()))
    assert Run(*key.split(" ")) == run and Planned(**entry) == made


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('evaluate: direct, alfworld: "48.0 46.0"', 'alfworld: "48.0 46.0"', ["one of run, evaluate and missing"]),
        ("evaluate: direct", "evaluate: cot", ["'cot'", "direct, react, reflexion"]),
        ('alfworld: "48.0 46.0"', 'alfworld: "48.0"', ["'48.0' is not 2 figures (seen, unseen)"]),
        ('alfworld: "48.0 46.0"', 'alfworld: "48,0 46.0"', ["'48,0 46.0' is not 2 figures"]),
        ('alfworld: "48.0 46.0"', 'sokoban: "48.0"', ["unknown keys ['sokoban']"]),
        ("row: Gemini-2.5-Pro, evaluate: direct", "row: GPT-4o, evaluate: direct", []),
        ("model: gemini-2.5-pro, row: Gemini-2.5-Pro", "model: gpt-4o, row: GPT-4o", ["two rows have the same name"]),
        ("missing: estimator-memory", "missing: memory", ["no reason is named ['memory']"]),
        ("kind: formulas", "kind: formula", ["formula"]),
        ("kind: formulas", "kind: results", ["a table of results has rows"]),
    ],
)
def test_a_faulty_index_is_refused_by_the_name_of_the_row(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    text = INDEX.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "index.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    if not words:
        read_index(path)
        return
    with pytest.raises(DataError) as caught:
        read_index(path)
    assert "table " in str(caught.value) and all(word in str(caught.value) for word in words), str(caught.value)
