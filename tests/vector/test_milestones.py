"""Environments that say when an agent reaches a milestone of its task."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import gymnasium
import pytest

import envsuite  # noqa: F401  (registers the ids)
from envsuite.core import ToolCall, ToolEnv
from envsuite.core.errors import UnknownName, UsageError
from envsuite.core.registration import ENVIRONMENTS, EnvSpec
from envsuite.remote.making import make_player
from envsuite.sokoban.expert import SokobanExpert
from envsuite.textcraft.milestones import goods
from envsuite.textcraft.planning import plan
from envsuite.textcraft.world import item_id
from envsuite.vector import make_vector
from envsuite.vector.milestones import (
    REACHED,
    TOTAL,
    UNGUIDED,
    ActionMilestones,
    MilestoneFactory,
    milestones_of,
)

GENERATED = {"Sokoban-v0": {"source": "generated", "levels": 20}, "WebShop-v0": {"source": "builtin"}}
TASKS = 12


def factory(env_id: str, of: str = "world") -> MilestoneFactory:
    return MilestoneFactory(env_id, {**GENERATED.get(env_id, {}), "max_episode_steps": 200}, of=of)  # type: ignore[arg-type]


def tasks(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    return world.tasks.ids("train")[:TASKS]


def by_expert(env: gymnasium.Env[Any, Any], task: str) -> list[dict[str, Any]]:
    """The infos of the expert's steps."""
    expert, infos = make_player(env.spec.id, "expert"), []  # type: ignore[union-attr]
    _, info = env.reset(options={"task_id": task})
    assert info[REACHED] is False and info["metrics"][TOTAL] == 0
    while True:
        _, _, terminated, truncated, info = env.step(expert.act(env))
        infos.append(info)
        if terminated or truncated:
            return infos


def command(text: str) -> tuple[ToolCall, ...]:
    return (ToolCall("env_step", {"command": text}),)


def test_goods_are_what_the_expert_crafts_in_any_order():
    env = factory("TextCraft-v0").make()
    inner: Any = env.unwrapped
    for task in tasks(env):
        env.reset(options={"task_id": task})
        book, goal = inner.world.book, inner.world.goal
        made = {text.partition(" using ")[0].split(" ", 2)[2] for text in plan(book, goal) if text.startswith("craft")}
        items = {item_id(text) for text in made}
        wanted = goods(book, goal)
        assert goal in wanted and not wanted & set(book.base)
        assert {item for item in items if {item, book.family_of.get(item)} & wanted} == items
        assert {name for name in wanted if items & {name, *book.members.get(name, ())}} == wanted
        for name in sorted(wanted):  # whichever comes first
            inner.world.inventory[book.members[name][0] if name in book.families else name] = 1
            assert env.step(command("inventory"))[4][REACHED]
        assert not env.step(command("inventory"))[4][REACHED]
        assert goods(book, "moonstone") == set(), "a goal that cannot be made"


HOT = (
    *("go to shelf 2", "take mug 2 from shelf 2", "take mug 1 from shelf 2", "heat mug 2 with microwave 1"),
    *("move mug 2 to shelf 1", "move mug 2 to cabinet 4"),
)
TWO = (
    *("take mug 1 from shelf 2", "move mug 1 to cabinet 1", "take mug 1 from cabinet 1", "move mug 1 to cabinet 1"),
    *("take mug 2 from shelf 1", "move mug 2 to cabinet 1"),
)
TAKE, USE = "take mug 1 from desk 1", "use desklamp 1"


@pytest.mark.parametrize(
    ("task", "commands", "wins", "expected"),
    [
        ("put a hot mug in cabinet", HOT, "", [0, 1, 0, 1, 0, 1]),  # any object of the type, each milestone once
        ("put two mug in cabinet", TWO, "", [1, 1, 0, 0, 1, 1]),  # the same object is not the second
        ("look at mug under the desklamp", (USE, TAKE, USE), "", [0, 1, 0]),
        ("look at mug under the desklamp", (TAKE, USE), USE, [1, 1]),  # where it solves the task
        ("sing", (TAKE,), "", [0]),
    ],
)
def test_alfworlds_objects_count_by_their_type_and_a_second_one_must_be_another(task, commands, wins, expected):
    env = Mock(spec=ToolEnv, tasks=Mock(env_id="ALFWorld-v0"), observation={"task": f"Your task is to: {task}."})
    env.unwrapped = env
    found = milestones_of("ALFWorld-v0")(env)
    told: list[Any] = [{"valid": True, "success": text == wins} for text in commands]
    assert [found.count_reached(command(text), info) for text, info in zip(commands, told, strict=True)] == expected


