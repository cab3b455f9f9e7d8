"""Rows and the formats of tables.

The runs that ``python -m benchmarks.agents`` plays.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic_results import draw, group, lost, write

from benchmarks.agents import models, players, trained
from envsuite.core.errors import DataError, UsageError
from envsuite.core.escaping import cell
from envsuite.evaluation.groups import groups_of
from envsuite.evaluation.sheets import make_sheets, make_wide_sheets
from envsuite.evaluation.statistics import clustered_wilson
from envsuite.evaluation.tables import make_rows
from envsuite.evaluation.writers import as_csv, as_json, as_latex, as_markdown, as_text, in_latex
from trainers.run.cli import EVALUATE, parse

HOSTILE = "a & b_c %d $e # {f} ~^\\ | <g> \"h\" -- 'i' `j` *k* [l]\nm 模型 Łódź é"


def test_a_row_has_the_counts_and_the_interval_by_task():
    results = draw(seeds=4, broken=0.1, graded=True)
    finished = [r for r in results if r.broken is None]
    (row,) = make_rows([group(results)])
    assert (row.tasks, row.seeds, row.episodes, row.missing) == (30, 4, len(finished), 0)
    assert row.broken == len(results) - len(finished) > 0 and not row.complete
    assert row.success == sum(r.success for r in finished) / len(finished)
    tasks = sorted({r.task_id for r in finished})
    pairs = [(sum(r.success for r in finished if r.task_id == t), sum(r.task_id == t for r in finished)) for t in tasks]
    assert (row.success_low, row.success_high) == clustered_wilson(pairs)
    steps = sum(r.steps for r in finished)
    assert row.parsed == sum(r.parsed for r in finished) / steps
    assert row.metrics == {"calls": steps / len(finished)} and row.why_broken == {"HTTP 500": row.broken}


def test_rows_by_stratum_kind_level_and_seed_add_up_to_all():
    groups = [group(draw(seeds=3))]
    for by, names in {
        "stratum": ["depth-1", "depth-2", "depth-3"],
        "kind": ["depth"],
        "level": ["level 1", "level 2", "level 3"],
        "seed": ["seed 0", "seed 1", "seed 2"],
    }.items():
        whole, *parts = make_rows(groups, by)
        assert [row.stratum for row in parts] == names
        assert sum(row.episodes for row in parts) == whole.episodes
        assert sum(row.successes for row in parts) == whole.successes
        assert all(row.complete for row in parts)


@pytest.mark.parametrize("tasks", [1, 2, 3, 30])
def test_a_few_tasks_have_intervals_too(tasks):
    for seeds in (1, 2, 5):
        for rng in range(5):
            (row,) = make_rows([group(draw(tasks=tasks, seeds=seeds, graded=True, rng=rng))])
            assert row.score is not None and row.score_low is not None and row.score_high is not None
            assert 0 <= row.score_low <= row.score <= row.score_high <= 1
            assert tasks < 30 or row.score_low < row.score < row.score_high


def test_the_reward_has_a_column_only_where_it_is_neither_success_nor_score():
    results = draw(graded=True)
    for scale, heads in ((1.0, 0), (3.0, 1)):
        rows = make_rows([group([replace(result, reward=scale * result.score) for result in results])])
        (sheet,) = make_sheets(rows)
        assert [*sheet.heads].count("reward") == heads
    assert sheet.blocks[0][0][sheet.heads.index("reward")] == f"{3 * rows[0].score:#.3g}"  # type: ignore[operator]


def test_what_was_not_played_is_missing_in_the_row_of_its_stratum_and_of_all():
    whole, cut = draw("whole"), draw("cut", tasks=30)[:50]  # the first seed, and 20 tasks of the second
    rows = {(r.policy, r.stratum): r for r in make_rows(groups_of([whole, cut]), "stratum")}
    assert rows["cut", "all"].missing == 10
    assert sum(rows["cut", f"depth-{d}"].missing for d in (1, 2, 3)) == 10
    assert rows["whole", "all"].complete and not rows["cut", "all"].complete
    between = [replace(one, seeds=3) for one in draw("between", seeds=2)]  # ended exactly between two seeds
    row, *by_seed = make_rows([group(between)], "seed")
    assert (row.seeds, row.missing, row.complete) == (3, 30, False)
    assert [(one.stratum, one.episodes, one.missing) for one in by_seed][-1] == ("seed 2", 0, 30)
    more = [*between, *(replace(one, seeds=4) for one in draw("between", seeds=4) if one.seed > 1)]
    assert [(one.seeds, one.complete) for one in make_rows([group(more)])] == [(4, True)]
    never = draw("short")[:7]  # 23 tasks that no one else has played are missing too
    assert make_rows([group(never)])[0].missing == 23


def test_nothing_finished_gives_dashes_and_no_rate():
    results = lost(draw(seeds=1), "HTTP 429")
    (row,) = make_rows([group(results)])
    assert row.success is None and row.success_low is None and row.episodes == 0 and row.broken == 30
    for text in formats([results]).values():
        assert "HTTP 429" in text


def test_a_player_writes_no_completions_so_none_is_parsed_or_cut():
    (row,) = make_rows([group(draw("expert", kind="player"))])
    assert row.parsed is None and row.cut is None and row.prompt_tokens is None and row.valid is not None


@pytest.mark.parametrize(
    ("name", "values", "changed"),
    [
        ("budget", (50, 15), lambda value: {"budget": value}),
        ("sampling.temperature", (0.4, 1.0), lambda value: {"sampling": {"temperature": value}}),
        ("model", ("/home/person/runs/a", "/home/person/runs/b"), lambda value: {"model": value}),
    ],
)
def test_policies_of_one_name_are_told_apart_by_their_conditions(name, values, changed):
    one, two = (draw(rate=rate, **changed(value)) for rate, value in zip((0.9, 0.1), values, strict=True))
    groups = groups_of([one, two, draw("other")])
    assert [g.name for g in groups] == [*(f"direct ({name} {value})" for value in values), "other"]
    (sheet,) = make_wide_sheets(make_rows(groups, "stratum"))
    first, second, _ = sheet.blocks[0]
    assert first[1:] != second[1:], "each row has its own policy's numbers"
    kinds = groups_of([draw(env_options={"depth": value}) for value in (1, True)])
    assert len({g.name for g in kinds}) == 2


def test_the_order_of_the_episodes_changes_no_digit():
    results = draw(graded=True, seeds=5)
    orders = [results, results[::-1], sorted(results, key=lambda result: result.score)]
    assert len({as_json(make_rows([group(order)], "stratum")) for order in orders}) == 1


def test_attempts_need_as_many_seeds():
    results = draw(seeds=3)
    (row,) = make_rows([group(results)], attempts=(1, 3))
    assert row.attempts["pass@1"] == pytest.approx(row.success) == row.attempts["pass^1"]
    assert row.attempts["pass^3"] < row.attempts["pass^1"] < row.attempts["pass@3"]
    with pytest.raises(UsageError, match="direct: a task has 3 episodes, which is fewer than k = 4"):
        make_rows([group(results)], attempts=(4,))


def formats(evaluations: list) -> dict[str, str]:
    rows = make_rows(groups_of(evaluations), "stratum")
    sheets = make_sheets(rows)
    return {
        "text": as_text(sheets), "markdown": as_markdown(sheets), "latex": as_latex(sheets),
        "csv": as_csv(rows), "json": as_json(rows),
    }  # fmt: skip


def test_every_format_marks_what_is_incomplete_and_only_that():
    whole, cut = draw("whole"), draw("cut", broken=0.2)[:80]
    told = formats([whole, cut])
    broken = sum(r.broken is not None for r in cut)
    for name in ("text", "markdown"):
        assert f"† incomplete: cut: 10 episodes missing, {broken} broken ({broken} × HTTP 500)" in told[name]  # noqa: RUF001
        assert f"{80 - broken} of 90 †" in told[name]
    assert r"\textdagger{} incomplete: cut: 10 episodes missing" in told["latex"]
    records = list(csv.DictReader(io.StringIO(told["csv"])))
    marked = {r["policy"]: (r["complete"], r["missing"]) for r in records if r["stratum"] == "all"}
    assert marked == {"whole": ("True", "0"), "cut": ("False", "10")}
    rows = json.loads(told["json"])["rows"]
    assert [r["complete"] for r in rows if r["stratum"] == "all"] == [True, False]
    assert all("†" not in text and "textdagger" not in text for text in formats([whole]).values())


def test_the_formats_have_the_same_numbers():
    told = formats([draw(graded=True, seeds=2)])
    rows = make_rows([group(draw(graded=True, seeds=2))], "stratum")
    for row in rows:
        assert row.success is not None and row.success_low is not None
        cell = f"{100 * row.success:.1f} ± {100 * row.success_std:.1f} [{100 * row.success_low:.1f}, "  # type: ignore[operator]
        assert cell in told["text"] and cell in told["markdown"]
        assert cell.replace("±", r"$\pm$").replace("[", "{[}") in told["latex"]
    assert [float(r["success"]) for r in csv.DictReader(io.StringIO(told["csv"]))] == [r.success for r in rows]
    assert [r["score_low"] for r in json.loads(told["json"])["rows"]] == [r.score_low for r in rows]


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
@example("\r")
def test_any_name_leaves_every_table_in_form(name):
    told = formats([draw(name, tasks=3, seeds=1)])
    assert [r["policy"] for r in csv.DictReader(io.StringIO(told["csv"], newline=""))] == [cell(name)] * 4
    assert json.loads(told["json"])["rows"][0]["policy"] == name
    lines = told["text"].split("\n")
    assert len(lines) == 10 and len(told["markdown"].split("\n")) == 11
    for line in told["markdown"].split("\n")[2:8]:
        bare = line.replace("\\\\", "").replace("\\|", "")
        assert bare.count("|") == told["markdown"].split("\n")[3].count("|")
    body = [line for line in told["latex"].split("\n") if line.startswith("\\begin{tabular}")]
    assert body and told["latex"].count(r" \\") == 6


def test_a_table_with_a_column_for_each_stratum():
    rows = make_rows(groups_of([draw("a"), draw("b", graded=True)]), "stratum")
    (sheet,) = make_wide_sheets(rows)
    text = as_text([sheet])
    assert text.split("\n")[1].split() == ["policy", "n", "depth-1", "depth-2", "depth-3", "all"]
    assert f"{100 * rows[0].success:.1f} ± {100 * rows[0].success_std:.1f}" in text  # type: ignore[operator]
    score = as_text(make_wide_sheets(rows, "score"))
    assert f"{100 * rows[4].score:.1f} ± {100 * rows[4].score_std:.1f}" in score  # type: ignore[operator]


def test_latex_reads_no_command_in_a_name():
    assert in_latex("é ü Ł 模型") == "é ü Ł 模型"
    assert in_latex("50%_&#{}$") == r"50\%\_\&\#\{\}\$"
    assert in_latex("a\nb\x1b") == r"a\textbackslash{}nb\textbackslash{}x1b"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pdflatex", "xelatex"])
def test_the_latex_compiles(program, tmp_path):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: texlive-latex-recommended, texlive-xetex)")
    letters = [*range(32, 127), *(map(ord, "éüñç") if program == "pdflatex" else range(0xA1, 0x250))]
    names = ["".join(map(chr, letters)), "x" * 30, *([HOSTILE] if program == "xelatex" else [])]
    told = formats([draw(name, graded=True, broken=0.1) for name in names])["latex"]
    (tmp_path / "table.tex").write_text(told, encoding="utf-8")
    (tmp_path / "page.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs,textcomp}\n\\begin{document}\n\\input{table}\n\\end{document}\n"
    )
    run = subprocess.run(
        [program, "-interaction=nonstopmode", "-halt-on-error", "page.tex"], cwd=tmp_path, capture_output=True
    )
    assert run.returncode == 0, run.stdout.decode(errors="replace")[-3000:]
    assert (tmp_path / "page.pdf").stat().st_size > 5000


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_an_independent_count_of_the_lines_gives_the_same_table(suffix, tmp_path, console):
    evaluations = {
        "a": draw("a", broken=0.1, graded=True),
        "b": draw("b", rate=0.9, rng=1, seeds=1),
        "c": draw("c", rate=0.1, env_id="Sokoban-v0", split="validation", rng=2)[:70],
    }
    folder, table = write(tmp_path / "results", evaluations), tmp_path / f"table.{suffix}"
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    with (folder / "c.jsonl").open("ab") as file:
        file.write(b'{"conditions": {"pol')  # killed in the middle of a line
    console(f"eval table {folder} --by stratum --format {suffix} --out {table}")
    text = table.read_text()
    rows = json.loads(text)["rows"] if suffix == "json" else list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 12
    for row in rows:
        own = [line for line in lines if line["conditions"]["policy"] == row["policy"]]
        own = [line for line in own if row["stratum"] in ("all", line["stratum"])]
        played = [line for line in own if line["broken"] is None]
        counts = (len({line["task_id"] for line in played}), len(played), len(own) - len(played))
        assert tuple(int(row[name]) for name in ("tasks", "episodes", "broken")) == counts
        for name in ("success", "score", "steps", "seconds"):
            assert float(row[name]) == pytest.approx(sum(line[name] for line in played) / len(played), abs=1e-9)
        for name in ("success", "score"):
            by_seed = [[line[name] for line in played if line["seed"] == seed] for seed in {e["seed"] for e in played}]
            if len(by_seed) > 1:
                deviation = statistics.stdev(sum(values) / len(values) for values in by_seed)
                assert float(row[f"{name}_std"]) == pytest.approx(deviation, abs=1e-9)


def test_the_command_writes_to_a_file_or_the_terminal_and_says_what_cannot_be(tmp_path, console):
    folder, empty = write(tmp_path / "r", {"x": draw()}), tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "depth-3" in console(f"eval table {folder} --by stratum --wide")[0]
    for words, said in (
        (f"{folder} --wide --format csv", "--wide is for text, markdown, latex"),
        (f"{tmp_path}/none", "none: cannot be read"),
        (f"{folder} --out {empty}/x.md", "cannot be written"),
        (str(empty), "no episode in"),
    ):
        assert said in console(f"eval table {words}", 2)[1]


def test_the_last_checkpoint_of_a_run_plays_and_those_of_the_runs_named_after_it(tmp_path):
    for run in ("shop/checkpoints/iteration-00003", "shop/checkpoints/iteration-00012", "shop-base", "shopping-0"):
        (tmp_path / run).mkdir(parents=True)
    for run in ("shop-steppo-1", "shop-steppo-0"):
        (tmp_path / run / "checkpoints" / "iteration-00012").mkdir(parents=True)
    assert list(trained("shop", tmp_path)) == [
        ("trained", str(tmp_path / "shop/checkpoints/iteration-00012")),
        ("steppo-0", str(tmp_path / "shop-steppo-0/checkpoints/iteration-00012")),
        ("steppo-1", str(tmp_path / "shop-steppo-1/checkpoints/iteration-00012")),
    ]


def test_without_a_run_it_says_which_configuration_to_train_with(tmp_path):
    config = parse(["--config", "configs/sokoban.yaml"], EVALUATE).config
    with pytest.raises(DataError, match=r"sokoban: no checkpoint; train with configs/sokoban.yaml first"):
        next(models("sokoban", config, tmp_path, tmp_path))


def test_players_get_the_tasks_and_limits_of_the_evaluation_and_the_default_observation():
    config = parse(["--config", "configs/searchqa.yaml"], EVALUATE).config
    (command,) = players(config, Path("out"))
    words = " ".join(command)
    assert "--types encyclopaedia-composition-2 encyclopaedia-inference-2" in words and "--steps 5" in words
    assert "--option results=1" in words and "observation" not in words
    assert words.endswith("--policy expert --policy lexical --policy random")
