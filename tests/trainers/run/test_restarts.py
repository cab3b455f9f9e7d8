"""A run that loses processes starts again by itself and ends as one that lost none; what would fail again is not tried.

``STRIKES=20 pytest tests/trainers/run/test_restarts.py -m slow`` disturbs twenty runs, each five times.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from folders import SUPPORT
from tiny_runs import BOTH, ROOT, environment, summary, train, weights, without_times, write_settings
from torch.distributed import DistStoreError
from waiting import until

from envsuite.core.errors import DataError, UsageError, WorkerLost
from envsuite.playing.engine import EngineFailed
from trainers.policy.guard import DivergenceError
from trainers.processes.distributed import PeerFailed
from trainers.programs.train import main as command
from trainers.report.events import RunEvent, read_events, write_event
from trainers.rollout.vllm.host import HostGone
from trainers.run.restarts import Restarts, kind_of
from trainers.run.rollouts import EpisodesFailed
from trainers.run.shortage import OutOfMemory
from trainers.settings import ConfigError

STRIKES = int(os.environ.get("STRIKES", "1"))
STRUCK = str(SUPPORT / "struck_ranks.py")
ALONE = (sys.executable, "-m", "envsuite.cli", "train", "--max-restarts", "2")


@pytest.mark.parametrize(
    "how, kind",
    [
        (PeerFailed("rank 1 ended: killed"), "lost"),
        (WorkerLost("http://127.0.0.1:1 does not answer"), "lost"),
        (ConnectionResetError("by peer"), "lost"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "lost"),
        (DistStoreError("the store does not answer"), "lost"),
        (EngineFailed("it was killed by SIGKILL"), "unsure"),
        (HostGone("http://one:8000: POST /health: Connection refused; tried for 60 s. Is it running?"), "lost"),
        (EpisodesFailed("all 4 episodes failed"), "unsure"),
        (RuntimeError("an error of a device"), "unsure"),
        (OSError(5, "input/output error"), "unsure"),
        (OSError(28, "No space left on device"), "final"),
        (ConfigError("rollout.tasks is 3"), "final"),
        (ConfigError("no interface leads out; set GLOO_SOCKET_IFNAME to its name"), "final"),
        (EngineFailed("rollout.engine_options.transfer is gloo, which it was not started for"), "unsure"),
        (DataError("config.json: missing"), "final"),
        (UsageError("step before reset"), "final"),
        (DivergenceError("the loss is not finite", weights_good=True), "final"),
        (OutOfMemory("in the update"), "final"),
        (RuntimeError("CUDA error: out of memory"), "final"),
        (MemoryError(), "final"),
        (TypeError("a bug"), "final"),
        (KeyError("a bug"), "final"),
        (3, "final"),  # paused by an alarm
        (130, "final"),
        (143, "final"),
    ],
)
def test_which_ends_are_started_again(how, kind):
    assert kind_of(how) == kind


def _attempt(folder: Path, number: int, **more: str) -> Restarts:
    """The first process of an attempt, with torch's agent in ``folder/agent``."""
    file = folder / f"agent/attempt_{number}/0/error.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    agents = {"TORCHELASTIC_RESTART_COUNT": str(number), "TORCHELASTIC_MAX_RESTARTS": "3", "RANK": "0"}
    agents |= {"TORCHELASTIC_ERROR_FILE": str(file), "TORCHELASTIC_RUN_ID": "none"}
    return Restarts(folder / "run", agents | more)


def test_the_attempts_after_an_error_that_would_come_again_end_with_its_status(tmp_path):
    first = _attempt(tmp_path, 0)
    assert first.status() is None
    first.leave_verdict(PeerFailed("rank 1 ended: the shop is closed"))
    assert _attempt(tmp_path, 1).status() is None, "a lost process is started again"
    first.leave_verdict(ConfigError("rollout.tasks is 3\nand more"))
    first.leave_verdict(PeerFailed("rank 1 ended"))
    assert [_attempt(tmp_path, number).status() for number in (1, 2)] == [2, 2], "the graver verdict counts"
    assert [b'"reason":"rollout.tasks is 3"' in file.read_bytes() for file in (tmp_path / "run").iterdir()] == [True]
    assert _attempt(tmp_path, 1, TORCHELASTIC_RUN_ID="other").status() is None, "of another launch"


def test_a_new_launch_forgets_the_verdict_on_an_earlier_one(tmp_path):
    _attempt(tmp_path, 0).leave_verdict(143)
    assert _attempt(tmp_path, 1).status() == 143
    other = tmp_path / "other"
    other.mkdir()
    (other / "run").symlink_to(tmp_path / "run")
    assert [_attempt(other, number).status() for number in (0, 1)] == [None, None]


def test_a_signal_of_the_agent_because_a_machine_joined_is_no_wish_to_stop(tmp_path):
    _attempt(tmp_path, 0).leave_verdict(143)
    assert _attempt(tmp_path, 0).status() is None, "the agent does not count that as an attempt"
    _attempt(tmp_path, 1).leave_verdict(143)
    assert _attempt(tmp_path, 2).status() == 143