def test_webshops_milestones_are_the_targets_and_come_in_order():
    env = factory("WebShop-v0").make()
    inner: Any = env.unwrapped
    bought = 0
    for task in tasks(env):
        infos = by_expert(env, task)
        target = inner.session.goal.asin
        assert sum(info[REACHED] for info in infos) in (3, 4)
        env.reset(options={"task_id": task})
        env.step((ToolCall("search", {"query": inner.session.goal.query}),))
        other = next((asin for asin in inner.session.state.hits[:10] if asin != target), None)
        if other is None:
            continue
        shown = target in inner.session.state.hits[:10]
        for element in (other, "buy now"):
            info = env.step((ToolCall("click", {"element": element.lower()}),))[4]
            assert not info[REACHED] and info["metrics"][TOTAL] == shown
        bought += 1
    assert bought
    env.close()


def test_boxes_count_when_more_are_on_targets_than_ever():
    env = MilestoneFactory("Sokoban-v0", {**GENERATED["Sokoban-v0"], "max_calls": 50}).make()
    inner: Any = env.unwrapped
    for task in tasks(env):
        env.reset(options={"task_id": task})
        before, boxes = inner.world.placed_boxes, inner.world.level.boxes.bit_count()
        info = env.step(SokobanExpert(calls=50).act(env))[4]
        assert info["success"] and info["metrics"][TOTAL] == boxes - before


def test_a_box_that_comes_back_to_a_target_counts_once():
    env = factory("Sokoban-v0").make()
    env.reset(options={"task_id": tasks(env)[0]})
    inner: Any = env.unwrapped
    milestones: Any = env._milestones  # type: ignore[attr-defined]
    level = inner.world.level
    for boxes, found in ((level.targets, milestones.count), (level.boxes, 0), (level.targets, 0)):
        inner.world.boxes = boxes
        assert milestones.count_reached((), {}) == found


@pytest.mark.parametrize("similarity", [None, 0.95])
def test_only_the_ratio_takes_neighbours_for_each_other(similarity):
    listed = ActionMilestones([command("go to cabinet 11"), command("open cabinet 11")], similarity)
    done = [listed.count_reached(command(text), {"valid": True}) for text in ("go to cabinet 1", "open cabinet 11")]
    assert done == ([0, 0] if similarity is None else [1, 1])


def test_listed_actions_count_in_their_order_once_and_only_where_they_are_valid():
    listed = ActionMilestones([command("a"), command("b"), command("a")])
    said = [("b", True), ("a", False), ("a", True), ("a", True), ("b", True), ("a", True), ("a", True)]
    assert [listed.count_reached(command(text), {"valid": valid}) for text, valid in said] == [0, 0, 1, 0, 1, 1, 0]


def test_a_task_that_its_expert_does_not_solve_has_no_milestone_and_is_counted():
    short = MilestoneFactory("TextCraft-v0", {"max_episode_steps": 1}, of="expert")
    env = short.make()
    deep = next(task for task in tasks(env) if "2" in env.unwrapped.tasks.types[task])  # type: ignore[attr-defined]
    env.reset(options={"task_id": deep})
    info = env.step(command("inventory"))[4]
    assert info["metrics"][UNGUIDED] == 1.0 and info["metrics"][TOTAL] == 0.0 and not info[REACHED]


def test_what_has_no_milestones_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "Bare-v0", EnvSpec("Bare-v0", "nowhere:Bare", 5))
    there: dict[str, Any] = {"url": "http://127.0.0.1:1"}
    for env_id, kwargs, of, error, message in (
        ("Bare-v0", {}, "world", UsageError, r"Bare-v0 has no milestones of its world; .* have: .*TextCraft"),
        ("Bare-v0", {}, "expert", UnknownName, "Bare-v0 has no expert; write"),
        ("Moon-v0", {}, "world", UnknownName, "environment 'Moon-v0'"),
        ("TextCraft-v0", there, "world", UsageError, "which a server does not give"),
        ("ALFWorld-v0", there, "expert", UsageError, "plays here, and not on a server"),
    ):
        with pytest.raises(error, match=message):
            MilestoneFactory(env_id, kwargs, of=of).check()
    MilestoneFactory("ALFWorld-v0", there).check()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_vector_plays_two_of_one_id_each_with_its_own_tasks(workers):
    made = [MilestoneFactory("TextCraft-v0", {"source": source}) for source in ("builtin", "generated")]
    first = [tasks(one.make())[0] for one in made]
    with make_vector(made, 2, workers) as vector:
        for slot, task in enumerate(first):
            vector.reset(slot, slot, task_id=task)
        events = []
        while vector.pending:
            events += vector.poll()
        assert sorted(event.info["task_id"] for event in events) == sorted(first)  # type: ignore[index]
        assert all(event.info[REACHED] is False for event in events)  # type: ignore[index,typeddict-item]
