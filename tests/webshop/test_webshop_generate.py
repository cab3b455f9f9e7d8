from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shop_files import ENTRIES, write_official
from shopping import play

from envsuite.core import DataError
from envsuite.core.errors import UsageError
from envsuite.data.places import cache_root
from envsuite.webshop.build import build
from envsuite.webshop.catalogue import KINDS, Catalogue
from envsuite.webshop.documents import document
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import WebShopExpert, WebShopLexical, plan
from envsuite.webshop.generate import WISHES, Shop, ShopDifficulty
from envsuite.webshop.goals import ShoppingGoal
from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.products import Product
from envsuite.webshop.reward import score
from envsuite.webshop.source import RawProduct
from envsuite.webshop.tasks import load

SHOPS = st.builds(
    Shop,
    st.integers(0, 10**12),
    st.integers(1, 60),
    st.builds(
        ShopDifficulty,
        st.integers(0, 20),
        st.integers(1, 6),
        st.integers(0, 3),
        st.sampled_from((0, 40, 100)),
        st.sampled_from((0, 40, 100)),
    ),
)


def content(shop: Shop) -> str:
    """SHA-256 over all that a shop gives."""
    rows = (*map(asdict, shop.raw_products()), *shop.known_attributes(), *shop.wishes_of_people().items())
    return hashlib.sha256("\n".join(map(repr, rows)).encode()).hexdigest()


@contextmanager
def families(shop: Shop) -> Iterator[tuple[list[list[Product]], Callable[[Product], list[ShoppingGoal]]]]:
    """The families of products of the shop's catalogue, and what gives all goals whose target is a product."""
    with TemporaryDirectory() as folder:
        catalogue = Catalogue(build(shop, Path(folder) / "shop.catalogue", BuiltinNouns()))
        products = [catalogue.product(shop.asin(number)) for number in range(shop.products)]
        yield (
            [products[first : first + shop.family] for first in range(0, len(products), shop.family)],
            lambda product: [goal for kind in KINDS for goal in catalogue.goals_of(product.asin, kind)],
        )


@pytest.mark.parametrize(
    ("shop", "digest"),
    [
        (Shop(products=200), "3eae80971f7500f71b1239b75c95132f61d621c6ddd5b8987977eabee2e1d532"),
        (
            Shop(7, 60, ShopDifficulty(0, attributes=2, options=0, hidden=0, vagueness=0)),
            "05764c1eaf4b98857244959cc8b0e2fddf715e9863698045ebf824e04624e234",
        ),
        (
            Shop(7, 60, ShopDifficulty(3, attributes=4, options=3, hidden=100, vagueness=100)),
            "8fd4768b91118c27e4c68af8efcb950c007bea1e262a8edf66d165922aaeb7ef",
        ),
    ],
)
def test_a_seed_gives_this_shop_for_ever_or_the_edition_is_another(shop, digest):
    assert content(shop) == digest


@settings(max_examples=20)
@given(SHOPS, st.integers(0, 70))
def test_every_product_stands_for_itself(shop, skip):
    products = list(shop.raw_products())
    assert len(products) == shop.products
    assert list(shop.raw_products(skip)) == products[skip:]
    assert list(Shop(shop.seed, shop.products + 13, shop.difficulty).raw_products())[: len(products)] == products


@pytest.mark.parametrize("seed", [0, 2**70])
def test_no_two_products_share_an_asin(seed):
    shop = Shop(seed)
    numbers = (*range(100_000), *range(2**32 - 1000, 2**32))
    asins = {shop.asin(number) for number in numbers}
    assert len(asins) == len(numbers)
    assert all(len(asin) == 10 and asin.isalnum() and asin == asin.upper() for asin in asins)


@settings(max_examples=20)
@given(SHOPS)
def test_every_goal_can_be_reached_and_near_misses_miss_it(shop):
    with families(shop) as (found, goals):
        for family in found:
            for product in family:
                for goal in goals(product):
                    assert score(product, goal, plan(product, goal).values()).total == 1.0, goal
            for goal, other in itertools.product(goals(family[0]), family[1:]):
                bought = score(other, goal, plan(other, goal).values())
                asked = 1 + len(goal.attributes) + len(goal.options)
                assert bought.r_type == 1.0 and bought.total == pytest.approx(1 - 1 / asked), (goal, other)


def _document(raw: RawProduct) -> str:
    options = {name: [{"value": value} for value in values] for name, values in raw.options.items()}
    texts = {"name": raw.title, "full_description": raw.description, "small_description": raw.bullets}
    return document({**texts, "customization_options": options})


def test_a_hidden_attribute_stands_in_features_and_nowhere_else():
    for hidden in (0, 100):
        shop = Shop(products=300, difficulty=ShopDifficulty(hidden=hidden))
        for raw, (number, planned) in zip(shop.raw_products(), shop._plans(0, 300), strict=True):
            assert raw.asin == shop.asin(number)
            label = planned.facts[0].label.lower()
            assert (label in _document(raw)) == (not hidden and label in raw.description.lower() + raw.title.lower())
            assert any(bullet.lower().startswith(f"{label}: ") for bullet in raw.bullets)


def test_what_is_not_vague_is_said_in_the_words_of_the_shop():
    plain = Shop(products=200, difficulty=ShopDifficulty(vagueness=0, options=1))
    labels = {fact.attribute: fact.label.lower() for _, found in plain._plans(0, 200) for fact in found.facts}
    for wishes in plain.wishes_of_people().values():
        for wish in wishes:
            assert all(labels[attribute] in wish["instruction"] for attribute in wish["instruction_attributes"])
            assert all(value in wish["instruction"] for value in wish["instruction_options"])
    vague = Shop(products=200, difficulty=ShopDifficulty(vagueness=100)).wishes_of_people()
    assert not any(
        labels.get(attribute, attribute) in wish["instruction"]
        for wishes in vague.values()
        for wish in wishes
        for attribute in wish["instruction_attributes"]
    )


