import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsuite.webshop.goals import (
    NO_LIMIT,
    ShoppingGoal,
    Wish,
    choose,
    composed_wish,
    count,
    draw_limit,
    draw_price,
    human_wish,
    order,
)
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


def test_the_right_product_with_its_option_earns_one():
    assert score(KETTLE, GOAL, ["red"]).total == 1.0
    assert score(KETTLE, GOAL, []).total == pytest.approx(2 / 3)
    assert score(replace(KETTLE, price=30.01), GOAL, ["red"]).total == pytest.approx(2 / 3)


def test_attributes_are_found_in_the_texts_where_the_list_lacks_them():
    for wanted, found in (("boils water", 1.0), ("bpa free", 1.0), ("BPA Free", 0.0), ("kettle", 1.0), ("wood", 0.0)):
        assert score(KETTLE, replace(GOAL, attributes=(wanted,)), []).r_att == found, wanted


@pytest.mark.parametrize(
    ("match", "share", "wanted"),
    [(True, 0.0, 0.0), (True, 0.05, 0.1), (True, 0.1, 1.0), (False, 0.2, 0.5), (False, 0.21, 1.0), (False, 0.05, 0.1)],
)
def test_the_type_depends_on_the_shared_nouns_first(match, share, wanted):
    assert type_reward(match, share) == wanted


def test_nouns_of_the_goal_count_as_often_as_they_occur():
    assert title_share(("tea",), ("tea", "tea", "pot", "lid")) == 0.25
    assert title_share(("tea",), ()) == 0.2


def test_options_are_compared_by_colour_and_pairs_as_the_original_writes_them_out():
    assert options_matched(["dark red"], ["darkness"]) == 1, "both are the colour dark"
    assert options_matched(["navy | blue"], [("color", "blue")]) == 1, "blue is before navy in the list, and equal"
    assert options_matched(["rectangular"], [("shape", "rectangular")]) == 0, "the original sees the colour tan in it"
    assert options_matched(["size"], [("size", "5")]) == 1, "the name of the option counts as well"
    assert options_matched(["5"], [("size", "5")]) == 1
    assert options_matched([], [("size", "5")]) == options_matched(["5"], []) == 0


def test_likeness_is_of_the_words_whatever_their_order_and_signs():
    assert alike("Steel, stainless!", "stainless steel") and alike("steel", "stainless steel")
    assert not alike("steal", "stainless") and not alike("", "") and not alike("\u2605", "\u2605")


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.text(), st.text(), st.floats(0, 1e7))
def test_every_reward_lies_in_the_unit_interval(nouns, wanted, chosen, attributes, query, path, price):
    product = replace(KETTLE, nouns=tuple(nouns), query=query, product_category=path, price=price)
    options = tuple((text, text[::-1]) for text in attributes)
    goal = replace(GOAL, nouns=tuple(wanted), attributes=("a", *attributes), options=options)
    result = score(product, goal, chosen)
    assert 0.0 <= result.total <= 1.0 and 0.0 <= result.r_att <= 1.0
    assert result.r_option is None or 0.0 <= result.r_option <= 1.0


OPTIONS = st.dictionaries(
    st.text(min_size=1, max_size=4), st.lists(st.text(max_size=4), max_size=4).map(tuple), max_size=3
)


@given(OPTIONS)
def test_composed_goals_are_all_combinations_in_the_order_of_nested_loops(options):
    wish = Wish("Find me kettles", ("plain",), None, 20.0)
    names = sorted(options)
    wanted = [tuple(zip(names, values, strict=True)) for values in product(*(options[name] for name in names))]
    assert count(wish, options) == len(wanted)
    for number, combination in enumerate(wanted):
        text, chosen = choose(wish, options, number)
        assert chosen == combination
        asked = ", and ".join(f"{name}: {value}" for name, value in combination)
        assert text == f"Find me kettles{' with ' * bool(asked)}{asked}, and price lower than 20.00 dollars"


@example(970.0, 0)  # of the limits that are drawn, two are above: the second is it
@example(979.5, 1)
@given(st.floats(0.0, 2000.0), st.integers())
def test_a_limit_is_one_of_the_second_to_fourth_ten_above_the_price(price, seed):
    limit = draw_limit(price, random.Random(seed))
    if price >= 980.0:
        assert limit == NO_LIMIT
    else:
        assert limit > price + 10 - 1e-9 and limit <= price + 40 and limit % 10 == 0


@given(st.lists(st.floats(0.5, 900.0), min_size=1, max_size=3), st.integers())
def test_a_price_lies_between_those_that_the_tag_names(prices, seed):
    drawn = draw_price(prices, random.Random(seed))
    low, high = sorted((prices * 2)[:2] if len(prices) == 1 else prices[:2])
    assert low <= drawn <= high


def test_only_drawn_limits_use_the_generator_and_no_limit_is_said():
    rng = random.Random(1)
    state = rng.getstate()
    assert composed_wish(None, ("a",), 5.0, rng) is None and composed_wish("Find me", (), 5.0, rng) is None
    assert human_wish({"instruction": "x", "instruction_attributes": [], "instruction_options": []}, 5.0, rng) is None
    dear = human_wish(
        {"instruction": "a kettle..", "instruction_attributes": ["a"], "instruction_options": []}, 985.0, rng
    )
    assert dear == Wish("a kettle", ("a",), (), NO_LIMIT) and rng.getstate() == state


def test_the_order_is_the_published_shuffle():
    assert list(order(10)) == [5, 9, 0, 1, 4, 7, 6, 3, 8, 2]
    assert sorted(order(1000)) == list(range(1000))


def test_goals_of_a_catalogue_are_tasks_in_the_published_order_and_those_of_people_have_options(official):
    assert official.goals("human") == 13 and official.default_kind == "synthetic"
    goal = next(official.goals_of("B09R4RJSFP", "human"))
    assert goal.instruction.startswith("i need a 120 ml hair mask treatment, and price lower than ")
    assert goal.options == ("120ml",)
    tasks = official.tasks("synthetic", "official")
    assert {name: len(ids) for name, ids in tasks.splits.items()} == {"dev": 500, "train": 6410}
    assert tasks.ids("dev")[:2] == ("B0743JKHBV/synthetic-6", "B09QCP4579/synthetic-5")
    assert tasks.hash[:8] == "27ec3b6b"
    first = official.goal(tasks.ids("dev")[0])
    assert first.price_upper == 30.0 and first.options == (("size", '28" x 28"'),)
