"""Sessions of a server: who holds them, when they end, and what a call on one does to the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from raw import ask, command, is_problem, new
from waiting import until

from envsuite.core import ToolCall, UsageError, WorkerLost
from envsuite.remote import RemoteEnv, session
from envsuite.remote.session import plain
from envsuite.serving import front, host
from envsuite.serving.host import SessionHost
from envsuite.serving.server import EnvServer

ROUGH = "vector_worlds:Rough-v0"
GO = (ToolCall("do", {"command": "go"}),)


def do(text: str) -> list[dict[str, Any]]:
    return [{"name": "do", "arguments": {"command": text}}]


def begun(url: str, environment: str = ROUGH, **body: Any) -> str:
    """The path of a new session, with an episode begun; of the rough world, that of its first task."""
    path = new(url, environment=environment, **body)
    assert ask(url, "POST", f"{path}/reset", {"number": 1}).status == 200
    return path


def get(text: str = "get 1 string") -> tuple[ToolCall, ...]:
    return (ToolCall("env_step", {"command": text}),)


def strings(env: RemoteEnv) -> str:
    """What the player has."""
    return str(env.step(get("inventory"))[0]["text"]).strip()


def limit_calls(running: EnvServer, seconds: float) -> None:
    """Sets the deadline of the workers that there are; those that will replace them have a minute."""
    for worker in running._pool.workers:
        worker.deadline = seconds


def name(path: str) -> str:
    return path.rpartition("/")[2]


def batch(url: str, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = ask(url, "POST", "/v1/batch", {"calls": list(calls)}).body["results"]
    return results


def step(session: str, text: str) -> dict[str, Any]:
    """The second call of an episode, for a batch."""
    return {"op": "step", "session": session, "number": 2, "calls": do(text)}


def kind(result: dict[str, Any]) -> str:
    return str(result["body"].get("type", "")).rpartition(":")[2]


def test_paths_are_sources_only_below_folders_that_were_opened(start, tmp_path):
    def told(url: str, source: object, kind: str, field: str) -> bool:
        body = {"environment": "TextCraft-v0", "arguments": {"source": str(source)}}
        return is_problem(ask(url, "POST", "/v1/sessions", body), 422, kind, field)

    closed, opened = start().url, start(source_folders=(tmp_path / "open",)).url
    for source in ("/etc", "recipes", "../x", "builtin/../..", "a\0b", ""):
        assert told(closed, source, "invalid", "arguments.source")
    for name in ("open", "open-not", "opened"):
        (tmp_path / name).mkdir()
    (tmp_path / "open" / "out").symlink_to(tmp_path / "opened")
    for name in ("open-not", "opened", "open/../open-not", "", "open/../..", "open/out"):
        assert told(opened, f"{tmp_path}/{name}", "invalid", "arguments.source")
    for name in ("open", "open/none"):  # they hold no recipes
        assert told(opened, tmp_path / name, "refused", "arguments")


def test_a_session_that_is_called_lives_however_long_the_call_takes_while_one_that_is_not_ends(start, leap, tmp_path):
    running = start(ROUGH)
    busy, used, idle = (begun(running.url) for _ in range(3))
    call = {"number": 2, "calls": do(f"wait {tmp_path / 'file'}")}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, running.url, "POST", f"{busy}/step", call)
        until((tmp_path / "file.begun").exists)
        leap(500.0)
        assert ask(running.url, "POST", f"{used}/step", {"number": 2, "calls": do("go")}).status == 200
        assert running.front.sessions == 3
        leap(500.0)
        expired = f'envsuite_sessions_expired_total{{environment="{ROUGH}"}} 1\n'
        until(lambda: expired in metrics(running.url))
        (tmp_path / "file").touch()
    reply = ask(running.url, "GET", idle)
    assert is_problem(reply, 410, "session-ended", "session") and "nobody called it" in reply.body["detail"]
    assert answer.result().status == 200
    assert [ask(running.url, "GET", session).body["next"] for session in (busy, used)] == [3, 3]


def metrics(url: str) -> str:
    return ask(url, "GET", "/metrics").raw.decode()


def test_a_call_that_comes_twice_at_the_same_time_is_executed_once(tmp_path):
    playing = SessionHost()
    about = {"environment": ROUGH, "session": "s", "idle_seconds": 1.0}
    assert playing.execute({**about, "op": "create"})[0] == 200
    assert playing.execute({"op": "reset", "session": "s", "number": 1, "options": {"task_id": "a"}})[0] == 200
    call = {"op": "step", "session": "s", "number": 2, "calls": do(f"touch {tmp_path / 'begun'} and sleep 0.5")}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(playing.execute, call)
        until((tmp_path / "begun").exists)
        assert pool.submit(playing.execute, call).result() == first.result()
    assert orjson.loads(first.result()[1])["observation"]["text"] == "a 1"
    after = playing.execute({"op": "step", "session": "s", "number": 3, "calls": do("go")})
    assert orjson.loads(after[1])["observation"]["text"] == "a 2"


def test_a_world_that_cannot_be_closed_ends_its_session_and_the_log_says_why(tmp_path, caplog):
    playing = SessionHost()
    playing.execute({"op": "create", "environment": ROUGH, "session": "s", "idle_seconds": 1.0})
    playing.execute({"op": "reset", "session": "s", "number": 1, "options": {"task_id": "a"}})
    farewell = do(f"farewell {tmp_path / 'nowhere' / 'note'}")
    assert playing.execute({"op": "step", "session": "s", "number": 2, "calls": farewell})[0] == 200
    assert playing.execute({"op": "close", "session": "s"}) == (204, b"") and len(playing) == 0
    (record,) = caplog.records
    assert record.getMessage() == f"closing a session of {ROUGH} failed"
    assert record.exc_info is not None and record.exc_info[0] is FileNotFoundError


def test_a_key_is_free_again_when_its_session_has_ended_and_belongs_to_one_environment(start):
    url = start("TextCraft-v0", ROUGH).url
    first = new(url, key="mine")
    assert new(url, key="mine") == first != new(url, key="other")
    other = ask(url, "POST", "/v1/sessions", {"environment": ROUGH, "key": "mine"})
    assert is_problem(other, 409, "refused", "key")
    ask(url, "DELETE", first)
    assert new(url, key="mine") != first


def test_a_session_that_cannot_be_made_takes_no_place(start):
    running = start(max_sessions=1)
    for _ in range(3):
        body = {"environment": "TextCraft-v0", "arguments": {"split": "tst"}}
        assert is_problem(ask(running.url, "POST", "/v1/sessions", body), 404, "refused", "arguments")
    assert running.front.sessions == 0
    new(running.url)


def test_why_a_session_has_ended_is_known_for_the_last_of_them(start, monkeypatch):
    monkeypatch.setattr(front, "REMEMBERED", 2)
    running = start(ROUGH)
    lost, *others = (begun(running.url) for _ in range(3))
    ask(running.url, "POST", f"{lost}/step", {"number": 2, "calls": do("raise oops")})
    reply = ask(running.url, "POST", f"{lost}/step", {"number": 2, "calls": do("go")})
    assert is_problem(reply, 410, "session-lost", "session")
    for path in others:
        ask(running.url, "DELETE", path)
        assert is_problem(ask(running.url, "GET", path), 410, "session-ended", "session")
    assert is_problem(ask(running.url, "GET", lost), 404, "unknown-session", "session")


def test_a_server_that_is_about_to_end_makes_no_session_and_lets_others_play(start):
    running = start(ROUGH)
    path = begun(running.url)
    running.front.draining = True
    reply = ask(running.url, "POST", "/v1/sessions", {"environment": ROUGH})
    assert is_problem(reply, 503, "draining") and reply.headers["Retry-After"] == "1"
    assert is_problem(ask(running.url, "GET", "/readyz"), 503, "draining")
    assert ask(running.url, "POST", f"{path}/step", {"number": 2, "calls": do("go")}).status == 200


def test_only_the_call_that_hangs_is_lost_and_the_other_sessions_of_its_worker_can_be_played_again(start):
    running = start(ROUGH, workers=1)
    before, hung, behind, between = (name(begun(running.url)) for _ in range(4))
    limit_calls(running, 2.0)
    told = []
    for texts in ({before: "sleep 0.1", hung: "sleep 600", behind: "go"}, {between: "go"}):
        results = batch(running.url, *(step(session, text) for session, text in texts.items()))
        told += [(result["status"], kind(result)) for result in results]
    assert told == [(200, ""), (410, "session-lost"), (410, "session-ended"), (410, "session-ended")]
    assert "envsuite_workers_replaced_total 1\n" in metrics(running.url)


@pytest.mark.seconds
def test_another_request_that_was_under_way_when_a_call_hung_can_be_played_again(start, tmp_path):
    running = start(ROUGH, workers=1)
    hung, other = name(begun(running.url)), name(begun(running.url))
    limit_calls(running, 3.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batch, running.url, step(hung, f"touch {tmp_path / 'hangs'} and sleep 600"))
        until((tmp_path / "hangs").exists)
        time.sleep(1.5)
        second = pool.submit(batch, running.url, step(other, "sleep 600"))
    assert [kind(call.result()[0]) for call in (first, second)] == ["session-lost", "session-ended"]


def test_a_call_that_comes_before_it_is_known_how_a_worker_has_ended_is_told_a_whole_sentence(start, monkeypatch):
    running = start(ROUGH, workers=1)
    session, known = name(begun(running.url)), threading.Event()
    (worker,) = running._pool.workers
    stop = worker._child.stop
    monkeypatch.setattr(worker._child, "stop", lambda grace: (known.wait(60), stop(grace))[1])
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: worker.why is not None)
    for detail in ("the session has ended: worker 0 has ended", f"session {session!r} has ended: worker 0 was killed"):
        (result,) = batch(running.url, step(session, "go"))
        assert (result["status"], kind(result)) == (410, "session-ended")
        assert result["body"]["detail"].startswith(detail)
        known.set()
        until(lambda: not running.front.sessions)


@pytest.mark.seconds
def test_the_deadline_of_a_worker_is_for_each_call_of_a_batch(start):
    running = start(ROUGH, workers=1)
    sessions = [name(begun(running.url)) for _ in range(6)]
    limit_calls(running, 3.5)
    results = batch(running.url, *(step(session, "sleep 0.7") for session in sessions))
    assert [result["status"] for result in results] == [200] * 6


@pytest.mark.seconds
def test_sessions_are_spread_over_workers_and_places_are_given_back(start):
    running = start(ROUGH, workers=2)
    until(lambda: running._pool.ready)
    paths = [begun(running.url) for _ in range(4)]
    assert [worker.sessions for worker in running._pool.workers] == [2, 2]
    for path in paths:
        ask(running.url, "DELETE", path)
    assert [worker.sessions for worker in running._pool.workers] == [0, 0]


def test_a_session_keeps_its_last_snapshots_only_and_another_environment_s_takes_none(start, monkeypatch):
    monkeypatch.setattr(host, "SNAPSHOTS", 2)
    url = start("TextCraft-v0", ROUGH).url
    path = begun(url, "TextCraft-v0")
    first, second, third = (ask(url, "POST", f"{path}/snapshot").body["snapshot"] for _ in range(3))
    gone = ask(url, "POST", f"{path}/restore", {"number": 2, "snapshot": first})
    assert is_problem(gone, 410, "unknown-snapshot", "snapshot")
    for number, snapshot in ((2, second), (3, third)):
        assert ask(url, "POST", f"{path}/restore", {"number": number, "snapshot": snapshot}).status == 200
    reply = ask(url, "POST", f"{begun(url)}/restore", {"number": 2, "snapshot": third})
    assert is_problem(reply, 422, "invalid", "snapshot")


def test_a_snapshot_brings_back_how_many_steps_were_taken_and_a_reset_begins_anew(start):
    url = start().url
    path = begun(url, "TextCraft-v0", max_episode_steps=3)

    def step(number: int) -> bool:
        return bool(
            ask(url, "POST", f"{path}/step", {"number": number, "calls": command("inventory")}).body["truncated"]
        )

    assert not step(2)
    snapshot = ask(url, "POST", f"{path}/snapshot").body["snapshot"]
    assert [step(3), step(4)] == [False, True]
    ask(url, "POST", f"{path}/restore", {"number": 5, "snapshot": snapshot})
    assert [step(6), step(7)] == [False, True]
    ask(url, "POST", f"{path}/reset", {"number": 8})
    assert [step(9), step(10), step(11)] == [False, False, True]


def test_a_generator_that_cannot_be_is_refused(start):
    url = start(ROUGH).url
    path = begun(url)
    for state, inc, status in (("1", "2", 422), (str(2**128), "1", 422), ("1", str(2**128 + 1), 422), ("1", "1", 200)):
        generator = {"state": state, "inc": inc, "has_uint32": 0, "uinteger": 0}
        assert ask(url, "POST", f"{path}/propose", {"generator": generator}).status == status


def lose(running: EnvServer, env: RemoteEnv) -> None:
    """Have the server forget the session, as one does that was started anew."""
    ask(running.url, "DELETE", f"/v1/sessions/{env._session._name}")


def test_an_episode_that_takes_another_course_when_it_is_replayed_is_lost(start, monkeypatch):
    import vector_worlds

    running = start(ROUGH)
    env = RemoteEnv(running.url, ROUGH)
    env.reset(options={"task_id": "a"})
    env.step(GO)
    lose(running, env)
    assert env.step(GO)[0]["text"] == "a 2"
    monkeypatch.setattr(vector_worlds.Rough, "_state_key", lambda world: "elsewhere")
    lose(running, env)
    with pytest.raises(WorkerLost, match="cannot be replayed"):
        env.step(GO)
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        env.step(GO)


def test_an_episode_longer_than_a_request_is_replayed_in_several(start, monkeypatch):
    monkeypatch.setattr(session, "BATCH", 3)
    running = start()
    env = RemoteEnv(running.url, "TextCraft-v0")
    env.reset(seed=0)
    beginning = env.snapshot()
    for _ in range(9):
        assert env.step(get())[4]["valid"]
        lose(running, env)
    token = env.snapshot()
    env.step(get())
    assert strings(env) == "Inventory: [string] (10)"
    lose(running, env)
    env.restore(token)
    assert strings(env) == "Inventory: [string] (9)"
    lose(running, env)
    env.restore(beginning)
    assert not env.done
    env.step(get())
    assert strings(env) == "Inventory: [string] (1)"


def test_a_restore_that_fails_leaves_the_episode_as_it_was(start):
    running = start()
    env = RemoteEnv(running.url, "TextCraft-v0")
    env.reset(seed=0)
    env.step(get())
    token: Any = env.snapshot()
    lose(running, env)
    with pytest.raises(Exception, match="nowhere"):
        env.restore({**token, "task_id": "nowhere"})
    assert strings(env) == "Inventory: [string] (1)"


def test_arguments_are_sent_as_json_has_them(tmp_path):
    assert plain({"a": (1, "x"), "b": {2: tmp_path}, "c": range(2), "d": None, "e": 0.5, "f": True}) == {
        "a": [1, "x"],
        "b": {"2": str(tmp_path)},
        "c": [0, 1],
        "d": None,
        "e": 0.5,
        "f": True,
    }
    with pytest.raises(UsageError, match="object"):
        plain({"a": object()})
