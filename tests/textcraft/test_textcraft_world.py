from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.parity import main
from benchmarks.parity_textcraft import compare
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.world import Crafting, CraftRecipe, Ingredient, RecipeBook


def item(name: str, count: int = 1) -> Ingredient:
    return Ingredient(f"minecraft:{name}", count)


def family(name: str, count: int = 1) -> Ingredient:
    return Ingredient(f"minecraft:{name}", count, True)


def recipe(output: str, count: int, *inputs: Ingredient, group: str | None = None) -> CraftRecipe:
    return CraftRecipe(f"minecraft:{output}", count, inputs, None if group is None else f"minecraft:{group}")


BOOK = RecipeBook(
    "test",
    [
        recipe("oak_planks", 4, family("oak_logs"), group="planks"),
        recipe("birch_planks", 4, item("birch_log"), group="planks"),
        recipe("stick", 4, family("planks", 2)),
        recipe("oak_sign", 3, item("oak_planks", 6), item("stick"), group="sign"),
        recipe("pair", 1, item("stone"), item("stone", 2)),
        recipe("nugget", 9, item("gold_block")),
        recipe("stone", 1, item("pair")),
    ],
)


def play(commands: list[str], goal: str = "minecraft:oak_sign") -> list[str]:
    world = Crafting(BOOK, goal)
    return [world.do(command).text for command in commands]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("get 2 oak logs", "Got 2 oak logs"),
        ("get 02 oak_logs", "Got 2 oak_logs"),
        ("get 0 birch log", "Got 0 birch log"),
        ("get 1 birch log\nget 9 birch log", "Got 1 birch log"),
        ("get 1 planks", "Could not find planks"),
        ("get 1 stick", "Could not find stick"),
        ("get 1 gold block", "Got 1 gold block"),
        ("get 1 nugget", "Got 1 nugget"),
        ("get 1 pair", "Could not find pair"),
        ("get 1 stone ", "Could not find stone "),
        ("get ٣ stone", "Could not execute get ٣ stone"),
        ("get -1 stone", "Could not execute get -1 stone"),
        ("get stone", "Could not execute get stone"),
        ("Get 1 stone", "Could not execute Get 1 stone"),
        ("", "Could not execute "),
        ("inventory please", "Inventory: You are not carrying anything."),
        (" inventory", "Could not execute  inventory"),
        ("craft 4 stick", "Could not execute craft 4 stick"),
        ("craft stick using", "Could not execute craft stick using"),
        ("craft stick using ", "Wrong item format: "),
        ("craft stick using oak planks", "Wrong item format: oak planks"),
        ("craft stick using 2 oak planks,, x", "Wrong item format: "),
        ("craft 4 stick using 2 oak planks", "Could not find enough items to craft minecraft:stick"),
        ("craft 4 planks using 1 oak logs", "Could not find enough items to craft None"),
        ("craft x using 1 y using 2 z", "Could not find enough items to craft minecraft:x_using_1_y"),
        ("craft 1 x\n using 1 y", "Could not execute craft 1 x\n using 1 y"),
    ],
)
def test_an_empty_handed_player_is_answered_in_the_words_of_the_original(command, text):
    assert play([command]) == [text]


def no_recipe(name: str, count: int) -> str:
    tag, item_id = (repr(f"minecraft:{name}"), None) if name == "planks" else (None, repr(f"minecraft:{name}"))
    found = f"ItemTagWithCount(item_tag=ItemTag(tag={tag}, item_id={item_id}), count={count})"
    return f"Could not find a valid recipe for {found}"


OAK = ["get 3 oak logs", *["craft 4 oak planks using 1 oak logs"] * 3, "craft 4 stick using 2 oak planks"]
BIRCH = ["get 3 birch log", "craft 4 birch planks using 1 birch log"]


