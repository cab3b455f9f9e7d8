"""A pool gives back what was stored, and takes what a query says."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import episode, step
from hypothesis import given
from hypothesis import strategies as st
from played_episodes import episodes

from envsuite.core import ToolCall
from envsuite.core.errors import DataError, UnknownName, UsageError
from envsuite.playing.step import Episode, Step
from trainers.pool import Pool, PoolWriter, Query
from trainers.pool.database import connect
from trainers.settings import ConfigError


@st.composite
def played(draw: st.DrawFn) -> Episode:
    """An episode whose prompts may begin with an earlier prompt and response, or with a part of them."""
    made: list[Step] = []
    for one in draw(episodes(0)).steps:
        before = draw(st.sampled_from([one, *made]))
        prompt: Any = [*[*before.prompt_ids, *before.response_ids][: draw(st.integers(0, 9))], *one.prompt_ids]
        text, reward = draw(st.none() | st.sampled_from(["", "[a]", "[a, b]", "[a, é😀]"])), draw(st.floats(-9, 9))
        made.append(replace(one, prompt_ids=prompt, prompt_text=text, response_text=text, reward=reward))
    return replace(draw(episodes(0)), steps=tuple(made), score=draw(st.floats(0, 1)))


def short(number: int, version: int = 0, **changes: Any) -> Episode:
    """An episode of two steps, the second prompt of which has the first one and its response at its beginning."""
    second = step(1, prompt_ids=(1, 2, 3, 4, number), policy_version=version, reward=1.0)
    return episode(number, step(0, policy_version=version), second, **changes)


def filled(folder: Path, count: int = 12) -> PoolWriter:
    """A pool with groups of two; every third session is of another source, scores rise, versions are 0 to 3."""
    pool = PoolWriter(folder)
    for n in range(count):
        source = "other" if n % 3 == 2 else "run"
        one = short(n, n // 3, score=n / count, success=n % 2 == 0, task_id=f"t{n % 4}", group_id=n // 2)
        pool.store(f"s{n}", one, source=source, tags=["even"] * (n % 2 == 0))
    return pool


@pytest.mark.seconds
@given(st.lists(played(), min_size=1, max_size=3))
def test_what_goes_in_comes_out(tmp_path_factory, batch):
    folder = tmp_path_factory.mktemp("pool")
    with PoolWriter(folder) as pool, Pool(folder) as reader:
        for number, one in enumerate(batch):
            pool.store(f"s{number}", one, group_id=None)
        for number, one in enumerate(batch):
            pool.store(f"s{number}", one, group_id=None)  # the same again changes nothing
        wanted = [replace(one, episode_id=n, group_id=n) for n, one in enumerate(batch, 1)]
        assert reader.episodes() == pool.episodes() == wanted
        assert [one.steps for one in reader.sessions()] == [len(one.steps) for one in batch]


def test_a_prompt_is_stored_as_what_it_adds_to_the_step_that_it_continues(tmp_path):
    with PoolWriter(tmp_path) as pool:
        pool.open_session("s")
        prompt, text = np.arange(1000), "[" + "a" * 1000
        for t in range(20):
            pool.add("s", t, step(t, prompt_ids=prompt, prompt_text=f"{text}]"))
            prompt, text = np.concatenate([prompt, [3, 4, t]]), f"{text}, {t}"
        columns = "SELECT prompt_ids, LENGTH(prompt_text), parent FROM steps"
        tokens, characters, parents = zip(*sqlite3.connect(tmp_path / "pool.sqlite").execute(columns), strict=True)
        assert [len(zlib.decompress(ids)) for ids in tokens] == [4 * 1000, *[4] * 19]
        assert sum(characters) < 1002 + 19 * 6 and parents == (None, *range(19))
        pool.end("s")
        assert pool.episode("s").steps[-1].prompt_text == f"[{'a' * 1000}{''.join(f', {t}' for t in range(19))}]"


def test_a_number_is_one_step_and_a_name_one_session(tmp_path):
    with PoolWriter(tmp_path) as pool:
        pool.open_session("s", task_id=3)
        pool.open_session("s", task_id="3")
        pool.add_all([("s", 7, step(1)), ("s", 2, step(0))])
        pool.add("s", 7, step(1))
        calls: dict[str, Any] = {
            "another step": lambda: pool.add("s", 7, step(1, reward=1.0)),
            "other fields": lambda: pool.open_session("s", task_id="4"),
            "no session 'x'": lambda: pool.add("x", 0, step()),
            "request 9: its reward is nan": lambda: pool.add("s", 9, step(reward=float("nan"))),
            "2 response tokens have 1": lambda: pool.add("s", 9, step(response_logprobs=[0.0])),
            "has images": lambda: pool.add("s", 9, step(images=(np.zeros((1, 1, 3), np.uint8),))),
            "belongs to a tree": lambda: pool.store("t", short(0, tree=0)),
            "score is 2": lambda: pool.end("s", score=2),
            "half of a surrogate pair": lambda: pool.open_session("\ud800"),
            "unknown field of an ending 'sucess'. Nearest: 'success'": lambda: pool.end("s", sucess=True),
            "reward is nan": lambda: pool.reward("s", float("nan")),
        }
        for message, call in calls.items():
            with pytest.raises((UsageError, ConfigError, UnknownName)) as error:
                call()
            assert message in str(error.value) and "\n" not in str(error.value)
        with pytest.raises(ZeroDivisionError), pool.together():
            pool.add("s", 9, step(2, prompt_ids=(1, 2, 3, 4, 5)))
            raise ZeroDivisionError
        pool.end("s", truncated=True)
        pool.end("s", truncated=True)
        pool.add("s", 7, step(1))
        for call in (lambda: pool.add("s", 9, step()), lambda: pool.end("s"), calls["another step"]):
            with pytest.raises(UsageError, match=r"ended|another step"):
                call()
        assert pool.episode("s").steps == (step(0), step(1)), "in the order of their numbers"


def test_a_reward_that_comes_later_is_earned_by_the_last_step(tmp_path):
    with PoolWriter(tmp_path) as pool:
        pool.store("s", short(0))
        last = step(2, agent="b", info={"rewards": {"a": 1.0, "b": 2.0}})
        pool.store("team", episode(1, step(0, agent="a", info={"rewards": {}}), last))
        pool.open_session("early")
        pool.reward("early", 0.0, score=0.5)
        pool.end("early", score=0.1)
        for name in ("s", "s", "team"):
            pool.reward(name, 0.25, success=True)
        assert [one.reward for one in pool.episode("s").steps] == [0.0, 1.25]
        assert pool.episode("team").own_rewards == [1.0, 2.25]
        assert [(one.success, one.score) for one in pool.sessions()] == [(True, 0.0), (True, 0.0), (False, 0.5)]


QUERIES: dict[str, tuple[Any, list[int]]] = {
    "source": ({"source": "other"}, [2, 5, 8, 11]),
    "tags": ({"tags": ["even"]}, [0, 2, 4, 6, 8, 10]),
    "no such tag": ({"tags": ["even", "odd"]}, []),
    "newest versions": ({"newest_versions": 2}, [6, 7, 8, 9, 10, 11]),
    "score": ({"min_score": 0.75}, [9, 10, 11]),
    "success": ({"success": False, "order": "newest", "limit": 2}, [11, 9]),
    "per task": ({"per_task": 1}, [0, 1, 2, 3]),
    "groups": ({"group_size": 2, "source": "run"}, [0, 1, 6, 7]),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_finds_what_it_says(tmp_path, name):
    with filled(tmp_path) as pool:
        asked, wanted = QUERIES[name]
        found = pool.sessions(Query(**{"order": "oldest", **asked}))
        assert [one.session for one in found] == [f"s{n}" for n in wanted]


@pytest.mark.seconds
@given(st.data())
def test_takes_are_equal_for_equal_arguments_and_never_repeat(tmp_path_factory, data):
    asked = st.sampled_from([{}, {"order": "oldest"}, {"per_task": 2}, {"group_size": 2}, {"success": True}])
    query, seed = Query(**data.draw(asked)), data.draw(st.integers(0, 3))
    counts = data.draw(st.lists(st.integers(0, 5), max_size=4))
    folder = tmp_path_factory.mktemp("pool")
    with filled(folder) as pool, Pool(folder) as reader:
        pool.store("failed", short(90, error="lost"))
        pool.store("greedy", short(91, greedy=True))
        pool.store("endpoint", episode(92, step(prompt_ids=(), response_ids=(), response_logprobs=())))
        state, takes = None, []
        for count in counts:
            found, after = reader.take(query, count, seed, state)
            takes.append((state, found, pool.mark))
            most = max(Counter(one.task_id for one in found).values(), default=0)
            assert len(found) <= count and most <= (query.per_task or count)
            state = json.loads(json.dumps(after))
        numbers = [one.episode_id for _, found, _ in takes for one in found]
        assert len({*numbers}) == len(numbers) and not {13, 14, 15} & {*numbers}
        for name in ("later", "latest"):
            pool.store(name, short(93, 9), source="run")
        for state, found, mark in takes:
            assert reader.take(query, len(found), seed, state, mark)[0] == found
        if query == Query() and counts:
            whole, _ = reader.take(query, sum(counts), seed, None, mark)
            assert [one.episode_id for one in whole] == numbers


def test_readers_go_on_while_the_writer_deletes(tmp_path):
    with filled(tmp_path) as pool, Pool(tmp_path) as reader, ThreadPoolExecutor() as threads:
        whole = {one.episode_id: one for one in reader.episodes()}
        ended = threading.Event()

        def read() -> int:
            times = 0
            while not ended.is_set() or not times:
                assert all(whole[one.episode_id] == one for one in reader.episodes())
                times += 1
            return times

        reading = threads.submit(read)
        for n in range(11):
            pool.delete([f"s{n}"])
        ended.set()
        assert reading.result() and [one.session for one in reader.sessions()] == ["s11"]


def test_a_state_of_another_pool_is_refused(tmp_path):
    with filled(tmp_path / "a") as one, filled(tmp_path / "b") as other:
        _, state = one.take(Query(), 1, 0)
        with pytest.raises(UsageError, match="another pool"):
            other.take(Query(), 1, 0, state)
        assert len(one.take(Query(), 99, 0, state)[0]) == 11


def test_deleted_sessions_are_gone_from_the_files_and_others_stay(tmp_path):
    with PoolWriter(tmp_path) as pool:
        for n in range(6):
            word = "secret" if n in (1, 3, 5) else "plain"
            pool.store(f"s{n}", episode(n, step(prompt_text=f"{word}-{n}" * 9), step(1, prompt_ids=range(n, 200))))
        pool.open_session("open")
        pool.add("open", 0, step(prompt_text="secret-open"))
        assert b"secret" in _content(tmp_path)
        before = {one.session: pool.episode(one.session) for one in pool.sessions()}
        with pytest.raises(UsageError, match="no session"):
            pool.delete(["s1", "nothing"])
        pool.delete(["s1", "s3", "s5", "open"])
        after = {one.session: pool.episode(one.session) for one in pool.sessions()}
        assert after == {name: one for name, one in before.items() if name in ("s0", "s2", "s4")}
        assert b"plain" in _content(tmp_path) and b"secret" not in _content(tmp_path)
        pool.open_session("new")
        assert pool.session("new").number == 8, "a number is never given twice"


@pytest.mark.parametrize("stopped", ["by a kill", "by a reader"])
def test_a_deletion_that_was_stopped_ends_when_the_pool_is_written_next(tmp_path, stopped, monkeypatch, caplog):
    with PoolWriter(tmp_path) as pool, ExitStack() as stack:
        pool.store("s", episode(0, step(prompt_text="secret" * 9)))
        if stopped == "by a kill":  # after what it stored, and before it writes the file anew
            monkeypatch.setattr(PoolWriter, "_erase", lambda pool: None)
        else:
            base = stack.enter_context(closing(connect(tmp_path, False)))
            base.execute("BEGIN")
            base.execute("SELECT * FROM steps").fetchall()
            pool._do("PRAGMA busy_timeout = 10")
        pool.delete(["s"])
        assert b"secret" in _content(tmp_path)
        assert ("a reader holds it" in caplog.text) is (stopped == "by a reader")
    monkeypatch.undo()
    with PoolWriter(tmp_path):
        assert b"secret" not in _content(tmp_path)


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


HOOK = """
def clean(text):
    return None if text == "drop" else text.replace("Ann", "somebody")

