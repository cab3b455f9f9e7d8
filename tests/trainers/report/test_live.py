"""A run that goes on, followed over HTTP and in Chromium."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic_run import make_run
from waiting import until

from envsuite.core.errors import UsageError
from envsuite.remote.listening import in_thread
from trainers.programs.report import main
from trainers.report.html import write_html
from trainers.report.live import LiveRun
from trainers.report.run import RunData
from trainers.report.server import COOKIE, ServeSettings, make_app, make_server
from trainers.run.activity_file import ActivityFile
from trainers.run.progress import RunProgress
from trainers.run.stopping import Interrupted
from trainers.steps.parquet import read_episodes, shard_of, write_episodes

ROOT = Path(__file__).resolve().parents[3]
Growing = Callable[[int], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six iterations, whose files come one after the other into the folder that is followed."""
    return make_run(tmp_path_factory.mktemp("whole") / "craft", 6, 2, 3, 4, advantages=False, tasks=8)


@pytest.fixture
def growing(whole: Path, tmp_path: Path) -> Growing:
    """Lets the run's folder be as it is after so many iterations, also after a resume from an earlier one."""
    folder = tmp_path / "craft"

    def grow(iterations: int) -> Path:
        (folder / "episodes").mkdir(parents=True, exist_ok=True)
        shutil.copy(whole / "config.yaml", folder)
        lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["iteration"] <= iterations]
        (folder / "metrics.jsonl").write_text("".join(kept))
        for number in range(1, 7):
            name = f"iteration-{number:05d}.parquet"
            if number <= iterations:
                shutil.copy(whole / "episodes" / name, folder / "episodes" / name)
            else:
                (folder / "episodes" / name).unlink(missing_ok=True)
        return folder

    return grow


def labels(run: LiveRun) -> list[str]:
    return [file["label"] for file in run.state()["files"]]


def test_a_run_is_followed_from_nothing_to_its_end_and_through_a_resume(growing, whole, tmp_path):
    run = LiveRun(tmp_path / "craft")
    assert run.state()["begun"] is False and run.part("episodes", "iteration-00001") is None
    versions = [run.now()["version"]]
    for done in (0, 1, 3, 2, 6):  # after the third iteration it is resumed from the second
        growing(done)
        state = run.state()
        assert state["begun"] and state["problems"] == []
        assert labels(run) == [f"iteration {i}" for i in range(1, done + 1)]
        assert len(state["metrics"].get("train/success", {}).get("x", [])) == done
        versions.append(run.now()["version"])
        assert run.now()["version"] == state["version"]
    assert len(set(versions)) == len(versions)
    shutil.copy(whole / "summary.json", tmp_path / "craft")
    assert len(run.state()["evaluations"]) > 1


