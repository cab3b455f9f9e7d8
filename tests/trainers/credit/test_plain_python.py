from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

from benchmarks.estimators import cases, step_table
from trainers.credit.estimators import ESTIMATORS


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_method_and_its_plain_transcription_give_the_same(case) -> None:  # type: ignore[no-untyped-def]
    steps = step_table(800, seed=1, dimensions=16)
    assert_allclose(case.ours(steps), case.plain(steps), rtol=1e-6, atol=1e-6)


def test_every_estimator_is_benchmarked() -> None:
    assert {case.name for case in cases()} >= set(ESTIMATORS)
