"""BabyAI-v0 is minigrid's worlds, and its text says what is there."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

minigrid = pytest.importorskip("minigrid", reason="the extra babyai is not installed")

from envsuite.babyai import text  # noqa: E402
from envsuite.babyai.env import BabyAI  # noqa: E402
from envsuite.babyai.expert import BabyAIExpert  # noqa: E402
from envsuite.babyai.practice import BabyAIWalker, practice  # noqa: E402
from envsuite.babyai.world import COMMANDS, LEVELS, BabyAIWorld  # noqa: E402
from envsuite.core import ToolCall, UsageError  # noqa: E402
from envsuite.core.errors import UnknownName  # noqa: E402
from envsuite.core.tasks import MOST_NUMBERED  # noqa: E402
from envsuite.vector.milestones import MilestoneFactory  # noqa: E402

TRIED = (
    "GoToLocal", "GoToObjS4", "GoToObjS6", "GoToDoor", "OpenDoor", "OpenDoorDebug", "OpenRedBlueDoorsDebug",
    "PickupLoc", "PickupDistDebug", "PutNextLocal", "PutNextS5N2Carrying", "UnlockLocal", "UnlockPickup",
    "BlockedUnlockPickup", "GoToSeqS5R2", "SynthS5R2", "MiniBossLevel", "BossLevel",
)  # fmt: skip
"""Levels with every kind of instruction, object and end."""
played = st.tuples(st.sampled_from(TRIED), st.integers(0, 2000), st.lists(st.sampled_from(COMMANDS), max_size=60))
"""A level, a seed, and commands."""


def act(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("act", {"command": command}),)


def begun(level: str = "GoToLocal", seed: int = 0, **options: Any) -> BabyAI:
    env = BabyAI(level=level, **options)
    env.reset(options={"task_id": f"{level}/{seed}"})
    return env


def whole(inner: Any) -> tuple[Any, ...]:
    """All that an action can change in minigrid, but which parts of a mission are done."""
    cells = [(cell.encode(), cell.contains and cell.contains.encode()) if cell else None for cell in inner.grid.grid]
    held = inner.carrying and (inner.carrying.encode(), inner.carrying.contains and inner.carrying.contains.encode())
    return cells, tuple(map(int, inner.agent_pos)), int(inner.agent_dir), held


def towards(
    level: str, seed: int, draw: random.Random, stray: float, breaking: bool = True
) -> tuple[BabyAI, BabyAIExpert]:
    """An episode of the expert, in which some commands are random ones that change something, until it ends."""
    env, expert = begun(level, seed), BabyAIExpert()
    while not env.done and env._steps < env.world.max_steps:
        others = [command for command in env.world.possible() if breaking or command != "toggle"]
        env.step(act(draw.choice(others)) if draw.random() < stray else expert.act(env))
    return env, expert


@pytest.mark.parametrize("level", TRIED)
def test_worlds_missions_rewards_and_ends_are_those_of_minigrid(level):
    inner: Any = gymnasium.make(LEVELS[level], disable_env_checker=True).unwrapped
    won = 0
    for seed in range(10):
        draw, env, expert = random.Random(seed), begun(level, seed), BabyAIExpert()
        inner.reset(seed=seed)
        assert text.task(inner.mission) == env._instruction and inner.max_steps == env.world.max_steps
        assert whole(inner) == whole(env.world.inner)
        ended = False
        while not ended:
            command = draw.choice(COMMANDS) if draw.random() < 0.3 else advised(expert, env, draw)
            before = (whole(inner), env.world.done_parts)
            _, reward, terminated, truncated, info = env.step(act(command))
            seen, their_reward, their_end, their_cut, _ = inner.step(COMMANDS.index(command))
            assert whole(inner) == whole(env.world.inner) and np.array_equal(seen["image"], env.world.image)
            done = their_reward > 0
            assert (reward, info["success"], info["score"]) == (float(done), done, float(done))
            assert terminated == their_end and truncated == (their_cut and not their_end)
            assert info["valid"] == (terminated or (whole(inner), env.world.done_parts) != before)
            ended = terminated or truncated
        won += info["success"]
    assert won >= 3


def advised(expert: BabyAIExpert, env: BabyAI, draw: random.Random) -> str:
    try:
        return str(expert.act(env)[0].arguments["command"])
    except UsageError:
        return draw.choice(COMMANDS)


def test_a_world_that_minigrid_draws_again_prints_nothing(capsys):
    for seed in range(60):
        BabyAIWorld("GoToLocal", seed)
    assert capsys.readouterr().out == ""


@settings(max_examples=100, deadline=None)
@given(played)
def test_commands_change_something_or_are_refused_with_the_reason_and_both_views_tell_the_state(play):
    level, seed, commands = play
    world, states = BabyAIWorld(level, seed), dict[str, Any]()
    for command in commands:
        possible, before = world.possible(), (whole(world.inner), world.done_parts)
        assert states.setdefault(text.full(world), before) == before
        assert read(text.full(world)) == (*before[0][1:3], described(world))
        error = world.do(command)
        changed = (whole(world.inner), world.done_parts) != before
        assert (error is None) == (changed or world.over)
        assert (command in possible) <= changed <= (command in possible or bool(world.parts))
        assert error is None or error.startswith(f"You cannot {command}: ")
        if world.over:
            break
    the_agent_s_view_has_exactly_the_objects_that_minigrid_shows(world)


def described(world: BabyAIWorld) -> list[tuple[str, tuple[int, int]]]:
    rows = list(enumerate(world.rows()))
    return [
        (text.of(thing), (x, y)) for y, cells in rows for x, thing in enumerate(cells) if thing and thing.type != "wall"
    ]


def read(view: str) -> tuple[tuple[int, int], int, list[tuple[str, tuple[int, int]]]]:
    """Position, direction and objects, as the full view tells them."""
    where = re.match(r"You are at \((\d+), (\d+)\), facing (\w+)\.", view)
    assert where is not None
    listed = re.findall(r"(an? [^,]*?) at \((\d+), (\d+)\)", view.splitlines()[1])
    things = [(name, (int(x), int(y))) for name, x, y in listed]
    return (int(where[1]), int(where[2])), text.FACING.index(where[3]), things


def the_agent_s_view_has_exactly_the_objects_that_minigrid_shows(world: BabyAIWorld) -> None:
    grid, visible = world.inner.gen_obs_grid()
    wanted, walls = [], {(0, 1): 0, (-1, 0): 0, (1, 0): 0}
    for x, y in np.ndindex(7, 7):
        cell, side, ahead = grid.get(x, y), x - 3, 6 - y
        if cell is not None and visible[x, y] and cell.type != "wall" and (side, ahead) != (0, 0):
            wanted.append((text.describe_object(*cell.encode()), side, ahead))
    for side, ahead in walls:
        cells = [(n, 3 + n * side, 6 - n * ahead) for n in range(1, 7) if 0 <= 3 + n * side < 7]
        seen = [
            n for n, x, y in cells if visible[x, y] and (cell := grid.get(x, y)) is not None and cell.type == "wall"
        ]
        walls[side, ahead] = min(seen, default=0)
    wanted += [("a wall", side * steps, ahead * steps) for (side, ahead), steps in walls.items() if steps]
    view = text.describe_view(world)
    told, _, rest = view.removeprefix("You see ").partition(". ")
    assert sorted(map(place, told.split(", "))) == sorted(wanted) if told != "nothing" else not wanted
    assert rest == f"You carry {text.of(world.carrying)}."


def place(told: str) -> tuple[str, int, int]:
    """Name, steps to the right and steps ahead of an object, as the agent's view tells them."""
    match = re.fullmatch(r"(.+?) (?:(\d+) steps? ahead(?: and (\d+) (left|right))?|(\d+) steps? (left|right))", told)
    assert match is not None, told
    name, ahead, side, way, alone, alone_way = match.groups()
    steps = int(side or alone or 0)
    return name, -steps if (way or alone_way) == "left" else steps, int(ahead or 0)


