from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import HORIZON, MANIFEST, load, main
from envsuite.textcraft.world import NAMESPACE, Crafting, CraftRecipe, Ingredient, RecipeBook


def test_the_command_compares_the_published_manifest_with_the_code_or_writes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said(*arguments: str) -> tuple[int | str | None, str]:
        monkeypatch.setattr("sys.argv", ["tasks", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().out

    code, line = said()
    assert code == 0 and "test 2" in line and line.endswith("; matches the code\n")
    other = tmp_path / "new" / MANIFEST.name
    monkeypatch.setattr("envsuite.textcraft.tasks.MANIFEST", other)
    assert said()[0] == 1 and not other.exists()
    assert said("--write")[0] == 0 and other.read_bytes() == MANIFEST.read_bytes()


@pytest.mark.parametrize(
    ("source", "arguments"), [("builtin", {}), ("generated", {"book_seed": 5, "goals": 500}), ("official", {})]
)
def test_every_goal_of_depth_two_and_more_is_a_task_that_the_expert_solves(
    source: str, arguments: dict[str, int], request: pytest.FixtureRequest
) -> None:
    if source == "official":
        source = str(request.getfixturevalue("shared") / "data" / "textcraft" / "recipes")
    book, tasks = load(source, **arguments)
    assert {NAMESPACE + name for name in tasks.types} == {item for item, depth in book.depth.items() if depth >= 2}
    for name in tasks.types:
        goal = NAMESPACE + name
        shown = {recipe.text for recipe in book.needed_recipes(goal)}
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


def test_a_plan_uses_what_is_carried_or_the_member_of_a_family_and_there_is_none_of_what_cannot_be_made() -> None:
    book, _ = load("builtin")
    full = plan(book, "minecraft:oak_sign")
    assert full[-1].startswith("craft 3 oak sign using 6 oak planks, 1 stick")
    stocked = {"minecraft:oak_planks": 6, "minecraft:stick": 1}
    assert plan(book, "minecraft:oak_sign", stocked) == full[-1:]
    commands = plan(book, "minecraft:crafting_table", {"minecraft:birch_planks": 4})
    assert commands == ["craft 1 crafting table using 4 birch planks"]
    assert plan(book, "minecraft:dirt") == []


def made(output: str, count: int, *inputs: tuple[str, int], group: str | None = None) -> CraftRecipe:
    """A recipe; an ingredient whose name begins with ``#`` is a family."""
    parts = tuple(Ingredient(NAMESPACE + name.lstrip("#"), n, name.startswith("#")) for name, n in inputs)
    return CraftRecipe(NAMESPACE + output, count, parts, None if group is None else NAMESPACE + group)


def planned(*recipes: CraftRecipe, goal: str = "goal") -> list[str]:
    return plan(RecipeBook("small", recipes), NAMESPACE + goal)


def test_of_two_recipes_the_one_of_fewer_commands_is_taken() -> None:
    single, by_three, by_eight = made("nail", 1, ("wire", 1)), made("nail", 3, ("ore", 1)), made("nail", 8, ("iron", 1))
    goal = made("goal", 1, ("nail", 8))
    for ways in ((single, by_three, by_eight), (by_eight, by_three, single)):
        assert planned(goal, *ways) == ["get 1 iron", "craft 8 nail using 1 iron", "craft 1 goal using 8 nail"]
    assert planned(goal, single, by_three) == [
        "get 3 ore",
        *["craft 3 nail using 1 ore"] * 3,
        "craft 1 goal using 8 nail",
    ]
    # Three crafts of one part cost four commands, two crafts of three parts five.
    costly = made("nail", 4, ("iron", 1), ("coal", 1), ("sand", 1))
    assert planned(goal, by_three, costly)[0] == "get 3 ore" and planned(goal, costly, by_three)[0] == "get 3 ore"
    assert planned(goal, single, costly)[-2:] == [
        "craft 4 nail using 1 iron, 1 coal, 1 sand",
        "craft 1 goal using 8 nail",
    ]


def test_the_cheapest_member_stands_for_a_family_and_one_that_cannot_be_made_never() -> None:
    goal = made("goal", 1, ("#plank", 2))
    oak, elm = made("oak", 2, ("log", 1), group="plank"), made("elm", 1, ("log", 1), group="plank")
    for order in ((oak, elm), (elm, oak)):
        assert planned(goal, *order) == ["get 1 log", "craft 2 oak using 1 log", "craft 1 goal using 2 oak"]
    never = made("ash", 9, ("goal", 1), group="plank")
    assert planned(goal, never, elm) == ["get 2 log", *["craft 1 elm using 1 log"] * 2, "craft 1 goal using 2 elm"]
    # The recipe that would make it closes a circle and is dropped: what is left can be got.
    found = (made("bark", 1, ("cork", 1)), made("cork", 1, ("bark", 1), group="plank"))
    assert planned(goal, elm, *found) == ["get 2 cork", "craft 1 goal using 2 cork"]


def test_what_is_kept_for_one_ingredient_does_not_stand_for_another() -> None:
    oak, elm = made("oak", 1, ("log", 1), ("axe", 1), group="plank"), made("elm", 1, ("log", 1), group="plank")
    book = RecipeBook("small", [oak, elm, made("goal", 1, ("oak", 2), ("#plank", 1))])
    for held, wanted in (
        (2, ["get 1 log", "craft 1 elm using 1 log", "craft 1 goal using 2 oak, 1 elm"]),
        (3, ["craft 1 goal using 2 oak, 1 oak"]),
    ):
        world = Crafting(book, NAMESPACE + "goal", {NAMESPACE + "oak": held})
        assert plan(book, world.goal, world.inventory) == wanted
        assert [world.do(command).ok for command in wanted] == [True] * len(wanted)


def test_a_part_that_two_recipes_need_is_kept_for_both() -> None:
    recipes = (
        made("goal", 1, ("rod", 1), ("pair", 1), ("rod_2", 1)),
        made("rod", 1, ("stick", 2)),
        made("pair", 1, ("stick", 3)),
        made("rod_2", 1, ("stick", 1)),
        made("stick", 4, ("wood", 1)),
    )
    book = RecipeBook("small", recipes)
    world = Crafting(book, NAMESPACE + "goal")
    commands = plan(book, NAMESPACE + "goal")
    assert [world.do(command).ok for command in commands] == [True] * len(commands)
    assert commands.count("craft 4 stick using 1 wood") == 2 and world.inventory == {
        NAMESPACE + "stick": 2, NAMESPACE + "goal": 1,
    }  # fmt: skip


def test_a_recipe_that_no_command_can_name_is_in_no_plan() -> None:
    elm = made("elm", 1, ("log", 1), group="plank")
    assert planned(elm, made("goal", 1, ("plank", 1))) == [], "an item of a family's name: the name means the family"
    assert planned(elm, made("plank", 1, ("log", 1)), made("goal", 1, ("plank", 1))) == []
    assert planned(made("goal", 1, ("log", 0))) == []
    assert planned(made("goal", 1, ("log", 0)), made("goal", 1, ("log", 3)))[0] == "get 3 log"


def test_goals_are_numbered_by_depth_and_then_in_the_order_of_the_book(shared: Path) -> None:
    book, _ = load(str(shared / "data" / "textcraft"))
    assert set(book.by_depth) == set(book.recipes), "every item with a recipe has a number"
    order = sorted(book.by_depth, key=lambda item: book.by_depth[item])
    assert [book.by_depth[item] for item in order] == list(range(len(order)))
    places = {item: place for place, item in enumerate(book.recipes)}
    keys = [(book.depth[item], places[item]) for item in order]
    assert keys == sorted(keys)
