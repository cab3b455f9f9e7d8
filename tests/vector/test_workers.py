"""Environments in worker processes, and the settings of actors where there is no Ray."""

import gc
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from driving import ROUGH, answers, descriptors, do, gone, one, pids, reset_all, step_all
from folders import SUPPORT
from waiting import until

from envsuite.core import UsageError
from envsuite.core.errors import MissingExtra
from envsuite.vector import EnvFactory, LocalVector, WorkerVector, make_vector
from envsuite.vector import workers as in_workers
from trainers.rollout.config import RolloutConfig
from trainers.settings import ConfigError


@pytest.fixture
def leap(monkeypatch):
    """Puts the clock of vectors forward, by so many seconds."""
    ahead = [0.0]
    monkeypatch.setattr(in_workers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(ahead)))
    return ahead.append


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("command", "ending"),
    [("exit 7", "exited with code 7"), ("kill", "was killed by SIGKILL"), ("segfault", "was killed by SIGSEGV")],
)
def test_a_crashed_worker_loses_its_own_episodes_only_and_is_replaced(command, ending):
    with WorkerVector([ROUGH], slots=6, workers=2) as vector:
        reset_all(vector)
        before = pids(vector)
        vector.step(2, do(command))  # slots 0, 2 and 4 belong to worker 0
        vector.step(4, do("go"))
        vector.step(1, do("go"))
        events = answers(vector, 3)
        assert events[2].error == f"WorkerCrashed: worker 0 {ending} during step of slot 2 (vector_worlds:Rough-v0)"
        assert events[1].error is None and events[1].observation["text"] == "a 1"
        # Slot 4 was behind it in the queue, slot 0 was between two calls: both are told.
        assert events[4].error is not None and "worker 0" in events[4].error
        assert one(vector, 0, lambda: vector.step(0, do("go"))).error.startswith("EpisodeLost: WorkerCrashed: worker 0")
        for slot in (0, 2, 4):
            assert one(vector, slot, lambda slot=slot: vector.reset(slot, 0, task_id="b")).error is None
            assert one(vector, slot, lambda slot=slot: vector.step(slot, do("go"))).observation["text"] == "b 1"
        assert one(vector, 1, lambda: vector.step(1, do("go"))).observation["text"] == "a 2"
        assert pids(vector)[1] == before[1] and pids(vector)[0] != before[0] and gone(before[0])


def test_slots_are_dealt_to_workers_in_turn_and_no_worker_is_without_a_slot():
    with WorkerVector([ROUGH], slots=5, workers=2) as vector:
        reset_all(vector)
        events = step_all(vector, do("state"))
        process = [int(events[slot].observation["text"].split()[0]) for slot in range(5)]
        assert process == [pids(vector)[slot % 2] for slot in range(5)]
    with WorkerVector([ROUGH], slots=1, workers=3) as vector:
        assert len(pids(vector)) == 1


def test_what_is_waited_for_is_the_call_that_takes_the_longest():
    with WorkerVector([ROUGH], slots=2, workers=2) as vector:
        reset_all(vector)
        for slot in (0, 1):
            vector.step(slot, do("sleep 600"))
            assert vector.poll(0.1) == []
        assert str(vector.waiting_for()).startswith("step of slot 0")


def test_a_hung_worker_is_killed_at_the_deadline_and_the_others_go_on():
    with WorkerVector([ROUGH], slots=4, workers=2) as vector:
        reset_all(vector)
        vector.step(0, do("sleep 600"))
        vector.step(2, do("go"))
        for _ in range(3):
            assert one(vector, 1, lambda: vector.step(1, do("go"))).error is None
        assert str(vector.waiting_for()).startswith("step of slot 0 (vector_worlds:Rough-v0), worker 0, for ")
        vector.deadline = 1.0
        events = answers(vector, 2)
        vector.deadline = 60.0
        assert events[0].error == (
            "DeadlineExceeded: step of slot 0 (vector_worlds:Rough-v0) took more than 1 s; worker 0 was killed"
        )
        assert events[2].error.startswith("EpisodeLost: DeadlineExceeded")
        assert one(vector, 0, lambda: vector.reset(0, 0)).error is None


def test_the_deadline_is_for_each_call_not_for_all_that_wait_in_line_or_for_an_idle_worker(leap, tmp_path):
    with WorkerVector([ROUGH], slots=5, workers=1, deadline=600.0) as vector:
        reset_all(vector)
        leap(1000.0)
        for slot in range(5):
            vector.step(slot, do(f"wait {tmp_path / str(slot)}"))
        for slot in range(5):
            leap(400.0)
            assert vector.poll(0.0) == []
            (tmp_path / str(slot)).touch()
            assert answers(vector, 1)[slot].error is None


def test_a_program_that_was_busy_elsewhere_kills_no_worker_that_has_answered(leap):
    with WorkerVector([ROUGH], slots=2, workers=1, deadline=600.0) as vector:
        reset_all(vector)
        vector.step(0, do("long 3000000"))  # more than a socket holds: the worker cannot finish sending
        vector.step(1, do("long 3000000"))
        until(lambda: select.select([vector._workers[0].channel.socket], [], [], 0.0)[0])
        leap(1000.0)
        events = answers(vector, 2)
        assert [len(events[slot].observation["text"]) for slot in (0, 1)] == [3000000] * 2


