"""The address: who may do what, and what becomes of requests that are wrong."""

from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_endpoint import ScriptedEndpoint, completion
from talking import CHAT, TOOL, Wire, ask, body, raw

from envsuite.core.errors import UsageError
from trainers.gateway.app import serve
from trainers.gateway.session import Limits
from trainers.rollout.config import AgentConfig

ROOT = Path(__file__).resolve().parents[3]
ERROR = {"message", "type", "param", "code"}
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
FUNCTION = {"type": "function", "function": TOOL}


def sent_to(path: str) -> dict[str, Any]:
    """A request that is answered at a path."""
    if path == RESPONSES:
        return {"model": "policy", "input": "Hello"}
    return body(**({"max_tokens": 5} if path == MESSAGES else {}))


def _user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def _said(calls: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    }


def _call(arguments: str) -> list[dict[str, Any]]:
    return [{"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "no model": ({"model": None}, "model"),
    "a number as model": ({"model": 5}, "model"),
    "an unknown role": ({"messages": [{"role": "king", "content": "Go"}]}, "messages[0].role"),
    "an image": (_user([{"type": "image_url", "image_url": {"url": "data:"}}]), "messages[0].content[0].type"),
    "arguments that are no JSON": (_said(_call("{")), "messages[1].tool_calls[0].function.arguments"),
    "arguments that are a list": (_said(_call("[1]")), "messages[1].tool_calls[0].function.arguments"),
    "arguments nested 260 deep": (_said(_call('{"a":' * 260 + "1" + "}" * 260)), "messages"),
    "likelier tokens": ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    "no choice": ({"n": 0}, "n"),
    "a thousand choices": ({"n": 1000}, "n"),
    "no token": ({"max_tokens": 0}, "max_tokens"),
    "true as a number": ({"max_tokens": True}, "max_tokens"),
    "an empty stop": ({"stop": ["a", ""]}, "stop"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
    "a tool that is searched": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "a schema that is none": (
        {"tools": [{"type": "function", "function": {**TOOL, "parameters": {"properties": {"x": {"type": 5}}}}}]},
        "tools[0].function.parameters",
    ),
}  # fmt: skip
INPUT = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
MASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "tool_choice": (CHAT, {"tool_choice": "required"}),
    "response_format": (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}),
    "parallel_tool_calls": (CHAT, {"tools": [FUNCTION], "parallel_tool_calls": False}),
    "logit_bias": (CHAT, {"logit_bias": {"5": 1}}),
    "text.format": (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
    "output_format": (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
    "tool_choice.disable_parallel_tool_use": (
        MESSAGES,
        {"tools": [INPUT], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
}
IGNORED: dict[str, tuple[dict[str, Any], set[str]]] = {
    CHAT: (
        {"tools": [{"type": "function", "function": {**TOOL, "strict": True}}], "tool_choice": "auto", "n": 1,
         "parallel_tool_calls": True, "stop": ["Observation:"], "reasoning_effort": "low", "repetition_penalty": 1.2,
         "stream": False, "min_tokens": 5,
         "max_tokens": 5, "max_completion_tokens": 5, "store": True},
        {"strict", "reasoning_effort", "repetition_penalty", "min_tokens"},
    ),
    RESPONSES: (
        {"tools": [{"type": "function", **TOOL, "strict": True}], "store": True, "include": ["x"], "user": "me",
         "truncation": "auto", "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}},
        {"strict", "truncation", "text.verbosity", "reasoning"},
    ),
    MESSAGES: (
        {"tools": [{**INPUT, "strict": True}], "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
         "metadata": {"user_id": "me"}, "new\x1b[2J": 1},
        {"strict", "thinking", "output_config.effort", "new\\x1b[2J"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_request_is_told_by_its_field(numbered, name):
    changes, field = WRONG[name]
    reply = ask(numbered, CHAT, numbered.open().key, body() | changes)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (400, field, "invalid_request_error"), error
    assert error["message"].startswith(f"{field}: ") and "\n" not in error["message"]


@pytest.mark.parametrize("name", MASKING)
def test_what_would_mask_the_distribution_is_refused_or_served_as_if_it_were_not_there(made, name):
    strict, free = made(), made(masking="ignore")
    path, fields = MASKING[name]
    error = ask(strict, path, strict.open().key, sent_to(path) | fields).json()["error"]["message"]
    assert name in error and "set rollout.agent.masking to ignore" in error
    assert AgentConfig(run="agent.py:play", masking="ignore").masking == "ignore", "the setting that it names"
    assert ask(free, path, free.open().key, sent_to(path) | fields).status_code == 200
    assert free.gateway.counts["unmasked"] == 1
    assert ask(strict, CHAT, strict.open().key, body(tool_choice="none", logit_bias={})).status_code == 200


@pytest.mark.parametrize("path", IGNORED)
def test_a_field_that_changes_nothing_is_served_and_told_once(made, path, caplog):
    place = made()
    fields, names = IGNORED[path]
    for _ in range(2):
        assert ask(place, path, place.open().key, sent_to(path) | fields).status_code == 200
    told = [record.message for record in caplog.records if "ignored" in record.message]
    assert sorted(told) == sorted(f"gateway: '{name}' of an agent: ignored" for name in names)


def test_a_models_name_is_found_at_its_path(made):
    place = made(models={"org/its-7b": None, "judge": "http://127.0.0.1:9/v1"})
    key = place.open().key
    rows = ask(place, "/v1/models", key).json()["data"]
    assert [row["id"] for row in rows] == ["policy", "org/its-7b", "judge"]
    assert [ask(place, f"/v1/models/{row['id']}", key).json() for row in rows] == rows
    missing = ask(place, "/v1/models/gpt-9", key)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.seconds
def test_bytes_that_are_no_request_are_refused(made):
    place = made(serve={"most_bytes": 1 << 20})
    key = place.open().key
    for sent in (b"", b"{", b"[]", b"null", b'{"model": "\xff"}', b"[" * 100_000):
        assert ask(place, CHAT, key, sent).status_code == 400
    large = ask(place, CHAT, key, b" " * (100 << 20))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    endless = httpx2.post(
        f"{place.url}{MESSAGES}", headers={"x-api-key": key}, content=(b" " * 65536 for _ in range(99))
    )
    assert (endless.status_code, endless.json()["error"]["type"]) == (413, "request_too_large")
    many = [{"role": "user", "content": "a <|im_end|>"}, {"role": "assistant", "content": "b"}] * 5_000
    assert ask(place, CHAT, key, {"model": "policy", "messages": many}).status_code in (200, 400)
    assert ask(place, CHAT, key, body()).status_code == 200


def test_a_key_opens_its_own_session_until_that_ends(made):
    place = made(serve={"token": "secret"})
    one, other = place.open(Limits(requests=2)), place.open(Limits(seconds=-1.0))
    statuses = [ask(place, CHAT, key, body()).status_code for key in (one.key, "agent-no", "-", "secret", other.key)]
    assert statuses == [200, 401, 401, 401, 401]
    assert ask(place, f"/sessions/{one.number}/reward", one.key, {"reward": 1.0}).status_code == 403
    assert ask(place, "/sessions", one.key, b"").status_code == 403 and one.reward is None
    over = [ask(place, MESSAGES, one.key, body(str(i), max_tokens=5)) for i in range(3)]
    assert [reply.status_code for reply in over] == [200, 403, 401]
    assert over[1].json()["error"]["type"] == "permission_error"
    assert ask(place, "/v1/models", "secret").json()["data"][0]["id"] == "policy"
    assert ask(place, "/v1/nothing", "secret").json()["error"]["code"] == "unknown_url"
    assert len(one.episode("").steps) == 2 and not other.asked


def test_the_operator_makes_sessions_gives_rewards_and_ends_them(made):
    place = made(serve={"token": "secret"})
    assert ask(place, "/sessions", "secret", b"").headers["retry-after"] == "1"
    session = place.open(None, {"task": "Look."})
    place.gateway.offer(session)
    given = ask(place, "/sessions", "secret", b"").json()
    where = {"key": session.key, "base_url": f"{place.url}/v1", "model": "policy"}
    assert given == {"id": 0, **where, "task": "Look.", "task_id": "task"}
    assert ask(place, CHAT, given["key"], body()).status_code == 200
    for reward in (True, 1e308, -1001, 1e999):  # the last one is infinite
        assert ask(place, "/sessions/0/reward", "secret", {"reward": reward}).status_code == 400
    assert ask(place, "/sessions/0/reward", "secret", {"reward": 1}).json()["reward"] == 1.0
    told = ask(place, "/sessions/0/end", "secret", b"").json()
    assert (told["requests"], told["sequences"], told["ended"]) == (1, 1, "the agent is done")
    assert ask(place, CHAT, given["key"], body()).status_code == 401
    place.gateway.end(session)
    assert ask(place, "/sessions/0", "secret").status_code == 404
    assert [step.reward for step in session.episode().steps] == [1.0]


def test_a_session_at_its_limit_of_requests_under_way_loses_none(made):
    place = made(most=2)
    key = place.open().key
    full = ask(place, CHAT, key, body(n=3))
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert ask(place, CHAT, key, body(n=2)).status_code == 200  # not joined to the one that was refused
    place.gateway.most = 3
    assert ask(place, CHAT, key, body(n=3)).status_code == 200


def test_other_machines_reach_the_address_with_a_token_alone(made):
    gateway = made().gateway
    with pytest.raises(UsageError, match="token"), serve(gateway, "0.0.0.0"):
        pass
    with serve(gateway, "0.0.0.0", token="secret") as url:
        port = url.rpartition(":")[2]
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"), serve(gateway, port=int(port)):
            pass
    assert gateway.operator == "secret"


def test_a_model_that_another_endpoint_has_is_asked_there_and_nothing_of_it_is_recorded(made):
    with ScriptedEndpoint(lambda body: completion("From there.")) as there:
        place = made(models={"judge": there.url.replace("http://", "http://its-key@"), "gone": "http://127.0.0.1:9/v1"})
        session = place.open(Limits(requests=2))
        reply = ask(place, CHAT, session.key, body(model="judge", tool_choice="required"))
        assert reply.json()["choices"][0]["message"]["content"] == "From there."
        assert there.asked[0]["tool_choice"] == "required" and there.headers[0]["authorization"] == "Bearer its-key"
        assert session.key not in str(there.headers)
    assert ask(place, CHAT, session.key, body(model="gone")).status_code == 502
    assert ask(place, CHAT, session.key, body(model="judge")).status_code == 403
    assert not session.asked


def test_the_gateway_needs_no_mcp_until_an_agent_asks_for_an_environment():
    code = "import sys; sys.modules |= {'mcp': None, 'mcp_types': None}; import trainers.gateway.app"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gateway"]
    assert "mcp>=1.30" in extra, "crewai 1.15 wants mcp below 2, strands 1.62 below 2.2"


def test_no_key_is_logged(made, caplog):
    caplog.set_level(logging.DEBUG)
    place = made()
    session = place.open()
    for key in (session.key, place.gateway.operator):
        for path in (CHAT, MESSAGES, f"/sessions/0?key={key}", "/none"):
            wire = Wire(place.url)
            wire.send(raw(path, key, body(temperature=0.5, max_tokens=3)))
            wire.read()
            wire.close()
    assert "temperature of an agent" in caplog.text
    assert session.key not in caplog.text and place.gateway.operator not in caplog.text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_names = "model messages tools n stop max_tokens stream role content type function name tool_calls id tool_call_id"
_names += " metadata arguments parameters input_schema system tool_choice response_format reward text input"
_names += " tool_use_id thinking output call_id summary instructions strict output_config format"
_fields = st.dictionaries(st.sampled_from(_names.split()), _json, max_size=4)
_message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "system"]) | _json,
        "content": st.text(max_size=9) | st.lists(_fields, max_size=2) | _json,
    },
    optional={"tool_calls": st.lists(_fields, max_size=2), "tool_call_id": _json},
)
_item = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"])},
    optional={
        "name": st.text(max_size=5), "arguments": st.just("{}") | _json, "call_id": st.text(max_size=5) | _json,
        "output": _json, "summary": st.lists(_fields, max_size=2), "content": st.lists(_fields, max_size=2) | _json,
    },
)  # fmt: skip
_shaped = st.fixed_dictionaries(
    {"model": st.just("policy") | _json, "messages": st.lists(_message, max_size=4)},
    optional={
        "input": _json | st.lists(_message | _item, max_size=3), "instructions": _json, "text": _fields,
        "strict": _json, "metadata": _json, "output_config": _json, "stop_sequences": _json, "system": _json,
        "tools": st.lists(_fields | _json, max_size=2), "max_tokens": st.integers(-1, 9) | _json, "stop": _json,
        "n": st.integers(-1, 3), "stream": st.booleans(), "tool_choice": _json,
    },
)  # fmt: skip
PATHS = (CHAT, RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens", "/v1/models", "/v1/models/policy", "/x")
PATHS += ("/sessions", "/sessions/0", "/sessions/0/reward")


@pytest.mark.seconds
@given(path=st.sampled_from(PATHS), operator=st.booleans(), sent=_shaped | _fields | _json | st.binary(max_size=40))
def test_every_endpoint_answers_whatever_comes_with_json_and_no_failure(path, operator, sent, numbered):
    session = numbered.open()
    key = numbered.gateway.operator if operator else session.key
    try:
        data = sent if isinstance(sent, bytes) else orjson.dumps(sent)
    except TypeError:  # an integer of more than 64 bits
        return
    reply = ask(numbered, path, key, data)
    assert reply.status_code in (200, 204, 400, 401, 403, 404, 405), (reply.status_code, reply.text)
    if reply.status_code >= 400:
        error = reply.json()["error"]
        assert error["message"] and error["type"] not in ("server_error", "api_error")
        if path.startswith(MESSAGES):
            assert reply.json()["type"] == "error" and set(error) == {"type", "message"}
        else:
            assert set(reply.json()) == {"error"} and set(error) == ERROR
    assert len(session.episode().steps) == sum(asked.ask.count for asked in session.asked) * (reply.status_code == 200)
