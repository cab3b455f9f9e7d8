"""Demonstrations: what a file says is what happened, and playing it again gives the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsuite.core import DataError, ToolCall, ToolEnv, UnparsedAction, UsageError
from envsuite.core.registration import builtin
from envsuite.evaluation.demonstrations.collecting import CollectionOrder, collect
from envsuite.evaluation.demonstrations.demonstration import Demonstration, DemonstrationStep
from envsuite.evaluation.demonstrations.file import COLUMNS, add_demonstration, line_of, read_demonstrations, read_rows
from envsuite.evaluation.demonstrations.messages import FORMS, messages_of
from envsuite.evaluation.demonstrations.playing import demonstrate, replay, take_step
from envsuite.prompting import make_codec
from envsuite.remote.making import horizon_of, make, make_player

IDS = [spec.id for spec in builtin()]
Worlds = dict[str, tuple[ToolEnv, ToolEnv]]
FEW = {"ALFWorld-v0": {"source": "builtin", "games": 18}}
"""Arguments that make few games: by default there are hundreds."""


@pytest.fixture(scope="module")
def worlds(data_folder: Path) -> Worlds:
    """Two environments of each id."""
    return {env_id: (make(env_id, **FEW.get(env_id, {})), make(env_id, **FEW.get(env_id, {}))) for env_id in IDS}


def some_episode(env: ToolEnv, task_id: str | None = None, seed: int = 0, wild: int = 0) -> Demonstration:
    """An episode, of the first task if none is named, in which the expert plays but for some random steps at first."""
    task_id, expert = task_id or env.tasks.ids("train")[0], make_player(env.tasks.env_id, "expert")
    env.action_space.seed(seed)
    left = wild

    def act(world: ToolEnv) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            return UnparsedAction("no action") if left % 4 == 3 else world.action_space.sample()
        return expert.act(world)

    return demonstrate(env, task_id, act, horizon_of(env.tasks.env_id), env_options={}, player="test", seed=seed)


@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id != "BFCL-v0"])  # tests/bfcl plays it again
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 10**6), seed=st.integers(0, 2**31), wild=st.integers(0, 6), form=st.sampled_from(FORMS))
def test_what_is_exported_and_read_again_plays_as_it_did(
    env_id, place, seed, wild, form, worlds,
    tmp_path_factory
):  # fmt: skip
    env, other = worlds[env_id]
    ids = env.tasks.ids("train")
    shown = some_episode(env, ids[place % len(ids)], seed, wild)
    path = tmp_path_factory.mktemp("demos") / "one.jsonl"
    path.write_bytes(line_of(shown, form))
    ((row, read),) = read_rows(path)
    assert read == shown and row.keys() == COLUMNS.keys()
    assert replay(other, read) == shown
    assert (row["success"], row["steps"], row["reward"]) == (shown.success, len(shown.steps), shown.reward)
    # The messages have the same actions, which the codec reads out of them, and the same observations.
    actions = [step.action for step in shown.steps if not isinstance(step.action, UnparsedAction)]
    said = [message for message in row["messages"] if message["role"] == "assistant"]
    if form == "native":
        calls = [[call["function"] for call in message["tool_calls"]] for message in said]
        assert [tuple(ToolCall(one["name"], one["arguments"]) for one in some) for some in calls] == actions
        assert json.loads(row["tools"]) == [tool.as_openai() for tool in env.tools]
    else:
        codec = make_codec(form)
        assert [codec.parse(one["content"], env.tools, env.max_calls).action for one in said] == actions
        assert row["tools"] is None and env.tools[0].description in row["messages"][0]["content"]
    if actions:
        assert row["messages"][-1] is said[-1] and shown.first["task"] in row["messages"][1]["content"]


@pytest.mark.parametrize("env_id", IDS)
def test_the_expert_s_demonstrations_solve_their_tasks(env_id, tmp_path, console):
    path = tmp_path / "some.jsonl"
    few = " ".join(f"--option={name}={value}" for name, value in FEW.get(env_id, {}).items())
    console(f"export demos {env_id} --n 3 --seed 7 --out {path} {few}")
    found = read_demonstrations(path)
    assert len({one.task_id for one in found}) == 3
    assert all(one.success and one.split == "train" and one.player == "expert" and one.seed == 7 for one in found)
    card = path.with_suffix(".md").read_text()
    assert found[0].manifest in card and "3, of which 3 solved their task" in card


def test_a_replay_that_differs_is_said_with_its_step(worlds):
    env, other = worlds["TextCraft-v0"]
    shown = some_episode(env)
    wrong = replace(shown.steps[1], observation={**shown.steps[1].observation, "text": "Nothing."})
    with pytest.raises(DataError, match=r"step 2: text is .* here and 'Nothing.' in the demonstration"):
        replay(other, replace(shown, steps=(shown.steps[0], wrong, *shown.steps[2:])))
    with pytest.raises(DataError, match="success is False here"):
        replay(other, replace(shown, steps=shown.steps[:1]))
    with pytest.raises(DataError, match="ends after step"):
        replay(other, replace(shown, steps=(*shown.steps, shown.steps[0])))


def test_calls_that_are_no_json_are_kept_as_what_the_environment_said(worlds):
    env, other = worlds["TextCraft-v0"]
    first, _ = env.reset(options={"task_id": env.tasks.ids("train")[0]})
    step, info = take_step(env, (ToolCall("env_step", {"command": "get \ud800"}),))
    shown = Demonstration.of(env, first, [step], info, env_options={}, player="test")
    assert isinstance(shown.steps[0].action, UnparsedAction) and replay(other, shown) == shown
    assert messages_of(shown)[0][-1]["role"] == "user"  # no action, no message


def test_thoughts_are_said_before_the_calls(worlds):
    env, _ = worlds["WebShop-v0"]
    shown = some_episode(env)
    thinking = replace(shown, steps=tuple(replace(step, thought=f"It is {n}.") for n, step in enumerate(shown.steps)))
    native = [m for m in messages_of(thinking)[0] if m["role"] == "assistant"]
    tagged = [m for m in messages_of(thinking, "tags")[0] if m["role"] == "assistant"]
    assert native[1]["content"] == "It is 1." and native[1]["tool_calls"]
    assert tagged[1]["content"].startswith("<think>It is 1.</think><action>")
    assert "<think>" in messages_of(thinking, "tags")[0][0]["content"]
    assert "<think>" not in messages_of(shown, "tags")[0][0]["content"]


def test_images_are_refused():
    env = make("Sokoban-v0", observation="both")
    with pytest.raises(UsageError, match="shows images"):
        some_episode(env)


# A collection in a process that is killed before its sixth demonstration.
KILLED = """
import os, sys
from pathlib import Path
from envsuite.evaluation.demonstrations import collecting