def test_a_large_shop_has_no_more_instructions_of_people_than_the_official_one():
    wishes = Shop(products=30_000).wishes_of_people()
    assert 0.9 * WISHES < sum(map(len, wishes.values())) <= WISHES


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Shop(products=0), "a shop has from 1 to 4,294,967,296 products, got 0"),
        (lambda: Shop(products=1.5), "got 1.5"),
        (lambda: Shop(seed=-1), "the seed of a shop is a whole number from 0, got -1"),
        (lambda: ShopDifficulty(near_misses=21), "Difficulty.near_misses must be a whole number from 0 to 20, got 21"),
        (lambda: ShopDifficulty(hidden="all"), "Difficulty.hidden must be a whole number from 0 to 100, got 'all'"),
    ],
)
def test_numbers_out_of_range_are_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_every_knob_makes_another_shop():
    digests = {Shop().digest(), Shop(1).digest(), Shop(products=999).digest()}
    for field in fields(ShopDifficulty):
        digests.add(
            Shop(difficulty=ShopDifficulty(**{field.name: 1 + asdict(ShopDifficulty())[field.name] % 2})).digest()
        )
    assert len(digests) == 3 + len(fields(ShopDifficulty))


def test_without_official_files_the_shop_is_the_built_in_one():
    env = WebShop()
    _, info = env.reset(seed=0)
    versions = info["versions"]
    assert (versions["source"], versions["nouns"]) == ("builtin", "builtin-1")
    assert versions["data"] == f"1000 products {Shop().digest()[:12]}, nouns by builtin-1"
    assert load().meta["stock"] == "built-in shop 3, seed 0"
    assert env.tasks.hash == WebShop(source="builtin", goals="human").tasks.hash


def test_official_files_come_first_and_of_two_sets_the_one_that_is_named_is_played_as_results_tell(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    monkeypatch.setattr("envsuite.webshop.build.tagger", lambda name: BuiltinNouns())  # spaCy takes seconds to load
    small = write_official(tmp_path / "webshop", "_1000", ENTRIES[:3])
    assert WebShop(split="dev").reset(seed=0)[1]["versions"]["source"] == "official-1k"
    assert WebShop(source="builtin", products=8).reset(seed=0)[1]["versions"]["source"] == "builtin"
    full = write_official(tmp_path / "webshop", "")
    for name, files in (("official-1k", small), ("official-full", full)):
        env = WebShop(source=name, split="dev", goals="synthetic")
        versions = env.reset(seed=0)[1]["versions"]
        assert versions["source"] == env.tasks.source == name
        assert versions["data"].startswith(f"{len(env.catalogue)} products {files.digest()[:12]}"), "the products' hash"
        assert WebShop(source=env.catalogue.path, split="dev", goals="synthetic").tasks.hash == env.tasks.hash
    for source in (None, "official"):
        with pytest.raises(DataError, match=r"'official-1k' \(1,000 products\) or 'official-full' \(1.18 million\)"):
            WebShop(source=source)
    assert set(WebShop.argument_schemas()["source"]["examples"]) == {
        "builtin",
        "generated",
        "official-1k",
        "official-full",
    }


def test_a_shop_is_made_once_with_a_note_and_found_again(caplog):
    with caplog.at_level(logging.WARNING):
        began = time.process_time()
        WebShop(shop_seed=77, products=300)
        WebShop(shop_seed=77, products=300)
        took = time.process_time() - began
    (note,) = caplog.messages
    assert "building the WebShop catalogue" in note and "once" in note and str(cache_root()) in note
    assert took < 5, "seconds of this processor"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("near_misses", [0, 3])
def test_no_family_of_products_is_in_two_splits(kind, near_misses):
    shop = Shop(products=600, difficulty=ShopDifficulty(near_misses))
    numbers = {shop.asin(number): number for number in range(shop.products)}
    env = WebShop(products=600, goals=kind, difficulty={"near_misses": near_misses})
    families = {
        split: {numbers[task_id.partition("/")[0]] // shop.family for task_id in ids}
        for split, ids in env.tasks.splits.items()
    }
    count = sum(map(len, families.values()))
    assert list(families) == ["train", "dev", "test"] and count == len(set().union(*families.values()))
    near = 0.01 if kind == "human" else 0.1  # people want something of every family
    assert all(len(families[held_out]) / count == pytest.approx(0.1, abs=near) for held_out in ("dev", "test"))


def test_a_family_is_in_the_same_split_in_a_larger_shop_and_for_every_kind_of_goals():
    def placed(products: int, goals: Any) -> dict[str, str]:
        splits = WebShop(products=products, goals=goals).tasks.splits
        return {task_id.partition("/")[0]: split for split, ids in splits.items() for task_id in ids}

    small = placed(300, "human")
    assert small.items() <= placed(600, "human").items()
    assert placed(300, "synthetic").items() <= small.items()


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("products", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_expert_earns_one_for_every_goal_and_words_alone_do_not(products, kind):
    env = WebShop(split=None, goals=kind, products=products, mode="structured")
    ids = [task_id for split in env.tasks.splits.values() for task_id in split]
    assert all(play(env, WebShopExpert(), task_id) == 1.0 for task_id in ids)
    rewards = [play(env, WebShopLexical(), task_id) for task_id in ids[:200]]
    assert 0.15 < sum(reward == 1.0 for reward in rewards) / len(rewards) < 0.7
