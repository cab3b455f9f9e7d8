"""What a client has got is a step, and what it has not got is none, at whatever byte it left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from talking import CHAT, Place, Wire, body, raw, recorded

from envsuite.playing.engine import Sampling
from trainers.gateway.app import _Connection


def _asked(place: Place, count: int) -> None:
    """Waits until the engine has got so many requests."""
    deadline = time.monotonic() + 30
    while len(place.engine.asked) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_client_that_leaves_before_its_answer_gets_the_same_one_when_it_asks_again(made):
    place = made()
    session = place.open()
    request = raw(CHAT, session.key, body(logprobs=True))
    for count in (0, 20, len(request) - 1):  # the request is not whole
        wire = Wire(place.url)
        wire.send(request[:count])
        wire.close()
    place.engine.going.clear()
    wire = Wire(place.url)
    wire.send(request)
    _asked(place, 1)
    wire.close()
    place.engine.going.set()
    again = Wire(place.url)
    again.send(raw(CHAT, session.key, body(logprobs=True, stream=True)))  # in another form
    *_, logprobs = _said(again.read(), True)
    assert len(place.engine.asked) == 1
    assert recorded(session) == [list(logprobs)]


def test_an_answer_that_was_read_is_delivered_while_the_connection_stays_open(made):
    place = made()
    session, wire, other = place.open(), Wire(place.url), Wire(place.url)
    wire.send(raw(CHAT, session.key, body()))
    text = wire.read() and wire.json["choices"][0]["message"]
    messages = [*body()["messages"], text, {"role": "user", "content": "Go on"}]
    other.send(raw(CHAT, session.key, {"model": "policy", "messages": messages}))
    other.read()
    steps = session.episode().steps
    assert [step.info["gateway"]["parent"] for step in steps] == [None, 0]
    first = [*steps[0].prompt_ids, *steps[0].response_ids]
    assert steps[1].prompt_ids[: len(first)].tolist() == first
    other.close()
    wire.close()
    assert len(recorded(session)) == 2


def test_the_same_request_is_a_sample_of_its_own_unless_its_client_has_gone(made):
    place = made()
    session = place.open()
    request = raw(CHAT, session.key, body())
    place.engine.going.clear()
    wires = [Wire(place.url) for _ in range(5)]
    for wire in wires:
        wire.send(request)
    _asked(place, 5)
    wires.pop().close()  # while its answer is made
    again = Wire(place.url)
    again.send(request)
    place.engine.going.set()
    assert len({wire.read() and wire.json["id"] for wire in (*wires, again)}) == 5 == len(place.engine.asked)
    wires[0].send(request)
    _asked(place, 6)
    wires[0].close()  # before it has read it
    assert len(recorded(session)) == 5
    again = Wire(place.url)
    again.send(request)
    again.read()
    assert len(recorded(session)) == 6 == len(place.engine.asked)  # its answer, which was lost


def test_an_answer_to_a_connection_that_has_begun_to_close_is_not_delivered(made, monkeypatch):
    note = _Connection.note_sent
    monkeypatch.setattr(_Connection, "note_sent", lambda self, *answer: (self.transport.close(), note(self, *answer)))
    place = made()
    session, wire = place.open(), Wire(place.url)
    wire.send(raw(CHAT, session.key, body()))
    with pytest.raises(AssertionError):  # the last byte never comes
        wire.read()
    assert not recorded(session)


@pytest.mark.seconds
def test_an_answer_larger_than_what_systems_buffer_is_delivered_at_its_end(made):
    place, long = made(), [1000] * 20_000
    place.engine.answer, place.gateway.sampling = (lambda request: long), Sampling(max_tokens=len(long))
    session = place.open()
    request = raw(CHAT, session.key, body(n=128))
    wires = [Wire(place.url) for _ in range(3)]
    for wire, but in zip(wires, (5 * 10**6, 1, 0), strict=True):
        assert not recorded(session)
        wire.send(request)
        wire.read(300)
        assert wire.missing() > 5 * 10**6
        wire.read(but=but)
        wire.close()
    assert len(recorded(session)) == 128 == len(place.engine.asked)


@dataclass(frozen=True)
class Call:
    """What a client does."""

    text: int
    stream: bool
    quotes: bool
    """Whether it goes on from an answer that was read."""
    leaves: float
    """Share of the answer after which it closes; 1 reads all."""
    keeps: bool
    """Whether the connection stays open, and has the next call."""


_calls = st.builds(
    Call,
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.4, 0.99, 1.0, 1.0, 1.0]),
    st.booleans(),
)


def _said(got: bytes, stream: bool) -> tuple[str, str, tuple[float, ...]]:
    """Id, text and log-probabilities of an answer."""
    body = got.partition(b"\r\n\r\n")[2]
    parts = [orjson.loads(line[6:]) for line in body.split(b"\n\n")[:-2]] if stream else [orjson.loads(body)]
    choices: list[dict[str, Any]] = [part["choices"][0] for part in parts]
    text = "".join(choice["delta" if stream else "message"].get("content") or "" for choice in choices)
    return parts[0]["id"], text, tuple(one["logprob"] for one in choices[-1]["logprobs"]["content"])


@pytest.mark.seconds
@given(schedule=st.lists(st.lists(_calls, min_size=1, max_size=4), min_size=1, max_size=4))
def test_whatever_clients_do_each_token_that_one_has_got_is_recorded_once_and_no_other(schedule, numbered):
    place, session, idle = numbered, numbered.open(), list[Wire]()
    got: dict[str, tuple[float, ...]] = {}
    texts: list[str] = []

    def play(call: Call, wire: Wire, quoted: str | None) -> None:
        sent = body(f"Question {call.text}", stream=call.stream, logprobs=True)
        if quoted is not None:
            sent["messages"] += [{"role": "assistant", "content": quoted}, {"role": "user", "content": "And?"}]
        wire.got = b""
        wire.send(raw(CHAT, session.key, sent))
        if call.leaves:
            wire.read(1)
            wire.read(300)  # the head
            left = wire.missing()
            wire.read(but=int(left * (1 - call.leaves)) or int(call.leaves < 1))
        if call.leaves == 1.0:
            name, text, logprobs = _said(wire.got, call.stream)
            assert got.setdefault(name, logprobs) == logprobs
            texts.append(text)
        if call.leaves == 1.0 and call.keeps:
            idle.append(wire)
        else:
            wire.close()

    for group in schedule:
        wires = [idle.pop() if idle else Wire(place.url) for _ in group]
        quoted = [texts[-1] if call.quotes and texts else None for call in group]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(play, group, wires, quoted))
    steps = recorded(session)
    assert sorted(map(tuple, steps)) == sorted(got.values())
    for wire in idle:
        wire.close()
