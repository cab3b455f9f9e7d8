"""The figures of an evaluation and the cells of a before/after table, one by one."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from trainers.report.stats import (
    EvalResult,
    StratumResult,
    before_after_latex,
    before_after_table,
    comparison,
    difference,
    interval,
    percent,
)

LOW = StratumResult("all", 20, 4, 0.25, 3.0, 0.10, 0.30, 20)
HIGH = StratumResult("all", 30, 21, 0.75, 5.0, 0.55, 0.80, 30)


def test_an_interval_is_written_as_rate_and_bounds() -> None:
    assert interval(LOW) == "20.0 [10.0, 30.0]" and percent(0.634) == "63.4"
    assert interval(None) == "–" == difference(LOW, None) == difference(None, LOW)  # noqa: RUF001


def test_a_difference_is_marked_only_where_the_intervals_lie_apart() -> None:
    assert difference(LOW, HIGH) == "+50.0*" and difference(HIGH, LOW, "†") == "-50.0†"
    touching = replace(HIGH, low=LOW.high)
    assert difference(LOW, touching) == "+50.0" and difference(touching, LOW) == "-50.0"
    assert difference(LOW, LOW) == "+0.0"


def result(*strata: StratumResult) -> EvalResult:
    return EvalResult("before", "TextCraft-v0", "test", "3f", 7, 0.4, 2, 1.5, strata, 3)


def test_rows_are_sorted_by_stratum_with_all_tasks_last_and_the_larger_number_of_episodes() -> None:
    ten, two = replace(LOW, stratum="depth-10"), replace(HIGH, stratum="depth-2")
    rows = comparison(result(LOW, ten), result(HIGH, two, replace(ten, n=21)), "†")
    assert [row[:2] for row in rows] == [("depth-2", 30), ("depth-10", 21), ("all", 30)]
    assert rows[0][2] == "–" and rows[0][3] == interval(two)  # noqa: RUF001
    assert rows[2] == ("all", 30, interval(LOW), interval(HIGH), "+50.0†")


def test_the_metrics_of_an_evaluation_are_its_figures() -> None:
    deep = replace(HIGH, stratum="depth-2")
    assert result(LOW, deep).metrics() == {
        "eval/success": 0.2, "eval/low": 0.1, "eval/high": 0.3, "eval/score": 0.25, "eval/episode_length": 3.0,
        "eval/episodes": 20, "eval/tasks": 20, "eval/context_truncated": 3, "eval/failed": 2, "eval/unanswered": 0,
        "time/eval": 1.5, "eval/success/depth-2": 0.7, "eval/score/depth-2": 0.75,
    }  # fmt: skip
    assert result(LOW, deep).stratum("depth-2") == deep and result(LOW, deep).stratum("depth-3") is None


def test_latex_says_what_it_would_read_as_a_command() -> None:
    odd = replace(HIGH, stratum="50%_of & #1 $2 {a}~^\\")
    text = before_after_latex(result(LOW, odd), result(HIGH, odd))
    assert r"50\%\_of \& \#1 \$2" in text and r"\toprule" in text and text.count(" & ") == 4 * 3
    lines = text.splitlines()
    assert [line.startswith("all &") for line in lines if "&" in line] == [False, False, True]
    assert lines.count(r"\midrule") == 2 and lines[lines.index(r"\bottomrule") - 2] == r"\midrule"


@pytest.mark.parametrize(("before", "after", "bold"), [(LOW, HIGH, True), (HIGH, LOW, False), (LOW, LOW, False)])
def test_an_improvement_that_is_one_stands_out(before: StratumResult, after: StratumResult, bold: bool) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(before_after_table(result(before), result(after)))
    text = console.export_text(styles=True)
    change = difference(before, after)
    assert change in text and ("\x1b[1;32m" + change in text) is bold
