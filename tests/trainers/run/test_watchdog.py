"""What a run waits for is named; a signal stops it where nothing is lost; news of servers become events."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import Accelerator
from rich.console import Console

from envsuite.playing import activity
from envsuite.playing.activity import ACTIVITY, ActivityState
from envsuite.playing.engine import EngineFailed
from envsuite.playing.manager import Watcher
from envsuite.remote.places import News, listening, tell
from envsuite.vector import Wait
from trainers.report.events import read_events
from trainers.rollout.vllm.host import HostGone
from trainers.run import watchdog
from trainers.run.event_log import EventLog
from trainers.run.progress import RunProgress
from trainers.run.stopping import Abandoned, Interrupted, Stopping
from trainers.run.watchdog import Watchdog


def test_the_innermost_wait_is_what_is_waited_for():
    ACTIVITY.begin("rollout")
    assert ACTIVITY.now().phase == "rollout" and not ACTIVITY.now().waits_for
    ACTIVITY.outstanding(Wait("step of slot 3", time.monotonic() - 70.0))
    assert ACTIVITY.now().waits_for == "step of slot 3" and 70 <= ACTIVITY.now().wait_s < 80
    with ACTIVITY.waiting("weights"):
        with ACTIVITY.exchanging():
            assert ACTIVITY.now().exchanging and ACTIVITY.now().waits_for == "the other processes"
        assert ACTIVITY.now().waits_for == "weights" and not ACTIVITY.now().exchanging
    ACTIVITY.begin("update")
    assert str(ACTIVITY.now()) == "update (0 s)", "a new phase waits for nothing of the last"
    state = ActivityState("rollout", 30.0, "a server", 5.0).later(200.0)
    assert str(state) == "rollout (4 min), waits for a server (3 min)"


def test_a_long_wait_is_logged_at_the_threshold_and_after_each_doubling_and_shown(caplog, monkeypatch):
    progress = RunProgress(3, plain=True, console=Console(file=io.StringIO()))
    dog = Watchdog(progress)
    monkeypatch.setattr(watchdog, "NOTICE", 10.0)
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    ACTIVITY.begin("rollout")

    def looked(seconds: float) -> int:
        ACTIVITY.outstanding(Wait("step of slot 3 (Dial-v0 at http://there:1)", 1000.0 - seconds))
        caplog.clear()
        dog.look()
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    with caplog.at_level(logging.INFO):
        assert [looked(seconds) for seconds in (9, 10, 11, 19, 20, 39, 41, 79, 81)] == [0, 1, 0, 0, 1, 0, 1, 0, 1]
        expected = (
            rf"rank 0 \(pid {os.getpid()} on .*\) has waited 81 s in rollout for step of slot 3 \(Dial-v0 at http:"
        )
        assert re.match(expected, caplog.records[-1].getMessage())
        assert "has waited 81 s" in "".join(line.plain for line in progress._lines(200))
        assert looked(0) == 0 and "goes on" in caplog.text
        assert "has waited" not in "".join(line.plain for line in progress._lines(200))
        assert looked(12) == 1, "another wait"
    monkeypatch.undo()
    ACTIVITY.begin("start")


@pytest.fixture
def stop() -> Iterator[Stopping]:
    progress = RunProgress(3, plain=True, console=Console(file=StringIO()))
    with Stopping(Accelerator(cpu=True), progress) as stopping:
        yield stopping


def _send(kind: signal.Signals) -> None:
    os.kill(os.getpid(), kind)


def test_without_a_signal_a_phase_gives_its_result_and_shows_how_far_it_is(stop):
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
def test_a_signal_abandons_the_phase_at_its_next_look(stop, kind):
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


def test_a_phase_that_ended_before_it_looked_is_discarded_as_well(stop):
    with pytest.raises(Abandoned):
        stop.phase("rollout", 1, lambda watch: _send(signal.SIGTERM))


def test_the_first_signal_counts_and_only_a_second_interrupt_ends_at_once(stop):
    for kind in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        _send(kind)
    assert stop.number == signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        _send(signal.SIGINT)


def test_afterwards_signals_do_what_they_did_before():
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    with Stopping(Accelerator(cpu=True), RunProgress(1, plain=True, console=Console(file=StringIO()))):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_stopped_run_says_how_to_go_on_and_exits_as_one_that_the_signal_ended():
    stopped = Interrupted(signal.SIGTERM, Path("runs/a/checkpoints/iteration-00003"))
    said = "stopped by SIGTERM; go on with --resume (checkpoint runs/a/checkpoints/iteration-00003)"
    assert str(stopped) == said and stopped.exit_code == 143


@pytest.mark.parametrize("error", [HostGone("it does not answer"), EngineFailed("its weights are others")])
def test_a_phase_whose_engine_fails_raises_the_same_error_in_all_processes(stop, error):
    def work(watch: Watcher) -> None:
        raise error

    with pytest.raises(EngineFailed, match=str(error)) as raised:
        stop.phase("rollout", 1, work)
    assert type(raised.value) is type(error), "what starts a run again asks for it"


JOINS = News("http://a:1", "TextCraft-v0", True, "it is named")
LEAVES = News("http://a:1", "TextCraft-v0", False, "it is named no more")


def test_each_join_and_leave_is_one_event_however_many_parts_of_the_run_tell_of_it(tmp_path):
    log = EventLog(tmp_path, "run", None, writes=True)
    other = News("http://a:1", "Sokoban-v0", True, "it is named")
    with listening(lambda news: log.note(news, 3)):
        for news in (JOINS, JOINS, other, LEAVES, LEAVES, JOINS):
            tell(news)
    tell(LEAVES)
    found = read_events(tmp_path)
    assert [event.message for event in found] == list(map(str, (JOINS, other, LEAVES, JOINS)))
    assert {(event.kind, event.iteration) for event in found} == {("server", 3)}
    facts = {"url": "http://a:1", "serves": "TextCraft-v0", "joined": False, "why": "it is named no more"}
    assert found[2].facts == facts


def test_only_the_first_process_writes_events_and_a_full_disk_ends_no_thread(tmp_path, caplog):
    EventLog(tmp_path, "run", None, writes=False).note(JOINS, 3)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "file").touch()
    EventLog(tmp_path / "file", "run", None, writes=True).note(JOINS, 3)
    assert "cannot be written" in caplog.text
