"""A run that loses processes starts again by itself and ends as one that lost none; what would fail again is not tried.

``STRIKES=20 pytest tests/trainers/run/test_restarts.py -m slow`` kills ranks of twenty runs, each four times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from folders import SUPPORT
from tiny_runs import BOTH, ROOT, environment, summary, train, weights, without_times, write_settings
from waiting import until

from envsuite.core.errors import DataError, WorkerLost
from trainers.policy.guard import Diverged
from trainers.processes.distributed import PeerFailed
from trainers.report.events import Event, read_events, write_event
from trainers.rollout.engine import EngineFailed
from trainers.run.restarts import Restarts, kind_of
from trainers.run.rollouts import EpisodesFailed
from trainers.run.shortage import OutOfMemory
from trainers.settings import ConfigError

STRIKES = int(os.environ.get("STRIKES", "1"))
STRUCK = str(SUPPORT / "struck_ranks.py")


def _restarts(run: Path) -> list[Event]:
    return [event for event in read_events(run) if event.kind == "restart"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STRIKES))
def test_ranks_that_are_killed_at_any_moment_change_nothing(place: Path, seed: int) -> None:
    config = write_settings(place, name="reference", iterations=6)
    found = train("--config", str(config), program=(*BOTH, "-m", "trainers.train"))
    assert found.returncode == 0, found.stderr
    config = write_settings(place, name="reference", iterations=6, output=str(place / "other"))
    moments = ["start", "rollout", "update", "checkpoint"]
    random.Random(seed).shuffle(moments)
    program = (*BOTH, "--max_restarts", "4", STRUCK, str(seed), ",".join(moments))
    found = train("--config", str(config), program=program, timeout=500)
    assert found.returncode == 0, found.stderr
    one, two = place / "runs/reference", place / "other/reference"
    assert without_times(one) == without_times(two)
    assert weights(one / "checkpoints/iteration-00006") == weights(two / "checkpoints/iteration-00006")
    told = _restarts(two)
    assert [event.facts["attempt"] for event in told] == [1, 2, 3, 4], moments
    assert summary(two)["events"] == [vars(event) for event in told]
    for event in told:
        assert event.facts["checkpoint_iteration"] == event.iteration in (0, 2, 4)
        assert 0 <= event.facts["lost_iterations"] <= 2 and 0 <= event.facts["lost_seconds"] < 300
        assert event.message in found.stdout and event.message in (two / "run.log").read_text()
    assert not [*two.glob(".ended-*"), *two.glob("checkpoints/.*")]
