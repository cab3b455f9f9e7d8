"""Success rates, their intervals, and the tables of them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from synthetic_run import evaluate, make_episodes

from envsuite.core.errors import DataError
from envsuite.evaluation.statistics import clustered_wilson, wilson
from envsuite.evaluation.writers import SHEETS, in_latex
from trainers.report.stats import (
    EvalResult,
    StratumResult,
    before_after_sheet,
    before_after_table,
    comparison,
    difference,
    evaluate_summary,
    interval,
)


def test_an_evaluation_counts_every_episode_but_those_that_failed():
    episodes, _, _ = make_episodes(np.random.default_rng(1), 1, 80, 4, 3, skill=0.7)
    episodes = [replace(e, task_id=str(e.episode_id)) for e in episodes]
    result = evaluate_summary(episodes, "before", "TextCraft-v0", "test", "3f", 0, 0.4, 2.0)
    failed = [e for e in episodes if e.error is not None]
    assert failed and result.failed == len(failed)
    assert result.all.n == len(episodes) - len(failed) == sum(s.n for s in result.strata[1:])
    assert result.all.successes == sum(e.success for e in episodes if e.error is None)
    assert result.all.successes == sum(s.successes for s in result.strata[1:])
    assert (result.all.low, result.all.high) == wilson(result.all.successes, result.all.n)
    assert [s.stratum for s in result.strata] == ["all", "depth-1", "depth-2", "depth-3"]
    sound = [e for e in episodes if e.error is None]
    assert result.all.mean_score == pytest.approx(sum(e.score for e in sound) / len(sound))
    assert result.all.mean_steps == pytest.approx(np.mean([len(e.steps) for e in sound]))
    for none in (failed, []):
        empty = evaluate_summary(none, "before", "TextCraft-v0", "test", "3f", 0, 0.4, 2.0).all
        assert (empty.n, empty.success, empty.mean_score, empty.mean_steps) == (0, 0, 0, 0)
        assert (empty.low, empty.high) == (0, 1)


@pytest.mark.parametrize("width", [100, 80, 70])
def test_the_three_tables_hold_the_same_numbers_whatever_the_names_and_the_width(width):
    rng = np.random.default_rng(0)
    long = (
        {} if width == 100 else {f"depth-{depth}": f"pick_{depth}_and_then_place_in_receptacle" for depth in (1, 2, 3)}
    )
    before, after = (
        replace(one, strata=tuple(replace(s, stratum=long.get(s.stratum, s.stratum)) for s in one.strata))
        for one in (evaluate(rng, "before", 0, 0.3), evaluate(rng, "after", 9, 0.9))
    )
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(before_after_table(before, after))
    text, rows = console.export_text(), comparison(before, after)
    markdown, latex = (SHEETS[form]([before_after_sheet(before, after)]) for form in ("markdown", "latex"))
    for row in rows:
        for cell in map(str, row[bool(long) :]):
            assert cell in text and cell in markdown.replace("\\", "") and in_latex(cell) in latex
    assert rows[-1][-1].endswith("*") and latex.count(r" \\") == 2 + len(rows)


@pytest.mark.parametrize("damage", [{"strata": []}, {"strata": None}, {"extra": 1}, {"strata": [{"stratum": "all"}]}])
def test_what_is_no_evaluation_is_refused(damage):
    body = evaluate(np.random.default_rng(0), "after", 3, 0.5).to_json()
    with pytest.raises(DataError, match="not an evaluation result"):
        EvalResult.from_json({**body, **damage})


def test_an_evaluation_with_repeated_tasks_is_clustered_and_counts_tasks_and_truncations():
    episodes, _, _ = make_episodes(np.random.default_rng(3), 1, 30, 4, 2, 0.5)
    episodes = [
        replace(e, task_id=f"task {e.group_id}", error=None, context_truncated=e.episode_id < 3) for e in episodes
    ]
    result = evaluate_summary(episodes, "x", "TextCraft-v0", "test", "0", 0, 0.4, 1.0)
    clusters = [(sum(e.success for e in episodes if e.group_id == g), 4) for g in {e.group_id: 0 for e in episodes}]
    assert (result.all.low, result.all.high) == clustered_wilson(clusters) != wilson(result.all.successes, 120)
    assert (result.all.tasks, result.all.n, result.context_truncated) == (30, 120, 3)
    assert sum(stratum.tasks for stratum in result.strata[1:]) == 30
    assert EvalResult.from_json(json.loads(json.dumps(result.to_json()))) == result


# -- the figures of an evaluation and the cells of a table, one by one


LOW = StratumResult("all", 20, 4, 0.25, 3.0, 0.10, 0.30, 20)
HIGH = StratumResult("all", 30, 21, 0.75, 5.0, 0.55, 0.80, 30)


def test_an_interval_is_written_as_rate_and_bounds():
    assert interval(LOW) == "20.0 [10.0, 30.0]"
    assert interval(None) == "–" == difference(LOW, None) == difference(None, LOW)  # noqa: RUF001


def test_a_difference_is_marked_only_where_the_intervals_lie_apart():
    assert difference(LOW, HIGH) == "+50.0*" and difference(HIGH, LOW) == "-50.0*"
    touching = replace(HIGH, low=LOW.high)
    assert difference(LOW, touching) == "+50.0" and difference(touching, LOW) == "-50.0"
    assert difference(LOW, LOW) == "+0.0"


def result(*strata: StratumResult) -> EvalResult:
    return EvalResult("before", "TextCraft-v0", "test", "3f", 7, 0.4, 2, 1.5, strata, 3)


def test_rows_are_sorted_by_stratum_with_all_tasks_last_and_the_larger_number_of_episodes():
    ten, two = replace(LOW, stratum="depth-10"), replace(HIGH, stratum="depth-2")
    rows = comparison(result(LOW, ten), result(HIGH, two, replace(ten, n=21)))
    assert [row[:2] for row in rows] == [("depth-2", 30), ("depth-10", 21), ("all", 30)]
    assert rows[0][2] == "–" and rows[0][3] == interval(two)  # noqa: RUF001
    assert rows[2] == ("all", 30, interval(LOW), interval(HIGH), "+50.0*")


def test_the_metrics_of_an_evaluation_are_its_figures():
    deep = replace(HIGH, stratum="depth-2")
    assert result(LOW, deep).metrics() == {
        "eval/success": 0.2, "eval/low": 0.1, "eval/high": 0.3, "eval/score": 0.25, "eval/episode_length": 3.0,
        "eval/episodes": 20, "eval/tasks": 20, "eval/context_truncated": 3, "eval/failed": 2, "eval/unanswered": 0,
        "time/eval": 1.5, "eval/success/depth-2": 0.7, "eval/score/depth-2": 0.75,
    }  # fmt: skip
    assert result(LOW, deep).stratum("depth-2") == deep and result(LOW, deep).stratum("depth-3") is None


def test_latex_says_what_it_would_read_as_a_command():
    odd = replace(HIGH, stratum="50%_of & #1 $2 {a}~^\\")
    text = SHEETS["latex"]([before_after_sheet(result(LOW, odd), result(HIGH, odd))])
    assert r"50\%\_of \& \#1 \$2" in text and r"\toprule" in text and text.count(" & ") == 4 * 3
    lines = [line for line in text.splitlines() if " & " in line]
    assert [line.startswith("all &") for line in lines] == [False, False, True]


@pytest.mark.parametrize(("before", "after", "bold"), [(LOW, HIGH, True), (HIGH, LOW, False), (LOW, LOW, False)])
def test_an_improvement_that_is_one_stands_out(before, after, bold):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(before_after_table(result(before), result(after)))
    text = console.export_text(styles=True)
    change = difference(before, after)
    assert change in text and ("\x1b[1;32m" + change in text) is bold
