from __future__ import annotations

import random
from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.goals import (
    NO_LIMIT,
    Wish,
    choose,
    composed_wish,
    count,
    draw_limit,
    draw_price,
    human_wish,
    order,
)

OPTIONS = st.dictionaries(
    st.text(min_size=1, max_size=4), st.lists(st.text(max_size=4), max_size=4).map(tuple), max_size=3
)


@given(OPTIONS)
def test_composed_goals_are_all_combinations_in_the_order_of_nested_loops(options: dict[str, tuple[str, ...]]) -> None:
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
def test_a_limit_is_one_of_the_second_to_fourth_ten_above_the_price(price: float, seed: int) -> None:
    limit = draw_limit(price, random.Random(seed))
    if price >= 980.0:
        assert limit == NO_LIMIT
    else:
        assert limit > price + 10 - 1e-9 and limit <= price + 40 and limit % 10 == 0


@given(st.lists(st.floats(0.5, 900.0), min_size=1, max_size=3), st.integers())
def test_a_price_lies_between_those_that_the_tag_names(prices: list[float], seed: int) -> None:
    drawn = draw_price(prices, random.Random(seed))
    low, high = sorted((prices * 2)[:2] if len(prices) == 1 else prices[:2])
    assert low <= drawn <= high


def test_only_drawn_limits_use_the_generator_and_no_limit_is_said() -> None:
    rng = random.Random(1)
    state = rng.getstate()
    assert composed_wish(None, ("a",), 5.0, rng) is None and composed_wish("Find me", (), 5.0, rng) is None
    assert human_wish({"instruction": "x", "instruction_attributes": [], "instruction_options": []}, 5.0, rng) is None
    dear = human_wish(
        {"instruction": "a kettle..", "instruction_attributes": ["a"], "instruction_options": []}, 985.0, rng
    )
    assert dear == Wish("a kettle", ("a",), (), NO_LIMIT) and rng.getstate() == state


def test_the_order_is_the_published_shuffle() -> None:
    assert list(order(10)) == [5, 9, 0, 1, 4, 7, 6, 3, 8, 2]
    assert sorted(order(1000)) == list(range(1000))


def test_goals_of_a_catalogue_are_tasks_in_the_published_order_and_those_of_people_have_options(
    official: Catalogue,
) -> None:
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
