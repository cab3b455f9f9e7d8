from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.webshop.goals import ShoppingGoal
from envsuite.webshop.products import Product
from envsuite.webshop.reward import alike, options_matched, score, title_share, type_reward

KETTLE = Product(
    asin="B000000001",
    title="Steel Kettle",
    description="Boils water.",
    bullets=("easy clean", "BPA Free"),
    options={"color": ("red", "navy | blue")},
    attributes=("stainless steel",),
    category="garden",
    query="kettles",
    product_category="Home \u203a Kitchen \u203a Kettles",
    price_tag="$20.0",
    price=20.0,
    nouns=("steel", "kettle"),
)
GOAL = ShoppingGoal(
    asin="B000000001",
    instruction="Find me kettles",
    attributes=("stainless steel",),
    options=(("color", "red"),),
    price_upper=30.0,
    query="kettles",
    product_category="Home \u203a Kitchen \u203a Kettles",
    category="garden",
    nouns=("steel", "kettle"),
)
TEXTS = st.lists(st.text(max_size=6), max_size=3)


def test_the_right_product_with_its_option_earns_one() -> None:
    assert score(KETTLE, GOAL, ["red"]).total == 1.0
    assert score(KETTLE, GOAL, []).total == pytest.approx(2 / 3)
    assert score(replace(KETTLE, price=30.01), GOAL, ["red"]).total == pytest.approx(2 / 3)


def test_attributes_are_found_in_the_texts_where_the_list_lacks_them() -> None:
    for wanted, found in (("boils water", 1.0), ("bpa free", 1.0), ("BPA Free", 0.0), ("kettle", 1.0), ("wood", 0.0)):
        assert score(KETTLE, replace(GOAL, attributes=(wanted,)), []).r_att == found, wanted


@pytest.mark.parametrize(
    ("match", "share", "wanted"),
    [(True, 0.0, 0.0), (True, 0.05, 0.1), (True, 0.1, 1.0), (False, 0.2, 0.5), (False, 0.21, 1.0), (False, 0.05, 0.1)],
)
def test_the_type_depends_on_the_shared_nouns_first(match: bool, share: float, wanted: float) -> None:
    assert type_reward(match, share) == wanted


def test_nouns_of_the_goal_count_as_often_as_they_occur() -> None:
    assert title_share(("tea",), ("tea", "tea", "pot", "lid")) == 0.25
    assert title_share(("tea",), ()) == 0.2


def test_options_are_compared_by_colour_and_pairs_as_the_original_writes_them_out() -> None:
    assert options_matched(["dark red"], ["darkness"]) == 1, "both are the colour dark"
    assert options_matched(["navy | blue"], [("color", "blue")]) == 1, "blue is before navy in the list, and equal"
    assert options_matched(["rectangular"], [("shape", "rectangular")]) == 0, "the original sees the colour tan in it"
    assert options_matched(["size"], [("size", "5")]) == 1, "the name of the option counts as well"
    assert options_matched(["5"], [("size", "5")]) == 1
    assert options_matched([], [("size", "5")]) == options_matched(["5"], []) == 0


def test_likeness_is_of_the_words_whatever_their_order_and_signs() -> None:
    assert alike("Steel, stainless!", "stainless steel") and alike("steel", "stainless steel")
    assert not alike("steal", "stainless") and not alike("", "") and not alike("\u2605", "\u2605")


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.text(), st.text(), st.floats(0, 1e7))
def test_every_reward_lies_in_the_unit_interval(
    nouns: list[str], wanted: list[str], chosen: list[str], attributes: list[str], query: str, path: str, price: float
) -> None:
    product = replace(KETTLE, nouns=tuple(nouns), query=query, product_category=path, price=price)
    options = tuple((text, text[::-1]) for text in attributes)
    goal = replace(GOAL, nouns=tuple(wanted), attributes=("a", *attributes), options=options)
    result = score(product, goal, chosen)
    assert 0.0 <= result.total <= 1.0 and 0.0 <= result.r_att <= 1.0
    assert result.r_option is None or 0.0 <= result.r_option <= 1.0
