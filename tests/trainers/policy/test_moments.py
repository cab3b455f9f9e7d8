"""Time and processor time of the parts of an iteration."""

from __future__ import annotations

import time

from tiny_runs import write_settings

from envsuite.playing.timing import Timing
from trainers.report.metrics import read_metrics
from trainers.run.iteration_metrics import Clock, IterationMetrics
from trainers.train import main


def test_who_waits_takes_time_and_none_of_the_processor():
    clock = Clock()
    time.sleep(0.2)
    clock.book("rollout")
    begin = time.process_time()
    while time.process_time() < begin + 0.1:
        pass
    clock.book("update")
    told = clock.metrics(Timing(), IterationMetrics({}, sampled=4, steps=2))
    assert told["time/rollout"] >= 0.2 and told["cpu/rollout"] < 0.1
    assert told["cpu/update"] >= 0.1
    assert told["rate/tokens"] == 2 * told["rate/steps"] == 4 / told["time/rollout"]


def test_an_iteration_tells_the_processors_time_of_its_parts(place):
    assert main(["--config", str(write_settings(place, iterations=1))]) == 0
    record = read_metrics(place / "runs/tiny/metrics.jsonl")[1]
    for part in ("rollout", "estimator", "update"):
        assert 0.0 < record[f"cpu/{part}"] <= record[f"time/{part}"] + 0.05, "one thread"
