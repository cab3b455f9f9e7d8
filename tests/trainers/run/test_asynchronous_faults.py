"""Faults at random moments of an asynchronous run: nothing is lost but what was in flight, and nothing counted twice.

``FAULTS=20 pytest tests/trainers/run/test_asynchronous_faults.py -m slow`` strikes twenty times in each way.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_runs import ROOT, environment, write_settings
from waiting import until

from envsuite.playing.engine import Completion, EngineFailed
from trainers.report.metrics import read_metrics
from trainers.rollout.hf_engine import HFEngine
from trainers.steps.parquet import episode_files, read_episodes
from trainers.train import main

FAULTS = int(os.environ.get("FAULTS", "3"))
ITERATIONS, TASKS, SIZE = 8, 2, 3
TIMES = pytest.mark.parametrize("number", range(FAULTS))
pytestmark = pytest.mark.slow


def _config(place: Path, **changes: Any) -> Path:
    settings = {"rollout.staleness": 1, "rollout.slots": 6, "evaluation.every": 0}
    return write_settings(place, iterations=ITERATIONS, **settings | changes)


def _lines(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run / "metrics.jsonl") if "train/success" in line]


def _check(run: Path) -> None:
    """Every iteration is there once, with its own groups, whole, none too old."""
    lines = _lines(run)
    assert [line["iteration"] for line in lines] == list(range(1, ITERATIONS + 1))
    assert all(line["async/staleness_max"] <= 1 and line["async/dropped_groups"] == 0 for line in lines)
    for number, file in enumerate(episode_files(run / "episodes", "iteration-*")):
        groups = Counter(episode.group_id for episode in read_episodes(file))
        assert groups == dict.fromkeys(range(number * TASKS, (number + 1) * TASKS), SIZE)


@contextmanager
def _struck(run: Path, rng: random.Random, find: str, number: signal.Signals) -> Iterator[list[int]]:
    """Sends a signal, at a random moment after the first iteration, to one of the processes that run ``find``."""
    struck: list[int] = []
    ended = threading.Event()

    def strike() -> None:
        metrics = run / "metrics.jsonl"
        until(lambda: ended.is_set() or (metrics.exists() and b"train/success" in metrics.read_bytes()), 300)
        while not struck and not ended.wait(rng.uniform(0.0, 0.5)):
            found = [process for process in psutil.Process().children(recursive=True) if _is(process, find)]
            if found:
                chosen = rng.choice(found)
                with contextlib.suppress(psutil.Error):
                    chosen.send_signal(number)
                    struck.append(chosen.pid)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield struck
    finally:
        ended.set()
        thread.join()


def _is(process: psutil.Process, find: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return find in " ".join(process.cmdline())
    return False


@TIMES
def test_an_engine_that_fails_in_its_turn_leaves_a_checkpoint_that_goes_on(place, number, monkeypatch, capsys):
    config, left = _config(place), random.Random(number).randint(20, 200)
    poll = HFEngine.poll

    def failing(self: HFEngine, timeout: float | None = None) -> list[Completion]:
        nonlocal left
        left -= 1
        if left == 0:
            raise EngineFailed("the engine was killed")
        return poll(self, timeout)

    monkeypatch.setattr(HFEngine, "poll", failing)
    assert main(["--config", str(config)]) == (1 if left <= 0 else 0)
    if left <= 0:
        assert "the engine was killed" in (said := capsys.readouterr().err) and "--resume" in said
        assert main(["--config", str(config), "--resume"]) == 0
    _check(place / "runs/tiny")


@TIMES
def test_an_environment_that_hangs_loses_its_own_episodes_and_is_counted(place, number):
    config, run = _config(place, **{"rollout.workers": 3, "rollout.deadline": 2.0}), place / "runs/tiny"
    with _struck(run, random.Random(f"env {number}"), "envsuite.vector.worker:serve", signal.SIGSTOP) as struck:
        assert main(["--config", str(config)]) == 0
    assert struck
    _check(run)
    failed = [e for f in episode_files(run / "episodes", "iteration-*") for e in read_episodes(f) if e.error]
    assert len(failed) <= 2 and all("DeadlineExceeded" in str(episode.error) for episode in failed)
    assert sum(line["train/failed"] for line in _lines(run)) == len(failed)


def _started(config: Path, *more: str, limit: int | None = None) -> subprocess.Popen[str]:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "trainers.train", "--config", str(config), *more]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=limited,
    )  # fmt: skip


def _resumed(config: Path) -> None:
    """The run goes on from its checkpoint, if it has one."""
    has = any((config.parent / "runs/tiny/checkpoints").glob("iteration-*"))
    if not has:
        subprocess.run(["rm", "-r", str(config.parent / "runs")], check=True)
    assert main(["--config", str(config), *(["--resume"] if has else [])]) == 0


@TIMES
def test_a_run_whose_update_is_killed_goes_on_from_its_checkpoint_and_leaves_no_process(place, number):
    config, rng = _config(place), random.Random(f"update {number}")
    run = _started(config)
    until(lambda: (place / "runs/tiny/metrics.jsonl").exists() or run.poll() is not None, 300)
    time.sleep(rng.uniform(0.0, 4.0))
    children = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.communicate()
    psutil.wait_procs(children, 10)
    assert not [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    _resumed(config)
    _check(place / "runs/tiny")


@TIMES
def test_a_full_disk_stops_the_run_with_a_message_and_it_goes_on(place, number):
    """A limit on the size of files fails writes as a full disk does, at whichever file is too large first."""
    config, rng = _config(place), random.Random(f"disk {number}")
    run = _started(config, limit=int(10 ** rng.uniform(3, 5.5)))
    said = run.communicate(timeout=300)[0]
    assert run.returncode in (0, 1) and "Traceback" not in said, said
    assert run.returncode == 0 or "error: " in said, said
    _resumed(config)
    _check(place / "runs/tiny")
