"""The engine openai against an endpoint whose answers are scripted, and its reading of answers.

``test_openai_server.py`` has it with real models.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_endpoint import NAME, ScriptedEndpoint, completion

from envsuite.playing.endpoint import PREFIX, EndpointEngine
from envsuite.playing.engine import ChatCompletion, ChatRequest, Sampling
from envsuite.prompting import Answer, RawCall
from envsuite.prompting.endpoints import AnswerTokens, EndpointOptions, MalformedAnswer, Reply, read
from trainers.rollout.engines import engine_class
from trainers.settings import ConfigError

MESSAGES = [{"role": "user", "content": "hello"}]


@contextmanager
def _engine(endpoint: ScriptedEndpoint, **options: Any) -> Iterator[EndpointEngine]:
    settings = {"url": endpoint.url, "model": NAME, "patience": 5.0, **options}
    with closing(EndpointEngine(EndpointOptions(**settings, prefix=PREFIX), 16)) as engine:
        yield engine


def _ask(engine: EndpointEngine, count: int = 1, **changes: Any) -> list[ChatCompletion]:
    made = {"sampling": Sampling(), "seed": 7, **changes}
    engine.submit([ChatRequest(n, MESSAGES, made.pop("tools", None), **made) for n in range(count)])
    done: list[ChatCompletion] = []
    while engine.pending:
        done += engine.poll(1.0)
    return sorted(done, key=lambda one: one.request_id)


def _answered(
    script: Any, count: int = 1, **options: Any
) -> tuple[list[ChatCompletion], EndpointEngine, ScriptedEndpoint]:
    """Answers to requests, with the engine that asked and the endpoint, which are closed."""
    with ScriptedEndpoint(script) as endpoint, _engine(endpoint, **options) as engine:
        return _ask(engine, count), engine, endpoint


def _after(*faults: Any) -> Callable[[dict[str, Any]], Any]:
    """Gives the faults, one a request, and then answers."""
    left = list(faults)
    return lambda _: left.pop(0) if left else completion("yes")


def test_a_request_says_how_to_sample_and_the_answer_comes_back():
    tools = [{"type": "function", "function": {"name": "act", "parameters": {}}}]
    with ScriptedEndpoint(lambda _: completion("so", calls=[("act", '{"a": 1}')])) as endpoint:
        with _engine(endpoint, extra={"seed": None, "reasoning_effort": "low"}) as engine:
            sampling = Sampling(temperature=0.4, top_p=0.9, max_tokens=33)
            (done,) = _ask(engine, sampling=sampling, tools=tools)
    assert endpoint.asked == [
        {
            "model": NAME, "messages": MESSAGES, "temperature": 0.4, "top_p": 0.9, "max_tokens": 33, "stream": False,
            "tools": tools, "reasoning_effort": "low",
        }
    ]  # fmt: skip
    assert (done.answer, done.finish_reason) == (Answer("so", (RawCall("act", '{"a": 1}', "call_0"),)), "stop")
    assert done.error is None


def test_seeds_fit_31_bits_and_differ():
    with ScriptedEndpoint(lambda _: completion("yes")) as endpoint, _engine(endpoint) as engine:
        _ask(engine, seed=(1 << 62) + 5)
        _ask(engine, seed=(1 << 62) + 6)
    assert [body["seed"] for body in endpoint.asked] == [5, 6]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "fault",
    [
        (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"Retry-After": "0"}),
        (500, {"error": "oops"}, {}),
        (503, b"busy", {}),
        None,  # the connection breaks off
        b'{"choices": [{"message": {"content": "ye',
        b"<html>gateway</html>",
        {"choices": []},
        {"choices": [{"message": {"content": "half"}, "finish_reason": None}]},
        completion(finish_reason="x", choices=[{"message": None, "finish_reason": "stop"}]),
    ],
    ids=["429", "500", "503", "cut", "half JSON", "HTML", "no choices", "unfinished", "no message"],
)
def test_a_fault_that_may_pass_is_tried_again(fault):
    (done,), engine, endpoint = _answered(_after(fault, fault))
    assert (done.answer.content, done.error, len(endpoint.asked)) == ("yes", None, 3)
    assert engine.usage()["repeated_calls"] == 2 and engine.usage()["requests"] == 1


@pytest.mark.seconds
@pytest.mark.parametrize("form", [lambda s: str(s), lambda s: formatdate(time.time() + s + 1, usegmt=True)])
def test_retry_after_is_waited_for_by_all_requests(form):
    times: list[float] = []

    def script(_: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return (429, {}, {"Retry-After": form(1)}) if len(times) == 1 else completion("yes")

    done, _, _ = _answered(script, 2, concurrency=1)
    assert [one.error for one in done] == [None, None] and times[1] - times[0] >= 0.9


def test_no_one_listening_is_said_so():
    with ScriptedEndpoint(lambda _: None) as endpoint:
        url = endpoint.url
    with closing(EndpointEngine(EndpointOptions(url, NAME, patience=0.2), 1)) as engine:
        (done,) = _ask(engine)
    assert done.finish_reason == "error" and "refused" in str(done.error).lower() and url in str(done.error)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ((401, {"error": {"message": "bad key sk-secret-1"}}, {}), r"bad key \[key\].*the key is that of OA_KEY"),
        ((404, {"error": {"message": "no model"}}, {}), "no model; see rollout.engine_options.url"),
        ((302, b"", {"Location": "http://x/"}), "HTTP 302"),
        ((429, {"error": {"message": "pay", "code": "insufficient_quota"}}, {}), "pay .insufficient_quota"),
        ((400, {"error": {"message": "unknown field seed"}}, {}), "unknown field seed; rollout.engine_options.extra"),
        (completion("yes", model="another-7b"), "'another-7b' answered, and 'scripted' was asked.*served_as"),
        (completion("yes", model="scripted-large"), "'scripted-large' answered"),
    ],
)
def test_what_no_repetition_mends_stops_at_once(fault, told, monkeypatch, caplog):
    monkeypatch.setenv("OA_KEY", "sk-secret-1")
    with caplog.at_level(logging.DEBUG, logger="envsuite"):
        (done,), engine, endpoint = _answered(lambda _: fault, key_variable="OA_KEY")
    assert re.search(told, str(done.error)) and engine.stopped == done.error and len(endpoint.asked) == 1
    assert endpoint.headers[0]["Authorization"] == "Bearer sk-secret-1"
    assert "sk-secret-1" not in caplog.text + str(done.error) + repr(engine.options)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "model", ["scripted", "scripted-2026-01-31", "org/scripted", "scripted@main", "scripted:8b", "", "other"]
)
def test_a_model_by_its_full_name_is_the_same_and_served_as_names_another(model):
    options = {"served_as": "other"} if model == "other" else {}
    (done,), engine, _ = _answered(lambda _: completion("yes", model=model), **options)
    assert done.error is None and (not model or engine.usage()["models"] == [model])


def test_length_is_told_and_a_call_without_name_or_arguments_comes_back_as_it_is():
    body = completion("", calls=[(None, None)])
    body["choices"][0]["finish_reason"] = "length"
    (done,), _, _ = _answered(lambda _: body)
    assert (done.finish_reason, done.answer.calls) == ("length", (RawCall("", "", "call_0"),))


def test_no_more_requests_at_a_time_than_concurrency():
    three = threading.Barrier(3)

    def script(_: dict[str, Any]) -> Any:
        three.wait(60)
        return completion("yes")

    done, engine, endpoint = _answered(script, 12, concurrency=3)
    assert len(done) == 12 and engine.most == endpoint.most == 3


def test_the_budget_stops_after_the_answer_that_spends_it_and_cost_is_told():
    usage = {"prompt_tokens": 80, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 30}}
    prices = {"input": 2.0, "cached": 1.0, "output": 10.0}
    script = lambda _: completion("yes", usage=usage)  # noqa: E731
    done, engine, endpoint = _answered(script, 4, budget=150, concurrency=1, prices=prices)
    assert [one.error is None for one in done] == [True, True, False, False] and len(endpoint.asked) == 2
    assert "the budget of 150 tokens is spent (200" in str(done[2].error)
    assert engine.usage() == {
        "requests": 2, "repeated_calls": 0, "requests_without_counts": 0, "prompt_tokens": 160, "cached_tokens": 60,
        "answer_tokens": 40, "models": [NAME], "cost": round((100 * 2.0 + 60 * 1.0 + 40 * 10.0) / 1e6, 6),
    }  # fmt: skip


def test_a_budget_without_counts_is_refused_with_the_first_answer():
    (done,), engine, _ = _answered(lambda _: completion("yes", usage=None), budget=5)
    assert done.error is None and "does not count" in str(engine.stopped)


GOOD = {"url": "http://localhost:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"url": "localhost:8000"}, "url is 'localhost:8000'; it must be like http://"),
        ({"model": ""}, "model is ''"),
        ({"key_variable": "sk-hush"}, "not the name of an environment variable"),
        ({"key_variable": "OA_UNSET"}, "key_variable is OA_UNSET, but that environment variable is not set"),
        ({"concurrency": 0}, "concurrency is 0; it must be a whole number, above 0"),
        ({"budget": 1.5}, "budget is 1.5; it must be a whole number of tokens"),
        ({"patience": -1}, "patience is -1; it must be seconds, above 0"),
        ({"prices": {"input": 1}}, "prices is .*; it must be the price of a million tokens"),
        ({"extra": {"stream": True}}, "extra has 'stream', which is set for each request"),
        ({"address": "x"}, "engine 'openai': got an unexpected keyword argument 'address'"),
    ],
)
def test_wrong_settings_are_refused_by_name_and_no_secret_is_repeated(change, told):
    with pytest.raises(ConfigError, match=told) as caught:
        engine_class("openai", {**GOOD, **change})
    assert "hush" not in str(caught.value)
    engine_class("openai", GOOD)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "content", "tool_calls", "function", "name", "arguments", "id", "finish_reason",
             "usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "model", "text",
             "reasoning", "refusal"]
        ),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON | st.builds(lambda message: {"choices": [{"message": message, "finish_reason": "stop"}]}, JSON))
def test_any_json_is_read_or_malformed(body):
    try:
        reply = read(body)
    except MalformedAnswer as error:
        assert str(error)
        return
    assert isinstance(reply, Reply) and reply.finish_reason in ("stop", "length")
    assert isinstance(reply.answer.text, str) and all(isinstance(one.arguments, str) for one in reply.answer.calls)
    if reply.tokens is not None:
        assert 0 <= reply.tokens.cached <= reply.tokens.prompt and reply.tokens.answer >= 0


@given(st.text(), st.text(), st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=4))
def test_what_an_endpoint_says_is_read_back(content, thought, calls):
    body = completion(content, usage={"prompt_tokens": 3, "completion_tokens": 4})
    body["choices"][0]["message"] |= {
        "reasoning_content": thought,
        "tool_calls": [{"id": given, "function": {"name": name, "arguments": text}} for name, text, given in calls],
    }
    reply = read(json.loads(json.dumps(body)))
    assert reply.answer == Answer(content, tuple(RawCall(*call) for call in calls), thought)
    assert reply.tokens == AnswerTokens(3, 0, 4)
