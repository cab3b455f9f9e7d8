"""The server's protocol, and the OpenAPI document that describes it."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from raw import JSON, ask, command, connect, everything, is_problem, new

from envsuite.core import UsageError
from envsuite.remote import transport
from envsuite.remote.protocol import TITLES
from envsuite.serving.bridges.settings import BridgeSettings
from envsuite.serving.schemas import DOCUMENT
from envsuite.serving.settings import ServerSettings
from envsuite.textcraft.env import TextCraft


def test_the_listings_say_what_there_is(server):
    listed = ask(server, "GET", "/v1/environments").body["environments"]
    assert {"id": "TextCraft-v0", "max_episode_steps": 50, "arguments": dict(TextCraft.argument_schemas())} in listed
    tools = ask(server, "GET", "/v1/environments/TextCraft-v0/tools").body["tools"]
    assert tools == [tool.as_openai() for tool in TextCraft.tools]
    tasks = ask(server, "GET", "/v1/environments/TextCraft-v0/tasks?split=test").body
    here = TextCraft().tasks
    assert tasks["hash"] == here.hash and [row["id"] for row in tasks["tasks"]] == list(here.ids("test"))
    assert {row["type"] for row in tasks["tasks"]} <= set(here.types.values())
    assert is_problem(ask(server, "GET", "/v1/environments/TextCraft-v0/tasks?split=tst"), 404, "refused", "split")
    assert is_problem(ask(server, "GET", "/v1/environments/TextCraft-v9"), 404, "unknown-environment", "environment")


def test_a_call_that_comes_again_is_answered_again_and_not_executed_again(server):
    session = new(server)
    first = ask(server, "POST", f"{session}/reset", {"number": 1})
    assert ask(server, "POST", f"{session}/reset", {"number": 1}).raw == first.raw
    get = {"number": 2, "calls": command("get 1 string")}
    assert ask(server, "POST", f"{session}/step", get).raw == ask(server, "POST", f"{session}/step", get).raw
    seen = ask(server, "POST", f"{session}/step", {"number": 3, "calls": command("inventory")}).body
    assert seen["observation"]["text"].strip() == "Inventory: [string] (1)"


def test_calls_out_of_order_are_refused_with_the_number_that_is_due(server):
    session = new(server)
    for number in (2, 7, 2**53):
        reply = ask(server, "POST", f"{session}/reset", {"number": number})
        assert is_problem(reply, 409, "out-of-order", "number") and reply.body["next"] == 1
    ask(server, "POST", f"{session}/reset", {"number": 1})
    other = ask(server, "POST", f"{session}/step", {"number": 1, "calls": command("inventory")})
    assert is_problem(other, 409, "out-of-order", "number") and other.body["next"] == 2


def test_a_call_that_fails_uses_up_no_number(server):
    session = new(server)
    early = ask(server, "POST", f"{session}/step", {"number": 1, "calls": command("inventory")})
    assert is_problem(early, 409, "refused") and early.body["error"] == "UsageError"
    unknown = ask(server, "POST", f"{session}/reset", {"number": 1, "options": {"task_id": "cyan_baner"}})
    assert is_problem(unknown, 404, "refused") and "cyan_banner" in unknown.body["detail"]
    assert ask(server, "POST", f"{session}/reset", {"number": 1}).status == 200


def test_a_horizon_of_null_is_none(server):
    session = new(server, max_episode_steps=None)
    ask(server, "POST", f"{session}/reset", {"number": 1})
    step = {"op": "step", "session": session.rpartition("/")[2], "calls": command("inventory")}
    steps = [{**step, "number": number} for number in range(2, 62)]
    results = ask(server, "POST", "/v1/batch", {"calls": steps}).body["results"]
    assert [result["body"]["truncated"] for result in results] == [False] * 60


def test_a_batch_answers_each_call_as_it_would_have_been_alone(server):
    good, other = (new(server).rpartition("/")[2] for _ in range(2))
    calls: list[dict[str, Any]] = [
        {"op": "reset", "session": good, "number": 1, "seed": 0},
        {"op": "step", "session": "nobody", "number": 1, "calls": []},
        {"op": "step", "session": good, "number": 2, "calls": command("inventory")},
        {"op": "step", "session": other, "number": 1, "calls": command("inventory")},
        {"op": "reset", "session": other, "number": "1"},
        {"op": "step", "session": other},
        {"op": "reset", "number": 1},
        {"op": "create", "environment": "TextCraft-v0", "session": "mine"},
        {"op": "create", "environment": "TextCraft-v0"},
        {"op": "close", "session": other, "now": True},
        {"op": "close", "session": other},
    ]
    results = ask(server, "POST", "/v1/batch", {"calls": calls}).body["results"]
    assert [result["status"] for result in results] == [200, 404, 200, 409, 422, 422, 422, 422, 200, 422, 204]
    assert [result["body"].get("field") for result in results[4:8]] == ["number", "body", "session", "session"]
    assert results[0]["body"]["observation"] == TextCraft().reset(seed=0)[0] | {"commands": []}
    assert ask(server, "POST", "/v1/batch", {"calls": []}).body == {"results": []}


CRAFT = {"environment": "TextCraft-v0"}


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "field"),
    [
        *(("/v1/sessions", body, 400, "malformed", "body") for body in (b"{", b"\xff", b"", b"[" * 100_000)),
        *(("/v1/sessions", body, 422, "invalid", "body") for body in ([], {}, {**CRAFT, "args": {}})),
        ("/v1/sessions", {"environment": 7}, 422, "invalid", "environment"),
        ("/v1/sessions", {"environment": "Doom-v0"}, 404, "unknown-environment", "environment"),
        ("/v1/sessions", {**CRAFT, "arguments": {"goals": "x"}}, 422, "invalid", "arguments.goals"),
        ("/v1/sessions", {**CRAFT, "arguments": {"goals": 10**9}}, 422, "invalid", "arguments.goals"),
        ("/v1/sessions", {**CRAFT, "arguments": {"goal": 1}}, 422, "invalid", "arguments"),
        ("/v1/sessions", {**CRAFT, "arguments": {"split": "tst"}}, 404, "refused", "arguments"),
        ("/v1/sessions", {**CRAFT, "max_episode_steps": 0}, 422, "invalid", "max_episode_steps"),
        ("SESSION/reset", {"number": 1.5}, 422, "invalid", "number"),
        ("SESSION/reset", {"number": 1, "seed": -1}, 422, "invalid", "seed"),
        ("SESSION/reset", {"number": 1, "options": {"task": "x"}}, 422, "invalid", "options"),
        ("SESSION/reset", {"number": 1, "options": {"task_id": 7}}, 422, "invalid", "options.task_id"),
        ("SESSION/step", {"number": 1, "calls": "look"}, 422, "invalid", "calls"),
        ("SESSION/step", {"number": 1, "calls": [{"name": 7, "arguments": {}}]}, 422, "invalid", "calls.0.name"),
        ("SESSION/step", {"number": 1, "calls": [], "problem": "x"}, 422, "invalid", "body"),
        ("SESSION/restore", {"number": 1, "snapshot": "x"}, 410, "unknown-snapshot", "snapshot"),
        ("SESSION/dance", {"number": 1}, 404, "not-found", None),
        ("/v1/sessions/0/step", {"number": 1, "calls": []}, 404, "unknown-session", "session"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_requests_are_told_which_field_is_wrong(server, path, body, status, kind, field):
    session = new(server) if "SESSION" in path else ""
    assert is_problem(ask(server, "POST", path.replace("SESSION", session), body), status, kind, field)


def test_bodies_must_be_declared_as_json_and_methods_must_fit(server):
    assert is_problem(
        ask(server, "POST", "/v1/sessions", b"{}", {"Content-Type": "text/plain"}), 415, "media-type", "Content-Type"
    )
    reply = ask(server, "PUT", "/v1/sessions", {})
    assert is_problem(reply, 405, "method") and "POST" in reply.headers["Allow"]


def test_a_token_is_demanded_of_everything_but_health(start, monkeypatch):
    url = start(token="s3cret").url
    for path in ("/v1/environments", "/metrics", "/v1/nothing"):
        for shown in ("", "Bearer wrong", "Bearer s3cre", "Bearer s3cret2", "s3cret", "\xff"):
            reply = ask(url, "GET", path, headers={"Authorization": shown} if shown else {})
            assert is_problem(reply, 401, "unauthorized") and reply.headers["WWW-Authenticate"] == "Bearer"
            assert "ENVSUITE_TOKEN" in reply.body["detail"]
    assert all(ask(url, "GET", path).status == 200 for path in ("/healthz", "/readyz", "/openapi.json"))
    assert ask(url, "GET", "/v1/environments", headers={"Authorization": "Bearer s3cret"}).status == 200
    for token, message in ((None, "none was sent"), ("wrong", "that was sent is not this server's")):
        monkeypatch.setattr(transport, "_BY_URL", {})
        if token is not None:
            monkeypatch.setenv("ENVSUITE_TOKEN", token)
        with pytest.raises(UsageError, match=f"{message}: set ENVSUITE_TOKEN"):
            gymnasium.make("TextCraft-v0", url=url)
    monkeypatch.setattr(transport, "_BY_URL", {})
    monkeypatch.setenv("ENVSUITE_TOKEN", "s3cret")
    assert gymnasium.make("TextCraft-v0", url=url).reset(seed=0)[1]["valid"]


def test_a_full_server_says_when_to_come_back_and_a_closed_session_makes_room(start):
    running = start(max_sessions=2)
    first, _ = new(running.url), new(running.url)
    reply = ask(running.url, "POST", "/v1/sessions", {"environment": "TextCraft-v0"})
    assert is_problem(reply, 429, "capacity") and int(reply.headers["Retry-After"]) >= 1
    ask(running.url, "DELETE", first)
    new(running.url)
    assert running.front.sessions == 2


def test_a_long_body_is_refused_before_it_is_read(start):
    url = start(max_body=100_000).url
    with connect(url) as connection:
        connection.sendall(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 52428800\r\n\r\n" + b" " * 200_000
        )
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ") and b"application/problem+json" in head
    assert orjson.loads(body)["type"] == "urn:envsuite:problem:too-large"


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n\0", b"GET", b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000, b"\x16\x03\x01" * 99],
    ids=["nothing", "no path", "long header", "tls"],
)
def test_what_is_no_http_is_answered_with_a_problem_and_the_connection_closed(server, sent):
    with connect(server) as connection:
        connection.sendall(sent + b"\r\n\r\n")
        answer = everything(connection)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) and b"application/problem+json" in answer


def test_metrics_count_what_happened(start):
    running = start()
    session = new(running.url)
    ask(running.url, "POST", f"{session}/reset", {"number": 1})
    ask(running.url, "POST", f"{session}/reset", {"number": 9})
    text = ask(running.url, "GET", "/metrics").raw.decode()
    assert 'envsuite_sessions_created_total{environment="TextCraft-v0"} 1\n' in text
    assert 'envsuite_calls_total{op="reset",status="200"} 1\n' in text
    assert 'envsuite_calls_total{op="reset",status="409"} 1\n' in text
    assert "\nenvsuite_sessions 1\n" in text


@pytest.mark.parametrize("kind", [ServerSettings, BridgeSettings])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environments": ()}, "at least one environment"),
        ({"max_sessions": 0}, "max_sessions is 0"),
        ({"idle_seconds": 0}, "idle_seconds is 0"),
        ({"token": "a b"}, "ENVSUITE_TOKEN, or --token-file"),
        ({"token": ""}, "ENVSUITE_TOKEN, or --token-file"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind, settings, message):
    with pytest.raises(UsageError, match=message):
        kind(**{"environments": ("TextCraft-v0",), **settings})


def test_an_address_that_is_taken_and_an_environment_that_there_is_not_are_refused(start):
    running = start()
    with pytest.raises(UsageError, match="cannot listen at"):
        start(port=int(running.url.rpartition(":")[2]))
    with pytest.raises(Exception, match="TextCraft-v0"):
        start("TextCraf-v0")


def test_the_document_describes_every_address(start):
    running = start()
    paths = ask(running.url, "GET", "/openapi.json").body["paths"]
    rules = {
        (str(rule).replace("<path:", "{").replace("<", "{").replace(">", "}"), method.lower())
        for rule in running.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert rules == {(path, method) for path, operations in paths.items() for method in operations}


schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")

PATHS = ["/v1/sessions", "/v1/batch"]
PATHS += [f"SESSION/{op}" for op in ("reset", "step", "restore", "propose", "identify")]
NAMES = ["number", "calls", "op", "session", "environment", "arguments", "seed", "options", "x"]
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)


@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200) | JSONS.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=80)
def test_any_body_is_answered_and_never_with_5xx(server, path, body):
    reply = ask(server, "POST", path.replace("SESSION", new(server, key="hypothesis")), body)
    assert reply.status < 500
    if reply.status >= 400:
        assert reply.body["type"].removeprefix("urn:envsuite:problem:") in TITLES


def test_the_document_has_every_operation_and_every_problem_of_a_server(start):
    running = start()
    served = {
        (re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in running.app.url_map.iter_rules()
        for method in rule.methods & {"GET", "POST", "DELETE"}
    }
    assert served == {(path, method) for path, operations in DOCUMENT["paths"].items() for method in operations}
    kinds = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert kinds == [f"urn:envsuite:problem:{kind}" for kind in TITLES]


def test_every_operation_names_the_errors_of_requests_that_are_wrong(start):
    url = start(token="s3cret", max_body=10_000).url
    allowed = {"Authorization": "Bearer s3cret"}
    written = {**allowed, **JSON}
    for path, operations in ask(url, "GET", "/openapi.json").body["paths"].items():
        for method, operation in operations.items():
            address = path.format(env_id="Nowhere-v0", session="none")
            replies = [ask(url, method.upper(), address), ask(url, "PUT", address, headers=allowed)]
            if "requestBody" in operation:
                replies += [ask(url, "POST", address, body, written) for body in (b"{", b'{"x": 1}', b" " * 20_000)]
                replies += [ask(url, "POST", address, b"{}", allowed)]
            elif method != "post":
                replies += [ask(url, method.upper(), address, headers=allowed)]
            found = {reply.status for reply in replies if reply.status >= 400}
            assert found <= {int(status) for status in operation["responses"]}, (method, path)
            assert "requestBody" not in operation or found >= {400, 401, 405, 413, 415}, (method, path)


@pytest.mark.slow
@pytest.mark.parametrize("token", [None, "s3cret"])
def test_schemathesis_finds_no_answer_that_the_document_does_not_describe(start, token):
    running = start(token=token, idle_seconds=5.0)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    kinds = ("status_code", "content_type", "response_schema", "response_headers")
    checks = [schemathesis.checks.CHECKS.get_one(f"{kind}_conformance") for kind in kinds]
    checks += [schemathesis.checks.not_a_server_error]
    operations = [result.ok() for result in schema.get_all_operations()]
    paths = ask(running.url, "GET", "/openapi.json").body["paths"]
    documented = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert documented - {operation.label for operation in operations} <= {"GET /openapi.json"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(base_url=running.url, headers=headers, checks=checks, timeout=30)

        check()
