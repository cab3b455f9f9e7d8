"""Vectors whose environments are on servers, and a run on two of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from driving import answers, do, one, reset_all
from waiting import until

from envsuite.core import ToolCall, UsageError
from envsuite.remote import transport
from envsuite.vector import EnvFactory, RemoteVector, Vector, VectorEvent, make_vector, members, remote

COMMANDS = ["inventory", "get 2 oak logs", "get 1 bamboo", "craft 1 stick using 2 bamboo", "nonsense", "\x00", "\udc00"]
ROUGH = "vector_worlds:Rough-v0"


def play(vector: Vector) -> list[list[VectorEvent]]:
    """Every event of a fixed script on all slots, in order of slots."""
    script: list[Callable[[int], None]] = [
        lambda slot: vector.reset(slot, slot % 2, task_id=None if slot % 2 else "cyan_banner", seed=slot)
    ]
    script += [
        lambda slot, c=c: vector.step(slot, (ToolCall("env_step", {"command": c}),))  # type: ignore[misc]
        for c in COMMANDS
    ]
    history = []
    for call in script:
        for slot in range(vector.slots):
            call(slot)
        events = answers(vector, vector.slots)
        history.append([events[slot] for slot in range(vector.slots)])
    return history


def factories(**where: Any) -> list[EnvFactory]:
    generated = {"source": "generated", "book_seed": 3, "goals": 40, "max_episode_steps": 7}
    return [EnvFactory("TextCraft-v0", where), EnvFactory("TextCraft-v0", {**generated, **where})]


def test_a_vector_in_workers_or_on_servers_plays_the_same_episodes_as_one_here(start):
    first, second = start(), start()
    histories = []
    places: list[tuple[dict[str, Any], int]] = [({}, 0), ({}, 1), ({}, 3)]
    for where, workers in (*places, ({"url": first.url}, 0), ({"url": [first.url, second.url]}, 0)):
        with make_vector(factories(**where), 7, workers) as vector:
            assert isinstance(vector, RemoteVector) == bool(where)
            histories.append(play(vector))
            assert vector.tools(0) == vector.tools(1) and vector.max_calls(0) == 1
            if isinstance(where.get("url"), list):
                assert abs(first.front.sessions - second.front.sessions) <= 2
    assert all(history == histories[0] for history in histories)
    assert [event.truncated for event in histories[0][7]] == [False, True] * 3 + [False]
    assert first.front.sessions == second.front.sessions == 0


@pytest.mark.seconds
def test_steps_that_are_quick_are_answered_together_however_busy_a_server_is(start, monkeypatch):
    busy, idle = start(), start()
    batch = busy.front.batch

    def late(calls: Any) -> Any:
        time.sleep(1.3)  # more than is waited for environments that may take their time
        return batch(calls)

    with make_vector([EnvFactory("TextCraft-v0", {"url": [busy.url, idle.url]})], 4) as vector:
        monkeypatch.setattr(busy.front, "batch", late)
        for slot in range(4):
            vector.reset(slot, 0, seed=slot)
        assert [event.slot for event in vector.poll(0.0)] == [0, 1, 2, 3]


def test_a_slow_call_holds_up_no_other_of_its_server(start, tmp_path):
    running = start(ROUGH)
    with make_vector([EnvFactory(ROUGH, {"url": running.url})], 6) as vector:
        reset_all(vector, task_id="a")
        for slot in range(6):
            vector.step(slot, do("go" if slot else f"wait {tmp_path / 'file'}"))
        assert sorted(answers(vector, 5)) == [1, 2, 3, 4, 5]
        (tmp_path / "file").touch()
        assert list(answers(vector, 1)) == [0]


def test_a_call_that_is_not_answered_fails_by_twice_the_deadline_and_its_late_answer_is_no_event(
    start, monkeypatch, tmp_path
):
    monkeypatch.setattr(members, "DOWN_SECONDS", 0.0)
    running = start(ROUGH)  # its own deadline does not hold here: it has no workers
    with make_vector([EnvFactory(ROUGH, {"url": running.url})], 1) as vector:
        assert isinstance(vector, RemoteVector)
        assert reset_all(vector, task_id="a")[0].error is None
        vector.step(0, do(f"wait {tmp_path / 'file'}"))
        assert vector.poll(0.0) == []
        vector.deadline = 0.4
        (event,) = vector.poll(30.0)
        vector.deadline = 60.0
        where = f"step of slot 0 ({ROUGH} at {running.url})"
        assert event.error == f"DeadlineExceeded: {where} was not answered for 0.8 s"
        event = reset_all(vector, task_id="b")[0]
        assert event.error is None and event.info is not None and event.info["task_id"] == "b"
        (tmp_path / "file").touch()
        until(lambda: not vector._events.empty())
        assert vector.poll(0.0) == [], "the answer to the call that was given up"
        event = one(vector, 0, lambda: vector.step(0, do("go")))
        assert event.observation is not None and event.observation["text"] == "b 1"


def test_a_vector_is_on_servers_or_here_and_not_both(server):
    with pytest.raises(UsageError, match="give one to every environment"):
        make_vector([EnvFactory("TextCraft-v0", {"url": server}), EnvFactory("TextCraft-v0")], 1)
    with pytest.raises(UsageError, match=r"cannot be made: UnknownTask: .*'tst'"):
        make_vector([EnvFactory("TextCraft-v0", {"url": server, "split": "tst"})], 1)
    vector = make_vector([EnvFactory("TextCraft-v0", {"url": server})], 2)
    vector.reset(0, 0)
    assert str(vector.waiting_for()).startswith(f"reset of slot 0 (TextCraft-v0 at {server}), for ")
    vector.close()
    vector.close()
    with pytest.raises(UsageError, match="closed"):
        vector.reset(1, 0)


def test_more_calls_than_a_request_takes_are_sent_in_several(start, monkeypatch):
    monkeypatch.setattr(remote, "BATCH", 3)
    running = start()
    sizes: list[int] = []
    batch = running.front.batch

    def noted(calls: Any) -> Any:
        sizes.append(len(calls))
        return batch(calls)

    monkeypatch.setattr(running.front, "batch", noted)
    with make_vector([EnvFactory("TextCraft-v0", {"url": running.url})], 8) as vector:
        assert sorted(reset_all(vector)) == list(range(8))
        assert sorted(sizes) == [2, 2, 3, 3, 3, 3], "makings and resets"
        assert running.front.sessions == 8
    assert running.front.sessions == 0


def test_a_refused_request_to_close_sessions_keeps_no_others_open(start, monkeypatch):
    monkeypatch.setattr(remote, "BATCH", 2)
    running = start()
    there, refusals = transport.server(running.url), [transport.RequestRefused(running.url, 401, {})]
    ask = there.ask

    def once_refused(*request: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return ask(*request)

    with make_vector([EnvFactory("TextCraft-v0", {"url": running.url})], 5) as vector:
        assert len(reset_all(vector)) == running.front.sessions == 5
        monkeypatch.setattr(there, "ask", once_refused)
    assert not refusals and running.front.sessions == 2, "those of the first of three requests"


@pytest.mark.seconds
def test_a_server_that_did_not_answer_gets_no_new_episodes_until_it_had_time_to_come_back(start, monkeypatch):
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 0.4)
    monkeypatch.setattr(members, "DOWN_SECONDS", 3.0)
    first, second = start(), start()
    port = int(first.url.rpartition(":")[2])
    with make_vector([EnvFactory("TextCraft-v0", {"url": [first.url, second.url]})], 4) as vector:
        assert not [event for event in reset_all(vector).values() if event.error]
        first.stop()
        until(lambda: first._http.ended)
        assert not [event for event in reset_all(vector).values() if event.error]
        back = start(port=port)
        assert not [event for event in reset_all(vector).values() if event.error]
        assert (back.front.sessions, second.front.sessions) == (0, 4)
        time.sleep(3.0)
        assert not [event for event in reset_all(vector).values() if event.error]
        assert back.front.sessions == 2


@pytest.mark.slow
def test_a_run_on_two_servers_is_the_run_in_process_to_the_last_bit(start, tmp_path):
    from tiny_runs import save_model, train, weights, without_times, write_settings

    save_model(tmp_path / "model")
    urls = [start().url, start().url]
    records, bits = [], []
    for name, url in (("here", "null"), ("there", f"[{urls[0]}, {urls[1]}]")):
        config = write_settings(tmp_path, name=name)
        run = train("--config", str(config), f"--envs={_envs(url)}", timeout=1200)
        assert run.returncode == 0, run.stderr
        records.append(without_times(tmp_path / "runs" / name))
        last = sorted((tmp_path / "runs" / name / "checkpoints").glob("iteration-*"))[-1]
        bits.append(weights(last))
    assert records[0] == records[1] and bits[0] == bits[1]
    assert len(records[0]) == 7


def _envs(url: str) -> str:
    from tiny_runs import BOOK

    kwargs = ", ".join(f"{name}: {value}" for name, value in BOOK.items())
    return f"[{{id: TextCraft-v0, kwargs: {{{kwargs}}}, max_episode_steps: 3, url: {url}}}]"