def wrong(text):
    return 1

def fails(text):
    raise KeyError(text)
"""


def test_a_hook_sees_every_text_and_what_follows_a_change_has_no_tokens(tmp_path):
    (tmp_path / "hook.py").write_text(HOOK)
    hook = f"{tmp_path / 'hook.py'}:clean"
    call = (ToolCall("say", {"text": "Hi Ann", "n": 1}),)
    told = step(1, observation="Ann is here", action=call, info={"names": ["Ann", 2]}, response_text="drop")
    with PoolWriter(tmp_path / "pool", hook=hook) as pool:
        pool.store("s", episode(0, step(), told, step(2), last_observation="Bye Ann"))
        pool.store("task", episode(1, step(), task="Find Ann"))
        pool.store("plain", episode(2, step()))
        pool.store("s", episode(0, step(), told, step(2), last_observation="Bye Ann"))
        first, second, third = pool.episode("s").steps
        assert first == step() and [len(one.prompt_ids) for one in (second, third)] == [0, 0]
        assert second.observation == "somebody is here" and second.info == {"names": ["somebody", 2]}
        assert second.action == (ToolCall("say", {"text": "Hi somebody", "n": 1}),) and second.response_text == ""
        assert pool.episode("s").last_observation == "Bye somebody" and pool.session("s").bare == 2
        assert pool.episode("task").task == "Find somebody" and not len(pool.episode("task").steps[0].response_ids)
        assert [one.episode_id for one in pool.take(Query(), 9, 0)[0]] == [3], "others are never trained on"
    said = {"wrong": "it returned int", "fails": "KeyError: ''; nothing was stored", "none": "no function none"}
    for name, message in said.items():
        with (
            pytest.raises(UsageError, match=message),
            PoolWriter(tmp_path / name, hook=hook.replace("clean", name)) as pool,
        ):
            pool.open_session("s")
    with pytest.raises(UsageError, match=r"is not file.py:function"):
        PoolWriter(tmp_path / "x", hook="none.py:clean")


def test_one_process_writes_and_others_read(tmp_path):
    code = "import sys; from trainers.pool import PoolWriter; "
    code += "PoolWriter(sys.argv[1], 'the gateway').open_session('s'); print()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-uc", f"{code}; sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(UsageError, match=rf"in use by the gateway \(pid {process.pid}\); one process"):
            PoolWriter(tmp_path)
        with Pool(tmp_path) as reader:
            assert [one.session for one in reader.sessions()] == ["s"]
        process.kill()
    with PoolWriter(tmp_path) as pool:
        assert [one.session for one in pool.sessions()] == ["s"]
        assert pool._rows("PRAGMA synchronous")[0][0] == 2 and pool._rows("PRAGMA journal_mode")[0][0] == "wal"


def test_what_is_no_pool_or_damaged_is_told_in_one_line(tmp_path):
    def error(folder: Path, kind: type[Pool] = Pool) -> str:
        with pytest.raises(DataError) as caught, kind(folder) as pool:
            pool.episodes()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert error(tmp_path / "none") == f"{tmp_path / 'none'}: not a pool (it has no pool.sqlite)"
    (tmp_path / "pool.sqlite").write_bytes(b"no database " * 99)
    assert "file is not a database" in error(tmp_path) and "file is not a database" in error(tmp_path, PoolWriter)
    (tmp_path / "pool.sqlite").unlink()
    with sqlite3.connect(tmp_path / "pool.sqlite") as other:
        other.execute("CREATE TABLE x (y)")
    assert "not a pool, or one of another version" in error(tmp_path, PoolWriter)
    filled(tmp_path / "good").close()
    for column in ("rest", "prompt_ids"):
        with sqlite3.connect(tmp_path / "good" / "pool.sqlite") as base:
            base.execute(f"UPDATE steps SET {column} = substr({column}, 1, 9) WHERE place = 3")
        assert error(tmp_path / "good").startswith(f"{tmp_path / 'good'}, session 2: a row is damaged (")
