from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from envsuite.core import DataError, MissingExtra, UsageError
from envsuite.core.draws import Draw
from envsuite.textcraft import source
from envsuite.textcraft.generate import generated_book
from envsuite.textcraft.planning import plan
from envsuite.textcraft.source import builtin_book, fold, folder_book
from envsuite.textcraft.tasks import HORIZON, load
from envsuite.textcraft.world import NAMESPACE, Crafting, CraftRecipe, Ingredient, RecipeBook

OAK_PLANKS = {
    "type": "minecraft:crafting_shapeless",
    "group": "planks",
    "ingredients": [{"tag": "minecraft:oak_logs"}],
    "result": {"item": "minecraft:oak_planks", "count": 4},
}


def write(folder: Path, **recipes: object) -> Path:
    for name, body in recipes.items():
        (folder / f"{name}.json").write_text(body if isinstance(body, str) else json.dumps(body))
    return folder


def texts(book: RecipeBook) -> set[str]:
    return {recipe.text for ways in book.recipes.values() for recipe in ways}


def test_the_builtin_book_says_planks_where_any_planks_will_do():
    shown = texts(builtin_book())
    assert {
        "craft 4 stick using 2 planks",
        "craft 4 oak planks using 1 oak logs",
        "craft 1 white wool using 4 string",
    } <= shown
    assert {"craft 1 campfire using 3 stick, 1 coals, 3 logs", "craft 1 red bed using 1 white bed, 1 red dye"} <= shown


def test_the_builtin_book_is_nearly_the_official_one(shared):
    ours, official = builtin_book(), folder_book(shared / "data" / "textcraft" / "recipes")
    assert official.recipes.keys() < ours.recipes.keys()
    assert len(ours.recipes) - len(official.recipes) == 3
    differing = {item for item, depth in official.depth.items() if ours.depth[item] != depth}
    assert len(differing) <= 5, differing


def test_recipes_of_every_combination_fold_into_one_and_those_from_one_ingredient_only_if_they_are_a_family():
    variants = [(1, {"stick": 3, coal: 1, log: 2}) for log in ("oak", "elm", "fir") for coal in ("coal", "charcoal")]
    families = {frozenset({"oak", "elm", "fir"}): "logs"}
    assert fold(variants, families) == [(1, {"stick": 3, "coal": 1, "logs": 2})]
    variants = [(1, {"poppy": 1}), (1, {"tulip": 1})]
    assert fold(variants, {}) == variants
    assert fold(variants, {frozenset({"poppy", "tulip"}): "flowers"}) == [(1, {"flowers": 1})]


@pytest.mark.parametrize("seed", range(5))
def test_a_generated_book_has_the_goals_asked_for_no_deeper_than_asked(seed):
    for goals, deepest in ((1, 2), (40, 3), (300, 4)):
        book = generated_book(seed, goals, deepest)
        deep = [depth for depth in book.depth.values() if depth >= 2]
        assert len(deep) == goals and max(deep) <= deepest
        assert len(book.depth) == len(book.recipes), "every item can be made"


def test_a_seed_gives_this_book_for_ever():
    shown = "\n".join(sorted(texts(generated_book(7, 200))))
    assert hashlib.sha256(shown.encode()).hexdigest()[:12] == "cf7a85249624"


def test_a_generated_book_needs_a_goal():
    with pytest.raises(UsageError, match="goals >= 1"):
        generated_book(0, 0)


def test_draws_depend_on_nothing_but_the_key():
    draw = Draw("a key")
    assert [draw.below(1000) for _ in range(4)] == [828, 534, 795, 433]
    assert draw.sample("abcdef", 3) == ["e", "f", "c"]


def test_of_a_folder_the_crafting_recipes_are_read_whose_shapes_count_the_cells_of_each_ingredient(tmp_path):
    smelting = {"type": "minecraft:smelting", "ingredient": {"item": "minecraft:log"}, "result": "minecraft:charcoal"}
    key = {"#": {"item": "minecraft:oak_planks"}, "X": {"item": "minecraft:stick"}}
    shaped = {"type": "minecraft:crafting_shaped", "pattern": ["###", "###", " X "], "key": key}
    sign = {**shaped, "result": {"item": "minecraft:oak_sign", "count": 3}}
    folder = write(tmp_path, b_planks=OAK_PLANKS, a_smelting=smelting, sign=sign)
    (tmp_path / "notes.txt").write_text("not a recipe")
    recipes = {"craft 4 oak planks using 1 oak logs", "craft 3 oak sign using 6 oak planks, 1 stick"}
    assert texts(folder_book(folder)) == recipes


@pytest.mark.parametrize("inner", ["", "recipes"])
def test_official_data_is_found_in_the_data_folder_or_its_folder_recipes(inner, tmp_path, monkeypatch):
    (tmp_path / "textcraft" / inner).mkdir(parents=True)
    bowl = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"tag": "minecraft:planks"}],
        "result": "minecraft:bowl",
    }
    write(tmp_path / "textcraft" / inner, planks=OAK_PLANKS, bowl=bowl)
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    assert texts(load("official")[0]) == {"craft 4 oak planks using 1 oak logs", "craft 1 bowl using 1 planks"}


