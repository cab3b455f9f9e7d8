"""Child processes, and the frames that they exchange."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import ended, until

from envsuite.core.processes import Channel, Child, frame, receive, receive_body


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts children, and ends those that the test leaves."""
    started: list[Child] = []

    def make(function: str, **environment: str) -> Child:
        started.append(Child(f"children:{function}", environment))
        return started[-1]

    yield make
    for child in started:
        child.stop()


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        ("leave_with_three", "exited with code 3"),
        ("kill_itself", "was killed by SIGTERM"),
        ("end_when_closed", "exited with code 0"),
    ],
)
def test_a_child_that_ends_by_itself_says_how(start, function, ending):
    assert start(function).stop(60.0) == ending


def test_a_child_that_hangs_is_killed_after_the_grace_and_not_before(start):
    child = start("hang")
    began = time.monotonic()
    assert child.stop(0.5) == "was killed"
    assert 0.5 <= time.monotonic() - began < 10
    assert child.process.returncode == -9


def test_what_a_child_has_started_ends_with_it(start):
    child = start("start_another")
    other = int(child.socket.recv(100))
    assert psutil.pid_exists(other)
    child.stop()
    until(lambda: ended(other), 30.0)


def test_a_child_computes_in_one_thread_unless_the_user_says_otherwise(start, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert start("tell_variable").socket.recv(100) == b"1 None\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert start("tell_variable", COLOUR="blue").socket.recv(100) == b"3 blue\n"


@pytest.mark.seconds
def test_a_child_says_and_reads_nothing_where_its_program_does_and_ends_with_it_in_the_middle_of_a_call():
    program = (
        "import os; from envsuite.core.processes import Child\n"
        "child = Child('children:say_and_listen')\n"
        "print(child.process.pid, child.socket.recv(100).decode(), flush=True)\n"
        "os._exit(0)"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program], input="typed", capture_output=True, text=True, env=paths, timeout=50
    )
    assert time.monotonic() - began < 30, "the child would have gone on for a minute"
    pid, heard = ended.stdout.split()
    assert heard == "''" and ended.stderr == "words of a world\n"
    until(lambda: not psutil.pid_exists(int(pid)), 10.0)


Pair = tuple[socket.socket, socket.socket]
MESSAGES = st.lists(st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4), max_size=4)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@given(MESSAGES, st.integers(1, 40))
def test_frames_arrive_whole_and_in_order_however_they_are_cut(frames, size):
    sent = b"".join(frame([pickle.dumps(message) for message in messages]) for messages in frames)
    one, other = socket.socketpair()
    with one, other:
        channel = Channel(other)
        received: list[object] = []
        for start in range(0, len(sent), size):
            one.sendall(sent[start : start + size])
            received += channel.receive()
        assert received == [message for messages in frames for message in messages]


@given(MESSAGES)
def test_a_blocking_end_reads_one_frame_at_a_time(frames):
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"".join(frame([pickle.dumps(message) for message in messages]) for messages in frames))
        assert [receive(other) for _ in frames] == frames


def test_what_was_sent_before_an_end_closed_is_received_before_that_is_told(pair):
    one, other = pair
    channel = Channel(other)
    one.sendall(frame([pickle.dumps("last words")]) + b"\x01")
    one.close()
    assert channel.receive() == ["last words"]
    with pytest.raises(EOFError):
        channel.receive()


def test_what_cannot_be_written_now_waits_and_blocks_nobody(pair):
    one, other = pair
    channel, body = Channel(one), pickle.dumps("x" * 5_000_000)
    channel.send([body])
    assert channel.unsent
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(receive_body(other)))
    reader.start()
    while channel.unsent:
        channel.flush()
    reader.join()
    assert received == [body]


@pytest.mark.parametrize("receiving", [receive, receive_body])
def test_a_frame_that_trickles_in_is_given_up_at_the_time_that_was_named(pair, receiving):
    one, other = pair
    stop = threading.Event()

    def trickle() -> None:
        for byte in frame([b"x" * 1000]):
            one.sendall(bytes([byte]))
            if stop.wait(0.05):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        receiving(other, time.monotonic() + 0.5)
    assert 0.4 < time.monotonic() - began < 5
    stop.set()
    thread.join()


def test_an_end_that_closes_in_mid_frame_is_told(pair):
    one, other = pair
    one.sendall(frame([b"0123456789"])[:-1])
    one.close()
    with pytest.raises(EOFError):
        receive_body(other)