def test_a_worker_that_dies_between_calls_is_told_at_the_next_step():
    with WorkerVector([ROUGH], slots=1, workers=1) as vector:
        reset_all(vector)
        os.kill(pids(vector)[0], signal.SIGKILL)
        event = one(vector, 0, lambda: vector.step(0, do("go")))
        assert "WorkerCrashed: worker 0 was killed by SIGKILL" in event.error
        assert all(event.error is None for event in reset_all(vector).values())


def test_a_worker_that_cannot_start_fails_the_calls_not_the_program():
    with pytest.raises(UsageError, match="cannot be made: WorkerCrashed: worker 0 exited with code 9"):
        WorkerVector([EnvFactory(ROUGH.env_id, {"broken": "exit on make"})], slots=1)


@pytest.mark.slow
def test_closing_is_quick_with_a_hung_worker_and_leaves_no_process_and_no_descriptor(tmp_path):
    before = descriptors()
    vector = WorkerVector([ROUGH], slots=3, workers=3)
    reset_all(vector)
    child = tmp_path / "pid"
    one(vector, 1, lambda: vector.step(1, do(f"spawn {child}")))
    vector.step(0, do("sleep 600"))
    vector.poll(0.1)
    processes = [*pids(vector), int(child.read_text())]
    began = time.monotonic()
    vector.close()
    assert time.monotonic() - began < 5
    assert all(gone(pid) for pid in processes)
    assert not [p for p in psutil.Process().children() if p.pid in processes]
    assert not descriptors() - before


@pytest.mark.slow
def test_crashes_leak_no_descriptor_and_no_zombie():
    with WorkerVector([ROUGH], slots=2, workers=2) as vector:
        reset_all(vector)
        before = descriptors()
        dead = []
        for _ in range(4):
            dead.append(pids(vector)[0])
            one(vector, 0, lambda: vector.step(0, do("exit 1")))
            one(vector, 0, lambda: vector.reset(0, 0))
        assert (descriptors() - before).total() == 1, "the socket to the last that took its place"
        assert not [child for child in psutil.Process().children() if child.pid in dead]


def test_workers_end_when_the_program_is_killed():
    program = f"""
import sys; sys.path.insert(0, {str(SUPPORT)!r})
import time
from envsuite.core import ToolCall
from envsuite.vector import *
vector = WorkerVector([EnvFactory("vector_worlds:Rough-v0")], slots=2, workers=2)
for slot in range(2): vector.reset(slot, 0)
done = []
while len(done) < 2: done += vector.poll()
vector.step(0, (ToolCall("do", {{"command": "sleep 600"}}),))
vector.poll(0.1)
print(*[worker.child.process.pid for worker in vector._workers], flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    assert all(gone(pid) for pid in workers)


def test_a_worker_imports_no_torch_and_keeps_its_prints_off_the_output(capfd):
    with WorkerVector([ROUGH], slots=1) as vector:
        reset_all(vector)
        text = one(vector, 0, lambda: vector.step(0, do("state"))).observation["text"]
        assert text.split()[1] == "False" and text.split()[0] != str(os.getpid())
        one(vector, 0, lambda: vector.step(0, do("print")))
    captured = capfd.readouterr()
    assert captured.out == ""


def test_an_answer_that_cannot_be_sent_is_an_error_of_its_episode():
    with WorkerVector([ROUGH], slots=1) as vector:
        reset_all(vector)
        assert "cannot be sent" in one(vector, 0, lambda: vector.step(0, do("unsendable"))).error
        assert all(event.error is None for event in reset_all(vector).values())


def test_an_action_of_a_megabyte_goes_through_in_both_directions():
    with WorkerVector([ROUGH], slots=8, workers=1) as vector:
        reset_all(vector)
        assert all(event.error is None for event in step_all(vector, do("x" * 1_000_000)).values())


def test_a_forgotten_vector_ends_its_workers():
    vector = LocalVector([ROUGH], slots=1)
    vector = WorkerVector([ROUGH], slots=2, workers=2)
    processes = pids(vector)
    del vector
    gc.collect()
    assert all(gone(pid) for pid in processes)


def test_an_episode_that_was_lost_between_calls_is_told_once_and_a_reset_forgets_it():
    with WorkerVector([ROUGH], slots=4, workers=2) as vector:
        reset_all(vector)
        one(vector, 0, lambda: vector.step(0, do("exit 1")))  # slot 2 was in the same worker
        one(vector, 2, lambda: vector.reset(2, 0, task_id="b"))
        assert one(vector, 2, lambda: vector.step(2, do("go"))).observation["text"] == "b 1"
        assert one(vector, 3, lambda: vector.step(3, do("go"))).observation["text"] == "a 1"


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_actors_without_ray_are_refused_with_what_to_install():
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[ray\]'"):
        make_vector([EnvFactory("TextCraft-v0")], 2, 1, ray={})


def test_actors_need_a_number_of_workers():
    with pytest.raises(ConfigError, match=r"rollout\.workers is 0; set their number"):
        RolloutConfig(ray={})