@pytest.mark.parametrize(
    ("start", "command", "text"),
    [
        (OAK, "craft 4 stick using 1 oak planks", no_recipe("stick", 4)),
        (BIRCH, "craft stick using 1 birch log", no_recipe("stick", 1)),
        (OAK[:1], "craft 99 oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
        (BIRCH, "craft 4 stick using 2 birch planks", "Crafted 4 minecraft:stick"),
        (BIRCH, "craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
        (BIRCH, "craft 4 planks using 1 birch log", no_recipe("planks", 4)),
        (OAK, "craft 3 oak sign using 1 stick, 6 oak planks", "Crafted 3 minecraft:oak_sign"),
        (OAK, "craft 3 oak sign using 1 stick, 3 oak planks, 3 oak planks", no_recipe("oak_sign", 3)),
        (BIRCH, "craft 4 birch planks using 1 birch log, 1 birch planks", no_recipe("birch_planks", 4)),
        (BIRCH, "craft 4 birch planks using 1 birch log, 1 birch log", no_recipe("birch_planks", 4)),
    ],
)
def test_the_exact_ingredients_of_a_recipe_craft_in_any_order_and_members_for_their_family(start, command, text):
    assert play([*start, command])[-1] == text


@pytest.mark.parametrize("given", ["1 stone, 2 stone", "2 stone, 1 stone"])
def test_an_item_that_a_recipe_lists_twice_must_be_there_for_both(given):
    assert play(["get 2 stone", f"craft 1 pair using {given}", "inventory", "get 1 stone"])[1:3] == [
        "Could not find enough items to craft minecraft:pair",
        "Inventory: [stone] (2) ",
    ]
    short = Crafting(BOOK, "minecraft:pair", {"minecraft:stone": 2}).do(f"craft 1 pair using {given}")
    assert (short.ok, short.done) == (False, False)
    assert play(["get 3 stone", f"craft 1 pair using {given}", "inventory"])[1:] == [
        "Crafted 1 minecraft:pair",
        "Inventory: [pair] (1) ",
    ]


def test_an_item_that_a_recipe_names_is_not_spent_on_a_family_that_others_can_stand_for():
    planks = [recipe(f"{wood}_planks", 1, item(f"{wood}_log"), group="planks") for wood in ("oak", "birch")]
    book = RecipeBook("crate", [*planks, recipe("crate", 1, family("planks"), item("oak_planks"))])
    for order in ("1 oak planks, 1 birch planks", "1 birch planks, 1 oak planks"):
        world = Crafting(book, "minecraft:crate", {"minecraft:oak_planks": 1, "minecraft:birch_planks": 1})
        assert world.do(f"craft 1 crate using {order}").done


RECIPES = st.builds(
    recipe,
    st.sampled_from("abcde"),
    st.integers(1, 3),
    st.sampled_from("abcde").map(item),
    st.sampled_from("abcde").map(item),
)


@given(st.lists(RECIPES, max_size=12))
def test_no_item_of_a_book_is_made_of_itself_and_no_recipe_is_dropped_in_vain(recipes):
    book = RecipeBook("any", recipes)
    kept = [way for ways in book.recipes.values() for way in ways]
    made_of: dict[str, set[str]] = {}
    for each in recipes:
        parts, size = {i.name for i in each.inputs}, -1
        while size < len(parts):
            size = len(parts)
            parts |= {below for part in parts for below in made_of.get(part, ())}
        assert (each.output not in parts) == (each in kept)
        if each in kept:
            made_of.setdefault(each.output, set()).update(i.name for i in each.inputs)


def test_numbers_too_long_for_python_are_refused():
    digits = "9" * 5000
    assert not Crafting(BOOK, "").do(f"get {digits} stone").ok
    assert not Crafting(BOOK, "").do(f"craft {digits} stick using 1 stone").ok
    assert not Crafting(BOOK, "").do(f"craft stick using {digits} stone").ok


def test_the_rules_of_the_book_hold():
    assert BOOK.families == {"minecraft:planks", "minecraft:sign"}
    assert "minecraft:oak_logs" in BOOK.base, "a family that nothing provides is a base item"
    assert "minecraft:nugget" not in BOOK.recipes, "a recipe from one block is dropped"
    assert "minecraft:stone" not in BOOK.recipes, "a recipe that closes a circle is dropped"
    assert BOOK.depth == {
        "minecraft:oak_planks": 1,
        "minecraft:birch_planks": 1,
        "minecraft:stick": 2,
        "minecraft:oak_sign": 3,
        "minecraft:pair": 1,
    }


COMMANDS = st.one_of(
    st.text(),
    st.from_regex(r"(craft|get|inventory).*", fullmatch=True),
    st.builds(
        "craft {} {} using {} {}, {} {}".format,
        st.integers(0, 9),
        st.sampled_from(["stick", "planks", "oak planks", "pair", "nothing"]),
        st.integers(0, 9),
        st.sampled_from(["oak logs", "planks", "stone", "birch planks"]),
        st.integers(0, 9),
        st.sampled_from(["stick", "stone", "oak planks"]),
    ),
    st.builds("get {} {}".format, st.integers(0, 9), st.sampled_from(["stone", "oak logs", "planks", "pair"])),
    st.sampled_from([r.text for ways in BOOK.recipes.values() for r in ways]),
)


@given(st.lists(COMMANDS, max_size=30))
def test_no_command_raises_and_a_refused_one_changes_nothing(commands):
    world = Crafting(BOOK, "minecraft:oak_sign")
    for command in commands:
        before = list(world.inventory.items())
        result = world.do(command)
        if not result.ok:
            assert list(world.inventory.items()) == before and not result.done
            assert result.text.startswith(("Could not ", "Wrong item format: "))


@pytest.fixture
def recordings(shared: Path) -> tuple[Path, Path]:
    return shared / "data" / "textcraft" / "recipes", shared / "golden" / "textcraft"


def test_the_world_equals_the_original_on_every_recorded_step(recordings):
    recipes, golden = recordings
    report = compare(recipes, [golden / "episodes_a.json"], golden / "tree.json", TextCraft)
    assert not report.differences, report.text()
    assert report.counts["craftable items with their recipes"] == 544
    assert report.counts["steps of the world"] == report.counts["steps of the environment"] == 1755


def test_a_difference_is_found_listed_and_told_by_the_exit_status(recordings, tmp_path, capsys):
    recipes, golden = recordings
    episodes = json.loads((golden / "episodes_a.json").read_text())[:2]
    episodes[0]["steps"][1]["obs"] = "something else"
    episodes[1]["reset"] = episodes[1]["reset"].replace(
        "Crafting commands:\n", "Crafting commands:\ncraft 1 moon using 1 egg\n"
    )
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(episodes))
    assert main(["textcraft", "--recipes", str(recipes), "--episodes", str(changed)]) == 1
    printed = capsys.readouterr().out
    assert "4 differences" in printed
    assert "episode 0 (minecraft:cyan_banner), step 1" in printed and "craft 1 moon using 1 egg" in printed
    assert "recipe book: not compared" in printed
