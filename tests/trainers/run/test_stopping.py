"""A signal stops a run at the next point where nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from accelerate import Accelerator
from rich.console import Console

from envsuite.playing.activity import ACTIVITY
from envsuite.playing.engine import EngineFailed
from envsuite.playing.manager import Watcher
from envsuite.vector import Wait
from trainers.rollout.vllm.host import HostGone
from trainers.run.progress import RunProgress
from trainers.run.stopping import Abandoned, Interrupted, Stopping


@pytest.fixture
def stop() -> Iterator[Stopping]:
    progress = RunProgress(3, plain=True, console=Console(file=StringIO()))
    with Stopping(Accelerator(cpu=True), progress) as stopping:
        yield stopping


def _send(kind: signal.Signals) -> None:
    os.kill(os.getpid(), kind)


def test_without_a_signal_a_phase_gives_its_result_and_shows_how_far_it_is(stop: Stopping) -> None:
    def work(watch: Watcher) -> str:
        watch(2, Wait("an engine", time.monotonic() - 30.0))
        assert "waiting for an engine, for 30 s" in stop.progress._wait_text()
        assert ACTIVITY.now().waits_for == "an engine"
        watch(5, Wait("an engine", time.monotonic()))
        assert "waiting" not in stop.progress._wait_text(), "each answer is waited for a little"
        return "all"

    assert stop.phase("rollout", 6, work) == "all"
    assert stop.progress._count == 5 and "rollout 5/6" in stop.progress._stage_text()
    stop.point()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_abandons_the_phase_at_its_next_look(stop: Stopping, kind: signal.Signals) -> None:
    reached = []

    def work(watch: Watcher) -> None:
        _send(kind)
        reached.append("sent")
        watch(1, None)
        reached.append("after")

    with pytest.raises(Abandoned):
        stop.phase("rollout", 1, work)
    assert reached == ["sent"] and stop.number == kind
    with pytest.raises(Abandoned):
        stop.phase("rollout", 1, reached.append)
    assert reached == ["sent"], "a phase after the signal does not begin"
    with pytest.raises(Abandoned):
        stop.point()


def test_a_phase_that_ended_before_it_looked_is_discarded_as_well(stop: Stopping) -> None:
    with pytest.raises(Abandoned):
        stop.phase("rollout", 1, lambda watch: _send(signal.SIGTERM))


def test_the_first_signal_counts_and_only_a_second_interrupt_ends_at_once(stop: Stopping) -> None:
    for kind in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        _send(kind)
    assert stop.number == signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        _send(signal.SIGINT)


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    with Stopping(Accelerator(cpu=True), RunProgress(1, plain=True, console=Console(file=StringIO()))):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_stopped_run_says_how_to_go_on_and_exits_as_one_that_the_signal_ended() -> None:
    stopped = Interrupted(signal.SIGTERM, Path("runs/a/checkpoints/iteration-00003"))
    said = "stopped by SIGTERM; go on with --resume (checkpoint runs/a/checkpoints/iteration-00003)"
    assert str(stopped) == said and stopped.exit_code == 143


@pytest.mark.parametrize("error", [HostGone("it does not answer"), EngineFailed("its weights are others")])
def test_a_phase_whose_engine_fails_raises_the_same_error_in_all_processes(stop: Stopping, error: EngineFailed) -> None:
    def work(watch: Watcher) -> None:
        raise error

    with pytest.raises(EngineFailed, match=str(error)) as raised:
        stop.phase("rollout", 1, work)
    assert type(raised.value) is type(error), "what starts a run again asks for it"
