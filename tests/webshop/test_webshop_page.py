from __future__ import annotations

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
