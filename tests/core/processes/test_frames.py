from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.processes import Channel, frame, receive, receive_body

Pair = tuple[socket.socket, socket.socket]
MESSAGES = st.lists(st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4), max_size=4)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@given(MESSAGES, st.integers(1, 40))
def test_frames_arrive_whole_and_in_order_however_they_are_cut(frames: list[list[object]], size: int) -> None:
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
def test_a_blocking_end_reads_one_frame_at_a_time(frames: list[list[object]]) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"".join(frame([pickle.dumps(message) for message in messages]) for messages in frames))
        assert [receive(other) for _ in frames] == frames


def test_what_was_sent_before_an_end_closed_is_received_before_that_is_told(pair: Pair) -> None:
    one, other = pair
    channel = Channel(other)
    one.sendall(frame([pickle.dumps("last words")]) + b"\x01")
    one.close()
    assert channel.receive() == ["last words"]
    with pytest.raises(EOFError):
        channel.receive()


def test_what_cannot_be_written_now_waits_and_blocks_nobody(pair: Pair) -> None:
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
def test_a_frame_that_trickles_in_is_given_up_at_the_time_that_was_named(
    pair: Pair, receiving: Callable[[socket.socket, float], object]
) -> None:
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


def test_an_end_that_closes_in_mid_frame_is_told(pair: Pair) -> None:
    one, other = pair
    one.sendall(frame([b"0123456789"])[:-1])
    one.close()
    with pytest.raises(EOFError):
        receive_body(other)
