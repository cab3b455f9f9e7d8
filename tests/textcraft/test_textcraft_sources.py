from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envsuite.core import DataError, MissingExtra, UsageError
from envsuite.core.draws import Draw
from envsuite.textcraft import source
from envsuite.textcraft.generate import generated_book
from envsuite.textcraft.source import builtin_book, craftable_names, fold, folder_book, vocabulary
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import NAMESPACE, RecipeBook

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


def test_the_builtin_book_says_planks_where_any_planks_will_do() -> None:
    shown = texts(builtin_book())
    assert {
        "craft 4 stick using 2 planks",
        "craft 4 oak planks using 1 oak logs",
        "craft 1 white wool using 4 string",
    } <= shown
    assert {"craft 1 campfire using 3 stick, 1 coals, 3 logs", "craft 1 red bed using 1 white bed, 1 red dye"} <= shown


def test_the_builtin_book_is_nearly_the_official_one(shared: Path) -> None:
    ours, official = builtin_book(), folder_book(shared / "data" / "textcraft" / "recipes")
    assert official.recipes.keys() < ours.recipes.keys()
    assert len(ours.recipes) - len(official.recipes) == 3
    differing = {item for item, depth in official.depth.items() if ours.depth[item] != depth}
    assert len(differing) <= 5, differing


def test_recipes_of_every_combination_fold_into_one_and_those_from_one_ingredient_only_if_they_are_a_family() -> None:
    variants = [(1, {"stick": 3, coal: 1, log: 2}) for log in ("oak", "elm", "fir") for coal in ("coal", "charcoal")]
    families = {frozenset({"oak", "elm", "fir"}): "logs"}
    assert fold(variants, families) == [(1, {"stick": 3, "coal": 1, "logs": 2})]
    variants = [(1, {"poppy": 1}), (1, {"tulip": 1})]
    assert fold(variants, {}) == variants
    assert fold(variants, {frozenset({"poppy", "tulip"}): "flowers"}) == [(1, {"flowers": 1})]


@pytest.mark.parametrize("seed", range(5))
def test_a_generated_book_has_the_goals_asked_for_no_deeper_than_asked(seed: int) -> None:
    for goals, deepest in ((1, 2), (40, 3), (300, 4)):
        book = generated_book(seed, goals, deepest)
        deep = [depth for depth in book.depth.values() if depth >= 2]
        assert len(deep) == goals and max(deep) <= deepest
        assert len(book.depth) == len(book.recipes), "every item can be made"


def test_generated_names_are_new_and_of_known_words() -> None:
    book = generated_book(7, 1000)
    words = set(vocabulary())
    for item in book.recipes:
        name = item.removeprefix(NAMESPACE)
        assert name not in craftable_names()
        assert words.issuperset(name.split("_"))
    everything = {*book.recipes, *book.base, *book.families}
    assert len(everything) == len(book.recipes) + len(book.base) + len(book.families)


def test_generated_books_have_the_depths_and_families_of_minecrafts() -> None:
    ours, real = generated_book(3, 2000), builtin_book()
    for depth, slack in ((2, 0.12), (3, 0.12), (4, 0.08)):
        shares = [
            sum(d == depth for d in b.depth.values()) / sum(d > 1 for d in b.depth.values()) for b in (ours, real)
        ]
        assert abs(shares[0] - shares[1]) < slack
    assert len(ours.families) >= 10
    assert any(i.family for ways in ours.recipes.values() for recipe in ways for i in recipe.inputs)


def test_generated_names_share_words_with_their_ingredients_about_as_often_as_minecrafts() -> None:
    def share(book: RecipeBook) -> float:
        ways = [recipe for found in book.recipes.values() for recipe in found]
        alike = [any(set(plain(recipe.output)) & set(plain(i.name)) for i in recipe.inputs) for recipe in ways]
        return sum(alike) / len(alike)

    def plain(name: str) -> list[str]:
        return name.removeprefix(NAMESPACE).split("_")

    assert abs(share(generated_book(3, 2000)) - share(builtin_book())) < 0.06


def test_a_generated_book_needs_a_goal() -> None:
    with pytest.raises(UsageError, match="goals >= 1"):
        generated_book(0, 0)


def test_draws_depend_on_nothing_but_the_key() -> None:
    draw = Draw("a key")
    assert [draw.below(1000) for _ in range(4)] == [828, 534, 795, 433]
    assert draw.sample("abcdef", 3) == ["e", "f", "c"]


def test_of_a_folder_the_crafting_recipes_are_read_whose_shapes_count_the_cells_of_each_ingredient(
    tmp_path: Path,
) -> None:
    smelting = {"type": "minecraft:smelting", "ingredient": {"item": "minecraft:log"}, "result": "minecraft:charcoal"}
    key = {"#": {"item": "minecraft:oak_planks"}, "X": {"item": "minecraft:stick"}}
    shaped = {"type": "minecraft:crafting_shaped", "pattern": ["###", "###", " X "], "key": key}
    sign = {**shaped, "result": {"item": "minecraft:oak_sign", "count": 3}}
    folder = write(tmp_path, b_planks=OAK_PLANKS, a_smelting=smelting, sign=sign)
    (tmp_path / "notes.txt").write_text("not a recipe")
    recipes = {"craft 4 oak planks using 1 oak logs", "craft 3 oak sign using 6 oak planks, 1 stick"}
    assert texts(folder_book(folder)) == recipes


@pytest.mark.parametrize("inner", ["", "recipes"])
def test_official_data_is_found_in_the_data_folder_or_its_folder_recipes(
    inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_corrupt_recipe_is_named(tmp_path: Path, body: str) -> None:
    with pytest.raises(DataError, match=r"broken\.json"):
        folder_book(write(tmp_path, planks=OAK_PLANKS, broken=body))


def test_a_missing_package_is_answered_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minecraft_data", None)
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[textcraft\]'"):
        source._minecraft("items.json")


def test_a_folder_that_is_missing_or_has_no_recipes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for source_, said in (
        (str(tmp_path), r"no crafting recipe among 0 \.json files; source= must name"),
        ("buildin", "source= takes 'builtin', 'generated', 'official'"),
        ("official", str(tmp_path / "textcraft")),
    ):
        with pytest.raises(DataError, match=said):
            load(source_)
