"""The times that an iteration tells of its parts."""

from __future__ import annotations

import time

import pytest

from trainers.rollout.manager import Timing
from trainers.run.iteration_metrics import Clock, IterationMetrics


def test_the_parts_of_an_iteration_add_up_to_all_of_it_and_rates_are_those_of_the_rollout() -> None:
    began = time.perf_counter()
    clock = Clock()
    for part in ("rollout", "estimator", "update"):
        time.sleep(0.01)
        clock.passed(part)
    time.sleep(0.01)
    told = clock.metrics(Timing(engine=3.0, env=2.0, codec=1.0), IterationMetrics({}, sampled=500, steps=40))
    parts = [told[f"time/{part}"] for part in ("rollout", "estimator", "update", "log")]
    assert min(parts) >= 0.01 and sum(parts) == pytest.approx(told["time/total"])
    assert told["time/total"] <= time.perf_counter() - began
    assert told["rate/tokens"] == 500 / parts[0] and told["rate/steps"] == 40 / parts[0]
    assert [told[f"time/{part}"] for part in ("engine", "env", "codec")] == [3.0, 2.0, 1.0]
