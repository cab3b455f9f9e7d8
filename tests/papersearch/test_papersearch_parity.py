from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parity_papersearch import compare
from benchmarks.parity_report import read_lines
from envsuite.papersearch.env import PaperSearchEnv


@pytest.fixture
def recordings(shared: Path) -> Path:
    return shared / "golden-3" / "papersearch_steps.jsonl"


def test_calls_earn_what_steppos_code_paid_and_find_the_same_papers(recordings: Path) -> None:
    report = compare(read_lines(recordings))
    assert not report.differences, report.text()
    assert report.counts["rewards of steps"] == report.counts["pools after steps"] == 600


def test_rewards_of_steps_differ_from_steppos_code_where_calls_of_a_step_find_more_than_three_papers(
    recordings: Path,
) -> None:
    def make(reward: str, **arguments: object) -> PaperSearchEnv:
        return PaperSearchEnv(reward="step", **arguments)  # type: ignore[arg-type]

    report = compare(read_lines(recordings)[:3], make)
    assert any(difference.startswith("rewards of steps") for difference in report.differences)
    assert not any(difference.startswith("pools") for difference in report.differences)
