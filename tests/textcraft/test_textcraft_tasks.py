from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.core import TaskSet
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import HORIZON, MANIFEST, load
from envsuite.textcraft.world import NAMESPACE, Crafting

SOURCES = [("builtin", {}), ("generated", {"book_seed": 5, "goals": 500})]


def test_the_published_manifest_is_what_the_code_gives() -> None:
    published, ours = TaskSet.from_manifest(MANIFEST), load("builtin")[1]
    assert published == ours and published.hash == ours.hash, "python -m envsuite.textcraft.tasks --write"


def test_the_builtin_test_split_is_large_enough_to_measure_on() -> None:
    splits = load("builtin")[1].splits
    assert len(splits["test"]) >= 200 and len(splits["validation"]) >= 40


@pytest.mark.parametrize(("source", "arguments"), SOURCES)
def test_no_goal_is_in_two_splits_and_every_depth_is_in_each(source: str, arguments: dict[str, int]) -> None:
    tasks = load(source, **arguments)[1]
    assert list(tasks.splits) == ["train", "validation", "test"]
    listed = [name for ids in tasks.splits.values() for name in ids]
    assert len(listed) == len(set(listed)) == len(tasks.types)
    for ids in tasks.splits.values():
        assert {tasks.types[name] for name in ids} == {"depth-2", "depth-3", "depth-4"}


@pytest.mark.parametrize(("source", "arguments"), SOURCES)
def test_every_goal_of_depth_two_and_more_is_a_task(source: str, arguments: dict[str, int]) -> None:
    book, tasks = load(source, **arguments)
    assert {NAMESPACE + name for name in tasks.types} == {item for item, depth in book.depth.items() if depth >= 2}


def solve(source: str, arguments: dict[str, int]) -> None:
    book, tasks = load(source, **arguments)
    for name in tasks.types:
        goal = NAMESPACE + name
        shown = {recipe.text for recipe in book.needed(goal)}
        world = Crafting(book, goal)
        commands = plan(book, goal)
        assert 0 < len(commands) <= HORIZON
        for position, command in enumerate(commands):
            rest = plan(book, goal, world.inventory)
            assert rest == commands[position:], "a plan made halfway goes on as the one before it"
            result = world.do(command)
            assert result.ok, f"{name}: {command}: {result.text}"
            if command.startswith("craft"):
                assert any(text.split(" using ")[0] == command.split(" using ")[0] for text in shown)
        assert result.done


@pytest.mark.parametrize(("source", "arguments"), SOURCES)
def test_the_expert_solves_every_task(source: str, arguments: dict[str, int]) -> None:
    solve(source, arguments)


def test_the_expert_solves_every_official_task(shared: Path) -> None:
    solve(str(shared / "data" / "textcraft" / "recipes"), {})


def test_a_plan_uses_what_is_carried() -> None:
    book, _ = load("builtin")
    full = plan(book, "minecraft:oak_sign")
    assert full[-1].startswith("craft 3 oak sign using 6 oak planks, 1 stick")
    stocked = {"minecraft:oak_planks": 6, "minecraft:stick": 1}
    assert plan(book, "minecraft:oak_sign", stocked) == full[-1:]


def test_a_plan_takes_the_member_of_a_family_that_is_there() -> None:
    book, _ = load("builtin")
    commands = plan(book, "minecraft:crafting_table", {"minecraft:birch_planks": 4})
    assert commands == ["craft 1 crafting table using 4 birch planks"]


def test_what_cannot_be_made_has_no_plan() -> None:
    assert plan(load("builtin")[0], "minecraft:dirt") == []