def test_tasks_are_a_level_and_a_seed_and_no_seed_is_in_two_splits():
    builtin = BabyAI(level="GoToObj").tasks
    assert [len(builtin.ids(split)) for split in ("train", "validation", "test")] == [1000, 100, 200]
    assert builtin.ids("test")[0] == "GoToObj/1100" and set(builtin.types.values()) == {"GoToObj"}
    made = BabyAI(source="generated", world_seed=2, worlds=50).tasks
    assert (
        made.ids("train")[0] == f"GoToLocal/{3 * MOST_NUMBERED}"
        and made.ids("test")[-1] == f"GoToLocal/{3 * MOST_NUMBERED + 49}"
    )
    assert [len(made.ids(split)) for split in ("train", "validation", "test")] == [40, 5, 5]


QUICK = ("GoToLocal", "PickupLoc", "PutNextLocal", "OpenDoor", "PutNextS5N2Carrying", "GoTo")


@pytest.mark.parametrize(
    "level", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in LEVELS]
)
def test_the_expert_solves_the_first_worlds_of_every_level_but_two(level):
    ended = [towards(level, seed, random.Random(0), 0.0)[0]._last for seed in range(15)]
    solved = sum(seen is not None and seen["text"].startswith(text.DONE) for seen in ended)
    assert solved == {"GoToImpUnlock": 13, "UnlockToUnlock": 12}.get(level, 15)


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc", "PutNextLocal", "UnlockLocal", "MiniBossLevel"])
def test_the_expert_goes_on_from_wherever_other_commands_have_led(level):
    for seed in range(20):
        env, _ = towards(level, seed, random.Random(seed), 0.3, breaking=False)
        assert env._last is not None and env._last["text"].startswith(text.DONE), seed


