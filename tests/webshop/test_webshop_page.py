from __future__ import annotations

import random
from dataclasses import asdict
from statistics import mean

import pytest

from envsuite.webshop.assortment import kinds
from envsuite.webshop.catalogue import KINDS
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import Shop, ShopDifficulty


@pytest.fixture
def page(page: str) -> str:
    """The page without line breaks."""
    return " ".join(page.split())


def pool(seeds: range, places: slice) -> set[int]:
    """Returns the goals at these places of the list, over workers that shuffle it with these seeds."""
    goals = set()
    for seed in seeds:
        order = list(range(6910))
        random.Random(seed).shuffle(order)
        goals.update(order[places])
    return goals


def test_every_goal_is_in_both_pools_of_verl_agent_as_the_page_says(page: str) -> None:
    assert len(pool(range(16), slice(500, None))) == len(pool(range(1000, 1128), slice(500))) == 6910
    assert "So all 6,910 goals are in both pools, over 16 training and 128 validation workers" in page


@pytest.mark.parametrize("kind", KINDS)
def test_the_counts_on_the_page_are_those_of_the_task_sets(page: str, kind: str) -> None:
    splits = WebShop(goals=kind, source="builtin").tasks.splits  # type: ignore[arg-type]
    counts = " | ".join(f"{len(splits[split]):,}" for split in ("train", "dev", "test"))
    assert f"| {kind} | {counts} |" in page


def test_the_knobs_and_figures_on_the_page_are_those_of_the_shop(page: str) -> None:
    for name, default in asdict(ShopDifficulty()).items():
        assert f"| `{name}` | {default} |" in page
    products = list(Shop().raw_products())
    assert f"{len(kinds())} kinds" in page
    assert f"titles are shorter ({mean(len(raw.title.split()) for raw in products):.0f} words" in page
    assert f"({mean(len(raw.description.split()) for raw in products):.0f} words, the official 79)" in page
    assert f"({mean(len(raw.options) for raw in products):.1f} options" in page
    assert mean(len(raw.prices) == 2 for raw in products) == pytest.approx(0.1, abs=0.02), "one in ten a range"