def test_an_unknown_error_is_not_tried_twice_at_one_iteration(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"iteration": 5}\n{"iterat')
    _attempt(tmp_path, 0).leave_verdict(RuntimeError("device 0 failed at 0x7f"))
    assert _attempt(tmp_path, 1).status() is None
    facts = {"attempt": 1, "reason": "RuntimeError: device 0 failed at 0x7f", "checkpoint_iteration": 4}
    write_event(run, RunEvent("restart", 4, "", facts | {"lost_iterations": 1, "lost_seconds": 1.0}))
    for text, status in [("device 1 lost", None), ("device 1 failed at 0x9f", 1)]:
        _attempt(tmp_path, 1).leave_verdict(RuntimeError(text))
        assert _attempt(tmp_path, 2).status() == status
        (run / "metrics.jsonl").write_text('{"iteration": 5}\n')


@pytest.mark.parametrize(
    "words, text",
    [
        (["--max-restarts", "often"], "a whole number"),
        (["--max-restarts", "1", "--launch-config", "configs/accelerate/cpu1.yaml"], "leave --launch-config out"),
    ],
)
def test_restarts_that_nobody_would_do_are_refused(words, text, capsys):
    assert command(["--config", "configs/textcraft.yaml", *words]) == 2
    assert "--max-restarts" in (said := capsys.readouterr().err) and text in said


def _restarts(run: Path) -> list[RunEvent]:
    return [event for event in read_events(run) if event.kind == "restart"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STRIKES))
def test_losses_at_any_moment_change_nothing(place, seed):
    changes: dict[str, Any] = {"name": "reference", "iterations": 12}  # more than all moments come to
    config = write_settings(place, **changes)
    found = train("--config", str(config), program=(*BOTH, "-m", "trainers.train"), timeout=500, status=0)
    config = write_settings(place, **changes, output=str(place / "other"))
    moments = ["start", "rollout", "update", "checkpoint", "engine"]
    random.Random(seed).shuffle(moments)
    program = (*BOTH, "--max_restarts", "5", STRUCK, str(seed), ",".join(moments))
    found = train("--config", str(config), program=program, timeout=1500, status=0)
    one, two = place / "runs/reference", place / "other/reference"
    assert without_times(one) == without_times(two)
    assert weights(one / "checkpoints/iteration-00012") == weights(two / "checkpoints/iteration-00012")
    told = _restarts(two)
    attempts = [event.facts["attempt"] for event in told]
    struck = [int(attempt) for attempt in re.findall(r"^struck (\d) ", found.stdout, re.MULTILINE)]
    assert struck == [*range(len(moments))]
    free = moments.index("start")  # that attempt may be killed before it tells of the restart, or after
    assert [k for k in attempts if k != free] == [k for k in range(1, len(moments) + 1) if k != free], moments
    assert [one for one in summary(two)["events"] if one["kind"] == "restart"] == [vars(event) for event in told]
    for event in told:
        assert event.facts["checkpoint_iteration"] == event.iteration and event.facts["lost_seconds"] >= 0
        assert 0 <= event.facts["lost_iterations"] <= 2, "checkpoint_every is 2"
        assert event.message in found.stdout and event.message in (two / "run.log").read_text()
    assert not [*two.glob(".ended-*"), *two.glob("checkpoints/.*")]


@pytest.mark.slow
@pytest.mark.parametrize("error, tries", [("TypeError", 1), ("RuntimeError", 2)])
def test_an_error_of_the_code_ends_the_run(place, error, tries):
    """Unlike of a device, of which torch says no more than RuntimeError: that is tried once more."""
    config = write_settings(place)
    program = (*BOTH, "--max_restarts", "3", STRUCK, "0", ",".join(2 * [error]))
    found = train("--config", str(config), program=program, timeout=500)
    assert found.returncode == 1 and found.stderr.count("\n[rank") and "started again (attempt 2)" not in found.stdout
    assert len(_restarts(place / "runs/tiny")) == tries - 1


def _begun(config: Path, *more: str) -> tuple[subprocess.Popen[str], Path]:
    """A run of one process, with torch's agent, that has metrics of its second iteration."""
    words = [*ALONE, "--config", str(config), *more]
    out = config.with_name("out").open("w")
    launcher = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=out, stderr=subprocess.STDOUT, text=True)
    metrics = config.parent / "runs/tiny/metrics.jsonl"
    until(lambda: launcher.poll() is not None or (metrics.exists() and b'"iteration":2' in metrics.read_bytes()), 300)
    return launcher, config.with_name("out")


def _worker(launcher: subprocess.Popen[str]) -> psutil.Process:
    return next(child for child in psutil.Process(launcher.pid).children() if "trainers.train" in child.cmdline())


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["launcher", "process"])
def test_a_run_that_is_asked_to_stop_is_not_started_again(place, whom):
    launcher, out = _begun(write_settings(place, iterations=400))
    (launcher if whom == "launcher" else _worker(launcher)).send_signal(signal.SIGTERM)
    assert launcher.wait(300) == 143, out.read_text()
    assert "stopped by SIGTERM; go on with --resume" in out.read_text() and "error: " not in out.read_text()
    assert not _restarts(place / "runs/tiny")


def _gone_on(run: Path, times: int, launcher: subprocess.Popen[str]) -> bool:
    return len(_restarts(run)) == times or launcher.poll() is not None


@pytest.mark.slow
def test_one_process_is_started_again_until_the_restarts_are_used_up(place):
    launcher, out = _begun(write_settings(place, iterations=400))
    for number in range(3):
        worker = _worker(launcher)
        worker.kill()
        if number < 2:
            until(partial(_gone_on, place / "runs/tiny", number + 1, launcher), 300)
    assert launcher.wait(300) == 137, out.read_text()
    last = out.read_text().splitlines()[-1]
    assert last == f"error: {place / 'runs/tiny'} was lost, and --max-restarts 2 used up; go on with --resume"
    assert [event.facts["attempt"] for event in _restarts(place / "runs/tiny")] == [1, 2]
