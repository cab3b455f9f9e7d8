"""The player that a base model imitates in the built-in shop."""

import re
from itertools import product
from typing import Any

import pytest
from teaching import played

from envsuite.webshop.env import WebShop
from envsuite.webshop.player import Shopper, judge_cards, query
from envsuite.webshop.products import Card

EASY = {"attributes": 2, "hidden": 0, "vagueness": 0}
FORMS = (r"([a-z]{2} \d+ > \d+\. )*[a-z]{2} \d+ < \d+", r"[a-z0-9 -]+(, [a-z0-9 -]+)*")
"""All that the player ever says: which product is cheap enough, and which options it will choose."""


@pytest.fixture(scope="module")
def env() -> Any:
    return WebShop(source="builtin", goals="human", products=300, mode="structured", difficulty=EASY)


def test_a_careful_player_earns_nearly_everything_by_words_that_stand_in_the_instruction_or_on_the_page(
    env: Any,
) -> None:
    buttons, rewards = ("buy now", "back to search", "< prev"), list[float]()
    for task_id in env.tasks.ids("train"):
        env.reset(options={"task_id": task_id})
        task = page = env.session.goal.instruction
        turns = played(env, task_id, Shopper())
        rewards.append(turns[-1].reward)
        for turn in turns:
            assert turn.info["valid"]
            assert not turn.thought or any(re.fullmatch(form, turn.thought) for form in FORMS), turn.thought
            known = f"{task} {page}".lower()
            said = turn.thought + ("" if turn.argument in buttons else f" {turn.argument}")
            for word in re.findall(r"[\w'-]+", said):
                assert word in known, (word, known)
            page = turn.text
    assert sum(reward == 1.0 for reward in rewards) > 0.9 * len(rewards)
    assert sum(rewards) > 0.97 * len(rewards)


def test_the_first_product_that_is_cheap_enough_is_opened_and_those_before_it_are_said_to_be_too_dear() -> None:
    cards = [Card("GH12CD34EF", "a kettle", "$70.5"), Card("KD12CD34EF", "a kettle", "$16.0 to $19.0")]
    assert judge_cards(cards, 40.0) == ("gh 70 > 40. kd 16 < 40", "KD12CD34EF")
    assert judge_cards(cards, 10.0) == ("", "GH12CD34EF")


def test_with_vague_wishes_and_hidden_facts_it_asks_in_the_shop_s_words(env: Any) -> None:
    goal = env.session.goal
    facts = [attribute for attribute in goal.attributes if attribute in query(goal)]
    assert facts
    vague = goal.__class__(
        **{name: getattr(goal, name) for name in goal.__slots__} | {"instruction": f"a {goal.query}"}
    )
    assert all(fact in query(vague) for fact in facts)


def test_a_player_that_slips_still_buys_what_was_asked_for_and_a_dreamy_one_only_clicks_wrong_values(env: Any) -> None:
    tasks, bought, slips = env.tasks.ids("train")[:200], 0, {"hasty": 0, "dreamy": 0}
    for task_id, kind in product(tasks, slips):
        turns = played(env, task_id, Shopper(**{kind: 0.3}))
        bought += turns[-1].reward == 1.0
        options = env.session.catalogue.product(env.session.goal.asin).options.values()
        wrong = [any(turn.argument in values for values in options) for turn in turns if turn.slip]
        assert kind == "hasty" or all(wrong)
        slips[kind] += len(wrong)
    assert min(slips.values()) > 25 and bought > 0.8 * 2 * len(tasks)


def test_a_rash_player_says_nothing_chooses_nothing_and_mostly_earns_a_part(env: Any) -> None:
    rewards = []
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, Shopper(rash=1.0))
        assert [turn.thought for turn in turns] == ["", "", ""] and turns[-1].argument == "buy now"
        rewards.append(turns[-1].reward)
    assert sum(reward == 1.0 for reward in rewards) < 0.25 * len(rewards)
    assert 0.2 < sum(rewards) / len(rewards) < 0.6