@pytest.mark.parametrize(
    "body",
    [
        "{not json",
        "[]",
        "{}",
        '{"type": "minecraft:crafting_shaped", "pattern": ["#"], "result": {"item": "minecraft:a"}}',
        '{"type": "minecraft:crafting_shapeless", "ingredients": [], "result": {"item": "minecraft:a"}}',
        '{"type": "minecraft:crafting_shapeless", "ingredients": [{"x": 1}], "result": {"item": "minecraft:a"}}',
        '{"type": "minecraft:crafting_shapeless", "ingredients": [[]], "result": "minecraft:a"}',
        '{"type": "minecraft:crafting_shapeless", "ingredients": [{"item": "minecraft:b"}], "result": {"id": "a"}}',
    ],
)
def test_a_corrupt_recipe_is_named(tmp_path, body):
    with pytest.raises(DataError, match=r"broken\.json"):
        folder_book(write(tmp_path, planks=OAK_PLANKS, broken=body))


def test_a_missing_package_is_answered_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "minecraft_data", None)
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[textcraft\]'"):
        source._minecraft("items.json")


def test_a_folder_that_is_missing_or_has_no_recipes_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for source_, said in (
        (str(tmp_path), r"no crafting recipe among 0 \.json files; source= must name"),
        ("buildin", "source= takes 'builtin', 'generated', 'official'"),
        ("official", str(tmp_path / "textcraft")),
    ):
        with pytest.raises(DataError, match=said):
            load(source_)


@pytest.mark.parametrize(
    ("source", "arguments"), [("builtin", {}), ("generated", {"book_seed": 5, "goals": 500}), ("official", {})]
)
def test_every_goal_of_depth_two_and_more_is_a_task_that_the_expert_solves(source, arguments, request):
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


def test_a_plan_uses_what_is_carried_or_the_member_of_a_family_and_there_is_none_of_what_cannot_be_made():
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


def test_of_two_recipes_the_one_of_fewer_commands_is_taken():
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


def test_the_cheapest_member_stands_for_a_family_and_one_that_cannot_be_made_never():
    goal = made("goal", 1, ("#plank", 2))
    oak, elm = made("oak", 2, ("log", 1), group="plank"), made("elm", 1, ("log", 1), group="plank")
    for order in ((oak, elm), (elm, oak)):
        assert planned(goal, *order) == ["get 1 log", "craft 2 oak using 1 log", "craft 1 goal using 2 oak"]
    never = made("ash", 9, ("goal", 1), group="plank")
    assert planned(goal, never, elm) == ["get 2 log", *["craft 1 elm using 1 log"] * 2, "craft 1 goal using 2 elm"]
    # The recipe that would make it closes a circle and is dropped: what is left can be got.
    found = (made("bark", 1, ("cork", 1)), made("cork", 1, ("bark", 1), group="plank"))
    assert planned(goal, elm, *found) == ["get 2 cork", "craft 1 goal using 2 cork"]


def test_what_is_kept_for_one_ingredient_does_not_stand_for_another():
    oak, elm = made("oak", 1, ("log", 1), ("axe", 1), group="plank"), made("elm", 1, ("log", 1), group="plank")
    book = RecipeBook("small", [oak, elm, made("goal", 1, ("oak", 2), ("#plank", 1))])
    for held, wanted in (
        (2, ["get 1 log", "craft 1 elm using 1 log", "craft 1 goal using 2 oak, 1 elm"]),
        (3, ["craft 1 goal using 2 oak, 1 oak"]),
    ):
        world = Crafting(book, NAMESPACE + "goal", {NAMESPACE + "oak": held})
        assert plan(book, world.goal, world.inventory) == wanted
        assert [world.do(command).ok for command in wanted] == [True] * len(wanted)


def test_a_part_that_two_recipes_need_is_kept_for_both():
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


def test_a_recipe_that_no_command_can_name_is_in_no_plan():
    elm = made("elm", 1, ("log", 1), group="plank")
    assert planned(elm, made("goal", 1, ("plank", 1))) == [], "an item of a family's name: the name means the family"
    assert planned(elm, made("plank", 1, ("log", 1)), made("goal", 1, ("plank", 1))) == []
    assert planned(made("goal", 1, ("log", 0))) == []
    assert planned(made("goal", 1, ("log", 0)), made("goal", 1, ("log", 3)))[0] == "get 3 log"


def test_goals_are_numbered_by_depth_and_then_in_the_order_of_the_book(shared):
    book, _ = load(str(shared / "data" / "textcraft"))
    assert set(book.by_depth) == set(book.recipes), "every item with a recipe has a number"
    order = sorted(book.by_depth, key=lambda item: book.by_depth[item])
    assert [book.by_depth[item] for item in order] == list(range(len(order)))
    places = {item: place for place, item in enumerate(book.recipes)}
    keys = [(book.depth[item], places[item]) for item in order]
    assert keys == sorted(keys)
