from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from shop_files import ENTRIES, write_official
from shopping import play

from envsuite.core import DataError
from envsuite.data.places import cache_root
from envsuite.webshop.catalogue import KINDS
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import WebShopExpert, WebShopLexical
from envsuite.webshop.generate import Shop, ShopDifficulty
from envsuite.webshop.nouns import BuiltinNouns
from envsuite.webshop.tasks import load


def test_without_official_files_the_shop_is_the_built_in_one() -> None:
    env = WebShop()
    _, info = env.reset(seed=0)
    versions = info["versions"]
    assert (versions["source"], versions["nouns"]) == ("builtin", "builtin-1")
    assert versions["data"] == f"1000 products {Shop().digest()[:12]}, nouns by builtin-1"
    assert load().meta["stock"] == "built-in shop 3, seed 0"
    assert env.tasks.hash == WebShop(source="builtin", goals="human").tasks.hash


def test_official_files_come_first_and_of_two_sets_the_one_that_is_named_is_played_as_results_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_shop_is_made_once_with_a_note_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
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
def test_no_family_of_products_is_in_two_splits(kind: str, near_misses: int) -> None:
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


def test_a_family_is_in_the_same_split_in_a_larger_shop_and_for_every_kind_of_goals() -> None:
    def placed(products: int, goals: Any) -> dict[str, str]:
        splits = WebShop(products=products, goals=goals).tasks.splits
        return {task_id.partition("/")[0]: split for split, ids in splits.items() for task_id in ids}

    small = placed(300, "human")
    assert small.items() <= placed(600, "human").items()
    assert placed(300, "synthetic").items() <= small.items()


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("products", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_expert_earns_one_for_every_goal_and_words_alone_do_not(products: int, kind: Any) -> None:
    env = WebShop(split=None, goals=kind, products=products, mode="structured")
    ids = [task_id for split in env.tasks.splits.values() for task_id in split]
    assert all(play(env, WebShopExpert(), task_id) == 1.0 for task_id in ids)
    rewards = [play(env, WebShopLexical(), task_id) for task_id in ids[:200]]
    assert 0.15 < sum(reward == 1.0 for reward in rewards) / len(rewards) < 0.7