def add(partial, shown, add=collecting._Partial.add):
    if partial.size == 5:
        os.kill(os.getpid(), 9)
    add(partial, shown)

collecting._Partial.add = add
collecting.collect(collecting.CollectionOrder("TextCraft-v0", 40), Path(sys.argv[1]))
"""


def test_an_interrupted_collection_goes_on_where_it_stopped(tmp_path):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    collect(CollectionOrder("TextCraft-v0", 40), whole)
    assert subprocess.run([sys.executable, "-c", KILLED, str(cut)]).returncode == -signal.SIGKILL
    assert not cut.exists()
    partial = tmp_path / ".cut.jsonl.partial"
    with partial.open("ab") as file:
        file.write(b'{"task": "cut in the mid')
    found = collect(CollectionOrder("TextCraft-v0", 40), cut)
    assert found.resumed == 5 and cut.read_bytes() == whole.read_bytes() and not partial.exists()


def test_no_file_of_somebody_is_written_over(tmp_path, console):
    """The data card would be: notes of that name."""
    notes, out = tmp_path / "x.md", tmp_path / "x.jsonl"
    notes.write_text("mine")
    order = CollectionOrder("TextCraft-v0", 1)
    with pytest.raises(UsageError, match=r"x\.md exists"):
        collect(order, out)
    assert notes.read_text() == "mine" and not out.exists()
    notes.unlink()
    collect(order, out)
    content = out.read_bytes()
    assert "exists" in console(f"export demos {out} --form tags --out {out}", 2)[1] and out.read_bytes() == content


def test_two_that_add_to_a_file_at_once_lose_nothing(tmp_path, worlds):
    env = worlds["TextCraft-v0"][0]
    shown = [some_episode(env, task_id) for task_id in env.tasks.ids("train")[:12]]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: add_demonstration(tmp_path / "x.jsonl", one), shown))
    assert {one.task_id for one in read_demonstrations(tmp_path / "x.jsonl")} == {one.task_id for one in shown}


def test_another_order_does_not_continue_a_collection(tmp_path):
    path = tmp_path / "some.jsonl"
    with pytest.raises(UsageError, match="all 24 tasks are played, and 14 of 20 demonstrations are there"):
        collect(CollectionOrder("Sokoban-v0", 20, env_options=LONG), path)
    with pytest.raises(UsageError, match=r"another order \(seed 0, now 1\)"):
        collect(CollectionOrder("Sokoban-v0", 20, env_options=LONG, seed=1), path)
    assert collect(CollectionOrder("Sokoban-v0", 14, env_options=LONG), path).resumed == 24
    with pytest.raises(UsageError, match="exists"):
        collect(CollectionOrder("Sokoban-v0", 14, env_options=LONG), path)


LONG = {"source": "generated", "levels": 30, "boxes": 3, "width": 7, "height": 7}
"""Levels of which the expert does not solve all within 15 moves."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("TextCraft-v1 --n 1", "unknown environment 'TextCraft-v1'"),
        ("TextCraft-v0", "--n is missing"),
        ("TextCraft-v0 --n 0", "Give --n 1 to 168"),
        ("TextCraft-v0 --n 9999", "split 'train' has 168 tasks"),
        ("TextCraft-v0 --n 1 --split dev", "unknown split"),
        ("TextCraft-v0 --n 1 --types depth-9", "depth-9"),
        ("TextCraft-v0 --n 1 --player nobody", "unknown player of TextCraft-v0 'nobody'"),
        ("TextCraft-v0 --n 1 --option golas=3", "unknown argument of TextCraft-v0 'golas'"),
        ("TextCraft-v0 --n 1 --option max_distractors=few", "max_distractors='few': expected whole number"),
        ("TextCraft-v0 --n 1 --form atif", "converts a file"),
        ("nothing.jsonl", "nothing.jsonl: cannot be read"),
    ],
)
def test_bad_input_is_one_message(words, said, tmp_path, console):
    _, error = console(f"export demos {words} --out {tmp_path}/x.jsonl", 2)
    assert said in error and "Traceback" not in error and not (tmp_path / "x.jsonl").exists()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_is_a_data_error(data, worlds, tmp_path_factory):
    env, _ = worlds["TextCraft-v0"]
    row = json.loads(line_of(some_episode(env)))
    episode = json.loads(row["episode"])
    spoilt = st.sampled_from([None, 3, "x", [], {}, [3], {"a": 1}])
    place = data.draw(st.sampled_from([(episode, name) for name in episode]
                                      + [(episode["steps"][0], name) for name in episode["steps"][0]]
                                      + [(episode["first"], name) for name in episode["first"]]))  # fmt: skip
    place[0][place[1]] = data.draw(spoilt)
    path = tmp_path_factory.mktemp("spoilt") / "one.jsonl"
    path.write_text(json.dumps({**row, "episode": json.dumps(episode)}))
    try:
        (read,) = read_demonstrations(path)
    except DataError as error:
        assert "line 1" in str(error)
    else:  # what is there is of the right kind
        assert isinstance(read, Demonstration) and all(isinstance(step, DemonstrationStep) for step in read.steps)
        line_of(read)


def test_a_file_is_converted(tmp_path, console):
    path, tagged, folder = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "atif"
    collect(CollectionOrder("PythonMath-v0", 2), path)
    console(f"export demos {path} --form tags --out {tagged}")
    assert read_demonstrations(tagged) == read_demonstrations(path)
    out, _ = console(f"export demos {path} --form atif --out {folder}")
    assert out.endswith(f"2 demonstrations in {folder}\n") and len(list(folder.iterdir())) == 2
    path.write_bytes(line_of(replace(read_demonstrations(path)[0], success=False)))
    assert "--unsolved" in console(f"export demos {path} --form tags --out {tmp_path}/c.jsonl", 2)[1]
