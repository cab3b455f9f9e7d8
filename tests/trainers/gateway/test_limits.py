"""What an episode may use, and what identical requests are: the same at every interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from talking import CHAT, Place, ask, body

from envsuite.core.tools import Tool
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from trainers.gateway.agents import Client
from trainers.gateway.messages import Message, Refused
from trainers.gateway.session import Limits, Session

pytestmark = pytest.mark.seconds

PATHS = {"chat": CHAT, "messages": "/v1/messages", "responses": "/v1/responses"}
WAYS = (*PATHS, "in process")
everywhere = pytest.mark.parametrize("how", WAYS)
over_http = pytest.mark.parametrize("how", PATHS)


def _sent(how: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    """A request of an interface."""
    made = body(text, **({"max_tokens": 64} if how == "messages" else {}) | more)
    named = {"messages": "input", "max_tokens": "max_output_tokens"} if how == "responses" else {}
    return {named.get(field, field): value for field, value in made.items()}


def _status(place: Place, session: Session, how: str, text: str = "Hello", **more: Any) -> int:
    """Status of a request."""
    if how in PATHS:
        return ask(place, PATHS[how], session.key, _sent(how, text, **more)).status_code
    try:
        Client(place.gateway, "", session.key, None).chat(body(text)["messages"], **more)
    except Refused as error:
        return error.status
    return 200


@pytest.mark.parametrize(("how", "count"), [*((how, 1) for how in WAYS), ("chat", 5), ("in process", 5)])
def test_requests_at_once_sample_no_more_tokens_than_the_episode_has(made, how, count):
    place = made(lambda prompt: "word " * 100)
    session = place.open(Limits(tokens=448))
    more = {"n": count} if count > 1 else {}
    with ThreadPoolExecutor(30) as pool:
        statuses = list(pool.map(lambda number: _status(place, session, how, f"{number}", **more), range(30)))
    assert set(statuses) <= {200, 401, 403, 429} and 200 in statuses
    while _status(place, session, how, "again") == 200:  # what is left is not lost
        pass
    assert 448 - count < session.tokens <= 448 and session.reserved == 0 and session.ended is not None


@everywhere
def test_a_choice_counts_as_a_request_and_so_does_counting_tokens(made, how):
    place = made()
    session = place.open(Limits(requests=3))
    if how == "messages":
        assert ask(place, "/v1/messages/count_tokens", session.key, body()).status_code == 200
        assert [_status(place, session, how, str(n)) for n in range(3)] == [200, 200, 403]
        return
    if how == "responses":  # which has no choices
        assert [_status(place, session, how, str(n)) for n in range(4)] == [200, 200, 200, 403]
        return
    assert _status(place, session, how, n=2) == 200 and _status(place, session, how, n=2) == 403
    assert _status(place, place.open(Limits(requests=3)), how, n=128) == 403 and len(place.engine.asked) == 2


@everywhere
def test_identical_requests_are_samples_of_their_own(numbered, how):
    session, before = numbered.open(), len(numbered.engine.asked)
    numbered.engine.going.clear()
    with ThreadPoolExecutor(5) as pool:
        some = [pool.submit(_status, numbered, session, how) for _ in range(5)]
        deadline = time.monotonic() + 30
        while len(numbered.engine.asked) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.005)
        numbered.engine.going.set()
        assert [one.result() for one in some] == [200] * 5
    assert [_status(numbered, session, how) for _ in range(3)] == [200] * 3  # one client after another
    steps = session.episode().steps
    assert len(steps) == 8 == len({tuple(step.response_logprobs.tolist()) for step in steps})


@over_http
@pytest.mark.parametrize("header", [{"x-stainless-retry-count": "1"}, {"idempotency-key": "a"}])
def test_a_request_that_the_client_says_it_repeats_joins_the_one_under_way(made, how, header):
    place = made()
    session = place.open()
    place.engine.going.clear()

    def post(more: dict[str, str], **fields: Any) -> str:
        headers = {"Authorization": f"Bearer {session.key}", **more}
        reply = httpx2.post(
            f"{place.url}{PATHS[how]}", json=_sent(how, max_tokens=9, **fields), headers=headers, timeout=30
        )
        return str(reply.json()["id"])

    def asked(count: int) -> None:
        deadline = time.monotonic() + 30
        while len(session.asked) + place.gateway.counts["repeated"] < count:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    first = {"x-stainless-retry-count": "0"} if "x-stainless-retry-count" in header else header
    with ThreadPoolExecutor(3) as pool:
        one = pool.submit(post, first)
        asked(1)
        two = pool.submit(post, header)
        asked(2)
        apart = pool.submit(post, header, **({"user": "b"} if how == "chat" else {"metadata": {"user_id": "b"}}))
        asked(3)
        place.engine.going.set()
        assert one.result() == two.result() != apart.result()
    assert len(place.engine.asked) == 2 == len(session.episode().steps)


@over_http
@pytest.mark.seconds
def test_what_the_context_cannot_hold_is_refused_before_it_is_rendered(made, how, monkeypatch):
    place = made()
    place.gateway.context = 2048
    rendered: list[str] = []
    whole = place.gateway.writer.prompt_text
    monkeypatch.setattr(place.gateway.writer, "prompt_text", lambda *given: rendered.append("") or whole(*given))
    key = place.open().key
    long = {"messages": [{"role": "user", "content": "go north " * 60_000}]}
    many = {"messages": [{"role": ("user", "assistant")[n % 2], "content": "a"} for n in range(4_001)]}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 9_000}]}
    for sent in (long, many, parts):
        for kind, path in ((how, PATHS[how]), ("messages", "/v1/messages/count_tokens")):
            reply = ask(place, path, key, _sent(kind, **sent))
            assert reply.status_code == 400 and not rendered, reply.text
            assert "tokens of the context" in reply.text
    assert ask(place, PATHS[how], key, _sent(how, "x" * (3 << 20))).status_code == 413
    assert ask(place, PATHS[how], key, _sent(how)).status_code == 200 and rendered


@over_http
@pytest.mark.seconds
def test_a_long_prompt_of_one_agent_lets_the_others_pass(made, how):
    place = made()
    hog, other = place.open(), place.open()
    long = "go north and take 3 planks. " * 40_000
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(_status, place, hog, how, long)
        while not hog.asked:
            time.sleep(0.001)
        served = 0
        while not waits.done():
            assert _status(place, other, how, str(served)) == 200
            served += 1
        assert waits.result() in (200, 400)
    assert served > 1, f"none in {time.monotonic() - began:.1f} s"


@over_http
def test_requests_of_one_agent_leave_threads_for_the_others(made, how, monkeypatch):
    place = made()
    hog, other = place.open(), place.open()
    going, text = threading.Event(), place.gateway.writer.prompt_text

    def slow(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        if messages[-1].text.startswith("long"):
            going.wait(60)
        return text(messages, tools)

    monkeypatch.setattr(place.gateway.writer, "prompt_text", slow)
    with ThreadPoolExecutor(50) as pool:
        some = [pool.submit(_status, place, hog, how, f"long {n}") for n in range(50)]
        time.sleep(1)
        try:
            assert _status(place, other, how) == 200
        finally:
            going.set()
        assert {one.result() for one in some} == {200}


def test_ids_of_answers_and_sessions_differ_between_evaluation_and_training(made):
    place = made()
    some = [place.gateway.open(EpisodePlan(0, 0, 0, "task")) for _ in range(2)]  # as both number their episodes
    for how, path in PATHS.items():
        ids = {ask(place, path, one.key, _sent(how, max_tokens=5)).json()["id"] for one in some}
        assert len(ids) == 2
    place.gateway.end(some[0])
    place.gateway.sampling = Sampling(max_tokens=5)
    late = ask(place, f"/sessions/{some[0].number}/reward", place.gateway.operator, {"reward": 1.0})
    assert late.status_code == 404 and some[1].reward is None
