"""The player that a base model imitates in the built-in shop."""

import re
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


def test_a_careful_player_earns_full_reward_for_nearly_every_goal(env: Any) -> None:
    turns = [played(env, task_id, Shopper()) for task_id in env.tasks.ids("train")]
    assert all(turn.info["valid"] for one in turns for turn in one)
    rewards = [one[-1].reward for one in turns]
    assert sum(reward == 1.0 for reward in rewards) > 0.9 * len(rewards)
    assert sum(rewards) > 0.97 * len(rewards)


def test_each_word_that_a_careful_player_says_or_does_stands_in_the_instruction_or_on_the_page(env: Any) -> None:
    buttons = ("buy now", "back to search", "< prev")
    for task_id in env.tasks.ids("train"):
        env.reset(options={"task_id": task_id})
        task = page = env.session.goal.instruction
        for turn in played(env, task_id, Shopper()):
            assert not turn.thought or any(re.fullmatch(form, turn.thought) for form in FORMS), turn.thought
            known = f"{task} {page}".lower()
            said = turn.thought + ("" if turn.argument in buttons else f" {turn.argument}")
            for word in re.findall(r"[\w'-]+", said):
                assert word in known, (word, known)
            page = turn.text


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


def test_a_player_that_slips_still_buys_what_was_asked_for(env: Any) -> None:
    tasks = env.tasks.ids("train")[:200]
    turns = [played(env, task_id, Shopper(hasty=0.2, dreamy=0.2)) for task_id in tasks]
    assert sum(turn.slip for one in turns for turn in one) > 50
    assert sum(one[-1].reward == 1.0 for one in turns) > 0.8 * len(tasks)


def test_a_dreamy_player_clicks_wrong_values_of_options_and_nothing_else_that_is_wrong(env: Any) -> None:
    slips = []
    for task_id in env.tasks.ids("train")[:40]:
        turns = played(env, task_id, Shopper(dreamy=0.3))
        options = env.session.catalogue.product(env.session.goal.asin).options.values()
        slips += [any(turn.argument in values for values in options) for turn in turns if turn.slip]
    assert len(slips) > 10 and all(slips)


def test_a_rash_player_says_nothing_chooses_nothing_and_mostly_earns_a_part(env: Any) -> None:
    rewards = []
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, Shopper(rash=1.0))
        assert [turn.thought for turn in turns] == ["", "", ""] and turns[-1].argument == "buy now"
        rewards.append(turns[-1].reward)
    assert sum(reward == 1.0 for reward in rewards) < 0.25 * len(rewards)
    assert 0.2 < sum(rewards) / len(rewards) < 0.6
