"""Environments of functions in a file, and what can be wrong with one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite import Environment, register
from envsuite.cli import main
from envsuite.core import Outcome, ToolCall, ToolEnv, UsageError
from envsuite.core.functions import draw_value, schema_of
from envsuite.core.naming import spec_of
from envsuite.core.registration import ENVIRONMENTS, NAMED
from envsuite.core.tools import Tool
from envsuite.evaluation.protocol import measured_splits
from envsuite.remote.making import make_player
from envsuite.testing import checks

LOCK = """
from typing import Annotated

from envsuite import Environment

env = Environment({"train": range(80), "test": range(80, 100)}, goal="Open the lock.", steps=20)


@env.start
def start(number):
    return {"number": number, "open": False}, "The dial is at rest."


@env.tool
def turn(world, number: Annotated[int, {"minimum": 0, "maximum": 99}]):
    '''Turn the dial to a number from 0 to 99.

    Args:
        number: Where to turn to.
    '''
    world["open"] = number == world["number"]
    return "It opens." if world["open"] else f"{'Higher' if number < world['number'] else 'Lower'} than {number}."


@env.reward
def reward(world):
    return 1.0 if world["open"] else None
"""
HEAD = "from envsuite import Environment\nenv = Environment([1, 2], goal='Go.')\n"
TOOL = "@env.tool\ndef go(world):\n    'Go.'\n    return 'gone'\n"


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to work in; files that a test registers are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NAMED, "")
    yield
    for env_id in [name for name in ENVIRONMENTS if name.endswith(".py")]:
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]


@pytest.fixture
def lock() -> str:
    """The id of an environment without an expert."""
    Path("lock.py").write_text(LOCK)
    register("lock.py")
    return "lock.py"


def world_of(env: Environment, split: str = "train") -> ToolEnv:
    """An environment that no file has."""
    made: Any = env.make_class("file.py", "file.py", "1")
    world: ToolEnv = made(split=split)
    return world


def test_an_environment_of_functions_keeps_the_contract(lock):
    for check in checks(lock):
        check()


def test_a_file_without_an_expert_says_what_to_write(lock, capsys):
    for words in (
        "eval run lock.py --policy expert",
        "export demos lock.py --n 1 --out x.jsonl",
        "imitate --env lock.py",
    ):
        assert main(words.split()) == 2
        assert "write @env.expert above a function" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["'turn'", "('turn', 5)", "({'number': 5}, 'turn')", "5"])
def test_an_expert_that_returns_no_call_is_told(lock, call):
    Path("wise.py").write_text(LOCK + f"\n\n@env.expert\ndef expert(world):\n    return {call}\n")
    register("wise.py")
    player, made = make_player("wise.py", "expert"), gymnasium.make("wise.py")
    made.reset(seed=0)
    with pytest.raises(UsageError, match=r"expert has to return a call, such as \('turn', {'number': 50}\)"):
        player.act(made)


def test_an_expert_changes_nothing_and_may_know_no_call(lock):
    expert = "def expert(world):\n    return None if world['open'] else ('turn', {'number': world.pop('number')})\n"
    Path("wise.py").write_text(f"{LOCK}\n\n@env.expert\n{expert}")
    register("wise.py")
    player, made = make_player("wise.py", "expert"), gymnasium.make("wise.py")
    with pytest.raises(UsageError, match="no running episode"):
        player.act(made)
    made.reset(options={"task_id": "train-7"})
    assert player.act(made) == player.act(made) == (ToolCall("turn", {"number": 7}),)
    assert made.step(player.act(made))[4]["success"]


def test_the_tool_is_made_of_types_and_docstring(lock):
    (tool,) = gymnasium.make(lock).unwrapped.tools  # type: ignore[attr-defined]
    number = {"type": "integer", "minimum": 0, "maximum": 99, "description": "Where to turn to."}
    assert tool == Tool(
        "turn",
        "Turn the dial to a number from 0 to 99.",
        {"type": "object", "properties": {"number": number}, "required": ["number"], "additionalProperties": False},
    )


def test_processes_that_are_started_have_it(lock, capsys, tmp_path):
    assert main(["eval", "run", lock, "--policy", "random", "--seeds", "1", "--sample", "4"]) == 0
    assert "4 of 4 episodes" in capsys.readouterr().err
    assert os.environ[NAMED] == f"lock.py={tmp_path / 'lock.py'}"


def test_a_refused_call_changes_nothing():
    env = Environment([{"id": "only", "type": "kind", "left": 2}], goal=lambda task: f"Take {task['left']}.")
    env.start(lambda task: (task, "begin"))

    @env.tool
    def take(world: dict[str, int], n: int = 1) -> str:
        """Take some."""
        world["left"] -= n
        if world["left"] < 0:
            raise ValueError("So many are not there.")
        return f"{world['left']} left"

    env.reward(lambda world: 0.5 if world["left"] == 0 else None)
    world = world_of(env)
    assert world.goal("only") == "Take 2." and world.tasks.types == {"only": "kind"}
    for _ in range(2):  # the world of the first episode is not that of the second
        world.reset()
        seen, _, _, _, info = world.step([ToolCall("take", {"n": 3})])
        assert (seen["text"], info["valid"], info["error"]) == ("So many are not there.", False, seen["text"])
        assert world.step([ToolCall("take", {})])[0]["text"] == "1 left"
        _, reward, ended, _, info = world.step([ToolCall("take", {})])
        assert (reward, ended, info["success"], info["score"]) == (0.5, True, False, 0.5)


def test_a_start_that_returns_no_pair_is_told():
    env = Environment([1], goal="Go.")
    env.start(lambda task: {"task": task})  # type: ignore[arg-type,return-value]
    env.tool(as_tool)
    with pytest.raises(UsageError, match="start has to return the world and the first text, a pair; it returned"):
        world_of(env).reset()


def as_tool(world: Any) -> str:
    """Does nothing."""
    return ""


def test_a_tool_may_return_an_outcome_and_a_world_its_key():
    env = Environment({"dev": ["a task"]}, goal="Go.")

    @env.tool
    def go(world: dict[str, Any]) -> Outcome:
        """Go."""
        world["steps"] = world.get("steps", 0) + 1
        return Outcome("on", reward=0.25, commands=("go",))

    world = world_of(env, "dev")
    _, info = world.reset(options={"task_id": "dev-0"})
    assert info["state_key"] == ""
    seen, reward, ended, _, info = world.step([ToolCall("go", {})])
    assert (seen["commands"], reward, ended, info["state_key"]) == (("go",), 0.25, False, "on")
    env.state_key(lambda world: f"{world['task']} {world['steps']}")
    assert world.step([ToolCall("go", {})])[4]["state_key"] == "a task 2"


@pytest.mark.parametrize(
    ("hint", "form"),
    [
        (int, {"type": "integer"}),
        (float | None, {"anyOf": [{"type": "number"}, {"type": "null"}]}),
        (bool, {"type": "boolean"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Literal["a", b"a"], {}),
        (Literal[b"a"], {}),
        (Annotated[str, "What for."], {"type": "string", "description": "What for."}),
        (Annotated[int, {"minimum": 3}], {"type": "integer", "minimum": 3}),
        (object, {}),
        (None, {}),
        (list, {}),
        (list[object], {}),
        (Path | str, {}),
    ],
)
def test_schemas_of_types(hint, form):
    assert schema_of(hint) == form


SIMPLE = st.sampled_from([
    *(int, float, str, bool, Literal[1, "a"], Annotated[int, {"minimum": 3, "maximum": 5}], str | None),
    *(Annotated[float, {"maximum": -300.0}], Annotated[int, {"minimum": 150}]),
])  # fmt: skip


@given(st.recursive(SIMPLE, lambda one: st.builds(lambda kind: list[kind], one), max_leaves=3), st.integers(0, 99))
def test_sampled_arguments_fit_their_schema(hint, seed):
    tool = Tool("t", "", {"type": "object", "properties": {"x": schema_of(hint)}})
    assert tool.problem({"x": draw_value(schema_of(hint), np.random.default_rng(seed))}) is None


def test_sampled_numbers_lie_around_zero():
    rng = np.random.default_rng(0)
    for hint in (int, float):
        numbers = [draw_value(schema_of(hint), rng) for _ in range(200)]
        assert -100 <= min(numbers) < -50 and 50 < max(numbers) <= 100


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "file.py: there is no such file in "),
        ("1 / 0\n", "file.py, line 1: ZeroDivisionError: division by zero"),
        ("\ndef\n", "file.py: SyntaxError: invalid syntax"),
        ("x = 1\n", "file.py has 0 environments; it needs one"),
        (HEAD + TOOL + "other = Environment([1], goal='')\n", "file.py has 2 environments"),
        (HEAD, "file.py has no tools; put @env.tool above"),
        (HEAD + "@env.tool\ndef go(world):\n    pass\n", "line 3: UsageError: the tool go needs a docstring"),
        (HEAD + "@env.tool\ndef go(world, x):\n    'Go.'\n", "argument x of the tool go needs a type that JSON has"),
        (
            "from envsuite import Environment\nEnvironment([], goal='')\n",
            "line 2: UsageError: an environment needs tasks",
        ),
        (HEAD.replace("[1, 2]", "[{'id': 1}, {'id': 1}]"), "two tasks have the id '1'; give each its own"),
    ],
)
def test_what_is_wrong_with_a_file(text, problem, capsys):
    if text is not None:
        Path("file.py").write_text(text)
    assert main(["envs", "tasks", "file.py"]) == 2
    assert re.search(re.escape(problem), capsys.readouterr().err)
    assert "file.py" not in ENVIRONMENTS and not os.environ[NAMED]


def test_a_file_farther_away_is_refused(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    for place in ("a", "a/b"):
        (tmp_path / place / "file.py").write_text(HEAD + TOOL)
    assert spec_of("a/file.py").id == "a/file.py"
    with pytest.raises(UsageError, match=r"go to its folder, and type file\.py"):
        spec_of("a/b/file.py")


@pytest.mark.parametrize(
    ("tool", "reward", "told"),
    [("return None", "None", "tool go returned None"), ("return 'a'", "False", "reward returned False; return None")],
)
def test_what_returns_nothing_or_a_truth_value_is_told(tool, reward, told):
    paid = f"@env.reward\ndef reward(world):\n    return {reward}\n"
    Path("thing.py").write_text(HEAD + TOOL.replace("return 'gone'", tool) + paid)
    register("thing.py")
    made = gymnasium.make("thing.py")
    made.reset(seed=0)
    with pytest.raises(UsageError, match=told):
        made.step([ToolCall("go", {})])


def test_a_split_for_training_alone_is_not_measured_in_silence():
    Path("only.py").write_text(HEAD + TOOL)
    register("only.py")
    made: Any = gymnasium.make("only.py").unwrapped
    with pytest.raises(UsageError, match="only train; name one: --split train"):
        measured_splits(made)
