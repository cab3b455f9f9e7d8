from __future__ import annotations

import pytest
from hypothesis import given
from numpy.testing import assert_allclose
from step_tables import for_each, step_tables

from benchmarks.estimators import cases, step_table
from trainers.credit.estimators import ESTIMATORS
from trainers.steps import StepTable


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_method_and_its_plain_transcription_give_the_same(case) -> None:  # type: ignore[no-untyped-def]
    steps = step_table(800, seed=1, dimensions=16)
    assert_allclose(case.ours(steps), case.plain(steps), rtol=1e-6, atol=1e-6)


CASES = {case.name: case for case in cases()}
FILLED = {"opo", "ppo", "reinforce_pp", "bipace", "scpo (shaper)"}
"""Those whose transcription knows no response without tokens, no step without an action, or one success a task."""


@given(steps=step_tables())
@for_each(name=[name for name in CASES if name not in FILLED])
def test_they_give_the_same_on_any_table(name: str, steps: StepTable) -> None:
    assert_allclose(CASES[name].ours(steps), CASES[name].plain(steps), rtol=1e-6, atol=1e-6)


def test_every_estimator_is_benchmarked() -> None:
    assert CASES.keys() >= set(ESTIMATORS)
