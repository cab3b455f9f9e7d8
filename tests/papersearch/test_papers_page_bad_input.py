"""The page of PaperSearch: what its server refuses, and what it serves besides episodes.

``envsuite play papersearch --browser``: the command that serves the page.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
from flask.testing import FlaskClient
from hundred_papers import HUB
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import Tab, app_of
from served_pages import FOREIGN, METHODS, ODD_HEADERS, opened
from werkzeug.test import TestResponse

from envsuite.cli import main
from envsuite.core.errors import DataError
from envsuite.papersearch.page.app import FILES, LARGEST_BODY
from envsuite.papersearch.page.visits import Visit

POSTS = ["visit", "step", "undo", "score", "move", "begin"]


@pytest.fixture
def tab(hundred: Path) -> Tab:
    return Tab(app_of(hundred).test_client())


@pytest.mark.parametrize("headers", [{}, {"X-Visit": ""}, {"X-Visit": "guess"}])
def test_without_its_key_no_episode_is_shown(tab, headers):
    for path in ("/api/state", "/api/hint", "/api/paper?id=p1"):
        assert tab.client.get(path, headers=headers).status_code == 410


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", POSTS)
def test_another_site_can_do_nothing(tab, path, headers):
    response = tab.client.post(f"/api/{path}", json={}, headers=tab.headers | headers)
    assert response.status_code == 403 and "another site" in response.json["error"]
    assert tab.client.post("/api/visit", json={}, headers={"Origin": "http://localhost"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("step", {"calls": []}, "change"),
        ("step", {"change": 1, "calls": [{"tool": "search", "argument": "x"}] * 6}, "calls"),
        ("step", {"change": 1, "calls": [{"tool": "keep", "argument": "x"}]}, "keep"),
        ("step", {"change": 1, "calls": [{"tool": "search", "argument": 3}]}, "calls.0.argument"),
        ("step", [], "object"),
        ("undo", {"change": "1"}, "change"),
        ("score", {"show": 1}, "show"),
        ("move", {"change": 1, "to": "elsewhere"}, "elsewhere"),
        ("begin", {"change": 1, "task": "x" * 1_001}, "task"),
    ],
)
def test_a_body_of_another_form_is_refused_by_name_and_no_step_is_taken(tab, path, body, said):
    response = tab.client.post(f"/api/{path}", json=body, headers=tab.headers)
    assert response.status_code == 400 and said in response.json["error"]
    assert tab.get("/api/state").json["state"]["steps"] == 0


def test_wrong_types_sizes_addresses_and_methods_are_refused(tab):
    def post(body: bytes, kind: str) -> TestResponse:
        return tab.client.post("/api/step", data=body, content_type=kind, headers=tab.headers)

    assert post(b"{}", "text/plain").status_code == 415
    assert post(b"{", "application/json").status_code == 400
    assert (
        post(rb'{"change": 1, "calls": [{"tool": "search", "argument": "\ud800"}]}', "application/json").status_code
        == 400
    )
    assert post(b" " * (LARGEST_BODY + 1), "application/json").status_code == 413
    for path in ("/nowhere", "/vendor/", "/static/page.js", "/..%2fapp.py", "/api/"):
        response = tab.client.get(path)
        assert response.status_code == 404 and response.json["error"]
    assert tab.client.get("/api/step").status_code == 405
    assert "GET" in tab.client.post("/").headers["Allow"]


def test_what_breaks_is_said_without_a_traceback(tab, monkeypatch):
    def damaged(self: Visit) -> None:
        raise DataError("papers.corpus: damaged. Build it anew")

    def wrong(self: Visit) -> None:
        raise ZeroDivisionError("secret")

    tab.client.application.logger.disabled = True
    for broken, said in ((damaged, "Build it anew"), (wrong, "Something broke")):
        monkeypatch.setattr(Visit, "enter", broken)
        response = tab.get("/api/state")
        assert response.status_code == 500 and said in response.json["error"] and "secret" not in response.text


def test_the_files_of_the_page_are_revalidated_and_what_is_served_loads_nothing_from_elsewhere(tab):
    for path in (*FILES, "/api/state", "/nowhere"):
        headers = tab.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert {policy[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    for path, (name, kind) in FILES.items():
        response = tab.client.get(path)
        content = (files("envsuite.papersearch.page") / name).read_bytes()
        assert (response.status_code, response.mimetype, response.data) == (200, kind, content)
        assert tab.client.get(path, headers={"If-None-Match": response.headers["ETag"]}).status_code == 304
        assert set(re.findall(rb"https?://[^\"'\s)]+", content)) <= {b"http://www.w3.org/2000/svg"}
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", content)
    there = {file.name for file in files("envsuite.papersearch.page").iterdir()}
    assert {name for name in there if name.endswith(".js")} == {
        name for name, kind in FILES.values() if kind == "text/javascript"
    }


@pytest.fixture(scope="module")
def client(hundred: Path) -> FlaskClient:
    return app_of(hundred).test_client()


GETS = ["state", "hint", "tasks", "tasks?words=%ff", "paper?id=%00"]
NAMES = st.sampled_from(["change", "calls", "tool", "argument", "show", "to", "task", ""])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["search", "next", HUB])
JSON = st.recursive(PLAIN, lambda some: st.lists(some, max_size=4) | st.dictionaries(NAMES, some, max_size=4))
ARGUMENTS = st.text(max_size=1_100) | st.sampled_from(["survey", HUB, "p1"])
CALL = st.fixed_dictionaries({"tool": st.sampled_from(["search", "expand"]), "argument": ARGUMENTS})
STEPS = st.lists(st.lists(CALL, min_size=1, max_size=5), min_size=1, max_size=3)
TYPES = ["application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data", ""]
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **ODD_HEADERS,
        "Content-Type": st.sampled_from(TYPES),
        "X-Visit": st.sampled_from(["", "x", "\u00ff", "x" * 5_000]),
    },
)


@pytest.mark.seconds
@given(st.sampled_from(POSTS), JSON)
@settings(max_examples=200, deadline=None)
def test_no_body_breaks_the_server(client, path, body):
    headers, data = Tab(client).headers, json.dumps(body).encode("utf-8", "surrogatepass")
    response = client.post(f"/api/{path}", data=data, content_type="application/json", headers=headers)
    assert response.status_code in ({200} if path == "visit" else {200, 400, 409}), response.text
    assert isinstance(response.json, dict)


@pytest.mark.seconds
@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_any_calls_give_a_state_that_fits_together(client, steps):
    tab = Tab(client)
    for number, calls in enumerate(steps, 1):
        if tab.state["over"]:
            break
        tab.alter("/api/step", calls=calls)
        state = tab.state
        said = state["turns"][-1]["results"]
        assert [{"tool": call["tool"], "argument": call["argument"]} for call in said] == calls
        assert state["steps"] == number
        assert len(state["papers"]) == state["total"] == len({paper["id"] for paper in state["papers"]})
        assert all(0 <= place < state["total"] for pair in state["citations"] for place in pair)


@given(
    METHODS,
    st.sampled_from([*FILES, *(f"/api/{path}" for path in [*POSTS, *GETS])])
    | st.binary(max_size=20).map(lambda path: "/" + quote(path)),
    st.binary(max_size=200),
    HEADERS,
)
@settings(max_examples=200, deadline=None)
def test_no_request_breaks_the_server(client, method, path, body, headers):
    response = client.open(path, method=method, data=body, headers=headers)
    assert response.status_code < 500, response.get_data(as_text=True)


def begun(address: str) -> dict[str, object]:
    """The state of a new episode."""
    request = urllib.request.Request(f"{address}api/visit", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        state: dict[str, object] = orjson.loads(response.read())["state"]
    return state


def test_the_page_opens_on_this_machine_alone_says_so_and_closes_with_ctrl_c(hundred):
    with opened("papersearch", "--source", str(hundred)) as (said, address, process):
        assert said.startswith("The search for papers (102 papers, 2 tasks) is open at http://127.0.0.1:")
        assert "for this machine alone" in said
        with urllib.request.urlopen(address, timeout=60) as response:
            assert "<title>PaperSearch</title>" in response.read().decode()
        state = begun(address)
        assert isinstance(state["task"], dict) and (state["task"]["id"], state["horizon"]) == ("all", 5)
        other = urllib.request.Request(address, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(other, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "The search for papers is closed.\n"
        assert process.returncode == 0


def test_task_split_steps_and_arguments_of_the_environment_are_taken(hundred):
    given = ["--source", str(hundred), "--split", "test", "--task", "other", "--steps", "0", "--option", "max_calls=2"]
    with opened("papersearch", *given) as (_, address, _):
        state = begun(address)
    assert isinstance(state["task"], dict) and (state["task"]["id"], state["task"]["split"]) == ("other", "test")
    assert (state["horizon"], state["max_calls"]) == (None, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["papersearch", "--browser", "--split", "validation"], "has no such task; give another: --split train, test"),
        (["papersearch", "--browser", "--type", "nothing"], "nothing"),
        (["papersearch", "--browser", "--task", "nothing"], "nothing"),
        (["papersearch", "--browser", "--url", "http://127.0.0.1:1"], "--url is for play in a terminal"),
        (["papersearch", "--browser", "--save", "mine.jsonl"], "--save is for play in a terminal"),
    ],
)
def test_what_a_user_can_mend_is_one_message(hundred, capsys, arguments, said):
    assert main(["play", *arguments, "--source", str(hundred), "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert said in told and told.startswith("envsuite: ") and "Traceback" not in told


@pytest.mark.parametrize(("page", "extra"), [("papersearch", "serve"), ("webshop", "webshop-play")])
@pytest.mark.parametrize("missing", ["flask", "uvicorn"])
def test_without_the_extra_the_message_is_the_command_that_mends_it(missing, page, extra):
    code = f"import sys; sys.modules[{missing!r}] = None; from envsuite.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "play", page, "--browser"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    needs = f"envsuite: `envsuite play {page} --browser` needs Flask and uvicorn (import of {missing} "
    assert run.returncode == 2 and run.stderr.startswith(needs)
    assert run.stderr.endswith(f"): pip install 'envsuite[{extra}]'\n") and run.stderr.count("\n") == 1


def test_help_says_how_the_page_and_the_terminal_are_opened(capsys):
    with pytest.raises(SystemExit):
        main(["play", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "there is one of PaperSearch-v0, WebShop-v0" in said and "envsuite play papersearch --browser" in said