def test_the_expert_says_that_there_is_no_plan_once_the_goal_is_broken():
    env, expert = begun("UnlockPickup", 0), BabyAIExpert()
    assert "pick up the" in env._instruction and "box" in env._instruction
    while not (env.world.front is not None and env.world.front.type == "box"):
        env.step(expert.act(env))
    env.step(act("toggle"))
    with pytest.raises(UsageError, match="has no plan from here"):
        for _ in range(20):
            env.step(expert.act(env))


def test_milestones_are_parts_of_the_mission_and_objects_to_move():
    env = MilestoneFactory("BabyAI-v0", {"level": "PutNextLocal"}, of="world").make()
    env.reset(options={"task_id": "PutNextLocal/0"})
    expert, reached = BabyAIExpert(), []
    while not env.unwrapped.done:  # type: ignore[attr-defined]
        *_, info = env.step(expert.act(env))
        reached.append(info["milestone"])
    assert sum(reached) == 2 and reached[-1]
    env = MilestoneFactory("BabyAI-v0", {"level": "GoToSeqS5R2"}, of="world").make()
    counts = []
    for seed in range(5):
        env.reset(options={"task_id": f"GoToSeqS5R2/{seed}"})
        while not env.unwrapped.done:  # type: ignore[attr-defined]
            *_, info = env.step(expert.act(env))
        counts.append(info["metrics"]["milestones"])
        assert counts[-1] == len(env.unwrapped.world.parts)  # type: ignore[attr-defined]
    assert max(counts) > 1


def test_the_teacher_strays_and_every_word_is_in_its_texts():
    env, slips, moves = begun("MiniBossLevel", 1), 0, 0
    words = set(re.findall(r"\w+", " ".join(practice().texts())))
    for move in BabyAIWalker(stray=0.3).turns(env, random.Random(0)):
        seen, _, terminated, truncated, info = env.step(move.action)
        assert info["valid"] and set(re.findall(r"\w+", seen["text"] + seen["task"])) <= words
        slips, moves = slips + move.slip, moves + 1
        if terminated or truncated:
            break
    assert 0.15 < slips / moves < 0.45 or moves < 20


def test_an_episode_is_truncated_after_the_steps_that_minigrid_gives_its_world():
    env = begun("GoToObjS4", 0)
    ends = [env.step(act("turn left"))[3] for _ in range(15)]
    assert not any(ends) and env.world.max_steps == 16
    assert env.step(())[3], "a malformed action is a step, too"


def test_a_level_that_does_not_exist_or_cannot_be_solved_is_named_with_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown level of BabyAI-v0 'GoToLocl'\. Nearest: 'GoToLocal'"):
        BabyAI(level="GoToLocl")
    with pytest.raises(UnknownName, match="unknown level of BabyAI-v0 'KeyInBox'"):
        BabyAI(level="KeyInBox")


def test_without_minigrid_the_error_says_what_to_type():
    code = "import sys; sys.modules['minigrid'] = None\nimport gymnasium, envsuite; gymnasium.make('BabyAI-v0')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BabyAI-v0 needs minigrid" in run.stderr and "pip install 'envsuite[babyai]'" in run.stderr