def test_a_line_of_metrics_that_is_cut_waits_for_its_rest(growing):
    folder = growing(2)
    run = LiveRun(folder)
    line = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line[: len(line) // 2])
    assert run.state()["problems"] == [] and run.state()["metrics"]["train/success"]["x"] == [1, 2]
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\n")  # a damaged line now, not one that is being written
    (problem,) = run.state()["problems"]
    assert "metrics.jsonl" in problem and run.state()["metrics"]["train/success"]["x"] == [1, 2]
    growing(3)
    assert run.state()["problems"] == [] and run.state()["metrics"]["train/success"]["x"] == [1, 2, 3]


def test_a_file_of_episodes_that_is_not_whole_is_told_and_a_shard_waited_for(growing):
    folder = growing(2)
    path = folder / "episodes" / "iteration-00002.parquet"
    content, episodes, run = path.read_bytes(), read_episodes(path), LiveRun(folder)
    path.write_bytes(content[: len(content) // 2])
    assert labels(run) == ["iteration 1"] and "iteration-00002.parquet" in run.state()["problems"][0]
    path.write_bytes(content)
    assert labels(run) == ["iteration 1", "iteration 2"] and run.state()["problems"] == []
    path.unlink()
    write_episodes(shard_of(path, 0, 2), episodes[:3])
    assert labels(run) == ["iteration 1"]
    write_episodes(shard_of(path, 1, 2), episodes[3:])
    assert labels(run) == ["iteration 1", "iteration 2"] and run.part("episodes", "iteration-00002") is not None


def test_parts_are_those_of_the_report(growing):
    folder = growing(3)
    run = LiveRun(folder)
    report = write_html(RunData.load(folder)).read_text()
    for number in range(3):
        for kind in ("episodes", "advantages", "graphs"):
            part = run.part(kind, f"iteration-{number + 1:05d}")
            assert part is not None and f'id="{kind}-{number}">{part}</script>' in report


def test_alerts_are_the_warnings_of_the_log_and_what_ended_the_run(growing):
    folder = growing(1)
    with (folder / "run.log").open("wb") as file:
        file.write(b"2026-01-01 10:00:00,123 INFO trainers.train: all is well\n\xff\xfe\n")
        for number in range(60):
            file.write(f"2026-01-01 10:00:{number:02},000 WARNING trainers.run.watchdog: waits {number}\n".encode())
        file.write(b"2026-01-01 10:02:00,000 INFO trainers.train: ended by an error: disk full\nhalf a li")
    alerts = LiveRun(folder).state()["alerts"]
    assert len(alerts) == 20 and alerts[0]["text"] == "ended by an error: disk full"
    assert alerts[1] == {"time": "2026-01-01 10:00:59", "level": "warning", "text": "waits 59"}


def test_the_activity_of_a_run_and_how_it_ended_are_told(growing):
    folder = growing(1)
    run, progress = LiveRun(folder), RunProgress(6, plain=True, console=Console(file=io.StringIO()))
    assert run.state()["activity"] is None
    progress.stage("rollout", 16)
    with ActivityFile(folder, progress, interval=0.05):
        progress.advance(3)
        until(lambda: run.now()["activity"]["count"] == 3)
        found = run.now()["activity"]
        assert (found["state"], found["stage"], found["total"]) == ("running", "rollout", 16)
        assert len(found["processes"]) == 1 and "rollout" in found["processes"][0]
    assert run.now()["activity"]["state"] == "finished"
    ends = {"failed": ValueError("the weights are gone"), "interrupted": Interrupted(signal.SIGINT, folder)}
    for state, error in ends.items():
        with pytest.raises(type(error)), ActivityFile(folder, progress):
            raise error
        found = run.now()["activity"]
        assert (found["state"], found["error"]) == (state, str(error))
    os.utime(folder / "activity.json", (time.time() - 60, time.time() - 60))
    assert run.now()["activity"]["state"] == "interrupted"
    with ActivityFile(folder, progress, interval=60):
        os.utime(folder / "activity.json", (time.time() - 60, time.time() - 60))
        assert run.now()["activity"]["state"] == "silent"
    for damaged in (b"{", b"[]", b'{"state": 3}'):
        (folder / "activity.json").write_bytes(damaged)
        assert run.now()["activity"] is None


def test_an_activity_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    progress = RunProgress(6, plain=True, console=Console(file=io.StringIO()))
    with ActivityFile(tmp_path / "file", progress, interval=0.01):
        time.sleep(0.1)
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    with ActivityFile(None, progress):
        pass


# -- HTTP


def client(folder: Path, **other: Any) -> FlaskClient:
    return make_app(ServeSettings(folder, **other)).test_client()


def test_the_page_and_its_parts_are_served(growing):
    folder = growing(2)
    http = client(folder)
    page = http.get("/")
    assert page.status_code == 200 and b"connect-src 'self'" in page.data and b"class Live" in page.data
    assert "connect-src 'self'" in page.headers["Content-Security-Policy"]
    assert http.get("/state").json["version"] == http.get("/now").json["version"]
    assert http.get("/state", headers={"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip"
    run = LiveRun(folder)
    for kind in ("episodes", "advantages"):
        found = http.get(f"/{kind}/iteration-00002?v=1")
        assert found.text == run.part(kind, "iteration-00002") and "max-age" in found.headers["Cache-Control"]
    assert http.get("/episodes/iteration-00003").status_code == 404
    for method in ("post", "put", "delete", "patch"):
        assert getattr(http, method)("/state").status_code == 405


SECRET = "KEEP-THIS-TO-YOURSELF"
PARTS = (
    "episodes", "advantages", "..", ".", "%2e%2e", "%2f", "//", "iteration-00001", "config.yaml", "secret.txt", "now",
    "metrics.jsonl", "state", "login", "\\", "iteration-00001.parquet", "%00",
)  # fmt: skip
PATHS = st.lists(st.sampled_from(PARTS), max_size=6).map("/".join) | st.text(max_size=30)


@pytest.fixture(scope="module")
def served(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FlaskClient]:
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("served") / "craft")
    (folder.parent / "secret.txt").write_text(SECRET)
    (folder / "secret.txt").write_text(SECRET)
    (folder / "episodes" / "secret.txt").write_text(SECRET)
    return folder, client(folder)


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"]),
    PATHS,
    st.dictionaries(
        st.sampled_from(["Cookie", "Authorization", "Accept-Encoding", "Range"]),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    ),
    st.binary(max_size=50),
)
def test_no_request_reads_another_file_or_breaks_the_server(served, method, path, headers, body):
    answer = served[1].open(f"/{path}", method=method, headers=headers, data=body)
    if answer.request.host != "localhost":  # the client takes what follows // for a host
        assert answer.status_code == 421
    assert answer.status_code in (200, 308, 400, 401, 404, 405, 413, 415, 421)
    assert SECRET.encode() not in answer.data
    if answer.status_code == 200 and method in ("GET", "HEAD"):
        asked = answer.request.path
        assert asked in ("/", "/now", "/state") or asked.startswith(("/episodes/", "/advantages/"))
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_requests_change_nothing(served):
    folder, http = served
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in ("/", "/state", "/now", "/episodes/iteration-00001", "/advantages/iteration-00001", "/x"):
        for method in ("GET", "POST", "DELETE", "PUT"):
            http.open(path, method=method)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_token_is_needed_and_read_from_header_or_cookie(growing):
    folder = growing(1)
    http = client(folder, host="0.0.0.0", token="a-token")
    for path in ("/now", "/state", "/episodes/iteration-00001", "/advantages/iteration-00001", "/nothing"):
        assert http.get(path).status_code == 401
        assert http.get(path, headers={"Authorization": "Bearer a-tokem"}).status_code == 401
    asked = http.get("/")
    assert asked.status_code == 401 and "craft" not in asked.text and 'action="login"' in asked.text
    assert http.get("/now", headers={"Authorization": "Bearer a-token"}).status_code == 200
    assert http.post("/login", data={"token": "wrong"}).status_code == 401
    assert http.get("/now").status_code == 401
    entered = http.post("/login", data={"token": "a-token"})
    assert entered.status_code == 303 and "HttpOnly" in entered.headers["Set-Cookie"]
    assert "SameSite=Strict" in entered.headers["Set-Cookie"] and "a-token" not in entered.headers["Set-Cookie"]
    assert http.get("/now").status_code == 200 and http.get("/").status_code == 200
    http.set_cookie(COOKIE, "guessed")
    assert http.get("/now").status_code == 401


def test_without_a_token_only_this_machine_is_served(growing):
    http = client(growing(1))
    for host in ("localhost:8090", "127.0.0.1", "[::1]:8090"):
        assert http.get("/now", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "192.168.0.7:8090", "localhost.evil.example"):
        assert http.get("/now", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--host", "0.0.0.0", "--token-file", "/nowhere/token"], "cannot be read"),
        (["--port", "70000"], "ports are 0 to 65535"),
        (["--host", "203.0.113.1", "--token-file", "TOKEN"], "cannot listen at 203.0.113.1"),
        (["another-run"], "--serve follows one run"),
        (["--advantages", "grpoo"], "grpoo"),
    ],
)
def test_what_cannot_be_served_is_refused(growing, tmp_path, capsys, arguments, message):
    (tmp_path / "token").write_text("secret\n")
    arguments = [str(tmp_path / "token") if one == "TOKEN" else one for one in arguments]
    assert main(["--serve", str(growing(1)), *arguments]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="printable ASCII"):
        ServeSettings(tmp_path, token="a b")


@pytest.mark.slow
def test_the_command_says_where_it_serves_and_ends_with_ctrl_c(growing):
    process = subprocess.Popen(
        [sys.executable, "-m", "envsuite.cli", "report", str(growing(1)), "--serve", "--port", "0"],
        stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "http://127.0.0.1:" in said and "this machine only" in said
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0 and "Traceback" not in process.stderr.read()


# -- In a browser


@pytest.fixture
def tab(browser: Tab) -> Tab:
    browser.complaints.clear()
    browser.size(1280)
    return browser


@pytest.mark.slow
def test_a_page_follows_a_run_without_a_reload(tab, growing, tmp_path):
    with in_thread(make_server(ServeSettings(tmp_path / "craft", port=0))) as server:
        tab.open(server.url)
        tab.run("window.NOT_RELOADED = true")
        assert "has not written anything yet" in tab.text("#live-state")
        folder = growing(1)
        progress = RunProgress(6, plain=True, console=Console(file=io.StringIO()))
        progress.iteration(1, {"train/success": 0.5})
        with ActivityFile(folder, progress, interval=0.2):
            tab.until("document.getElementById('live-state').innerText.includes('iteration 1 of 6')")
            tab.until("document.querySelector('#episode h3')?.innerText.endsWith('iteration 1')")
            assert tab.text("#live-state").startswith("Running")
            assert re.findall("wall time|iteration [0-9]", tab.text("header")) == []  # both are told once, below
            growing(3)  # the newest file is followed while the reader has chosen nothing
            tab.until("document.querySelector('#episode h3')?.innerText.endsWith('iteration 3')")
            tab.choose("outcome", "unsolved")
            tab.run("BROWSER.ready = true; BROWSER.open('1')")
            tab.until("document.querySelector('#episode h3')?.innerText.endsWith('iteration 2')")
            growing(4)
            tab.until("[...document.getElementById('iteration').options].some((o) => o.text.startsWith('iteration 4'))")
            assert tab.text("#episode h3").endswith("iteration 2")  # and what was chosen stays
            assert tab.run("document.getElementById('outcome').value") == "unsolved"
            tab.choose("iteration", "iterations")
            tab.choose("outcome", "")
            tab.until("document.getElementById('count').textContent.includes('of 24 episodes')")
            growing(5)
            tab.until("document.getElementById('count').textContent.includes('of 30 episodes')")
            growing(2)  # resumed from the second iteration
            tab.until("document.getElementById('count').textContent.includes('of 12 episodes')")
            assert tab.run("DATA.metrics['train/success'].x.length") == 2
            tab.choose("method", "grpo")
            tab.until("document.querySelector('table.advantages')")
            (folder / "run.log").write_text("2026-01-01 10:00:00,000 WARNING trainers.run.watchdog: waits long\n")
            tab.until("document.getElementById('live-alerts').innerText.includes('waits long')")
        tab.until("document.getElementById('live-state').innerText.includes('Finished')")
        assert tab.run("window.NOT_RELOADED") is True and tab.complaints == []
    tab.until("document.getElementById('live-connection').textContent.includes('does not answer')")
