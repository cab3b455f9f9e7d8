from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from raw import JSON, ask, new

from envsuite.remote.protocol import TITLES
from envsuite.serving.schemas import DOCUMENT
from envsuite.serving.server import EnvServer

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install schemathesis")

PATHS = ["/v1/sessions", "/v1/batch"]
PATHS += [f"SESSION/{op}" for op in ("reset", "step", "restore", "propose", "identify")]
NAMES = ["number", "calls", "op", "session", "environment", "arguments", "seed", "options", "x"]
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
Start = Callable[..., EnvServer]


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
