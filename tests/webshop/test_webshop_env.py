"""WebShop-v0: rewards, refusals, experts, its page, and the player that a base model imitates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import pytest
from shopping import play
from teaching import played

from envsuite.core import DataError, ToolCall, ToolEnv, UnknownName, UnknownTask, UsageError
from envsuite.webshop.assortment import kinds
from envsuite.webshop.catalogue import KINDS, Catalogue
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import WebShopExpert, WebShopLexical, plan
from envsuite.webshop.generate import Shop, ShopDifficulty
from envsuite.webshop.player import Shopper, judge_cards, query
from envsuite.webshop.products import Card
from envsuite.webshop.reward import options_matched

Make = Callable[..., ToolEnv]
Mode = Literal["text", "structured"]
MODES: tuple[Mode, ...] = ("text", "structured")
KETTLE = "B000000001/synthetic-1"


def search(query: str) -> tuple[ToolCall, ...]:
    return (ToolCall("search", {"query": query}),)


def click(element: str) -> tuple[ToolCall, ...]:
    return (ToolCall("click", {"element": element}),)


@pytest.fixture(scope="session")
def small(shop_path: Path) -> Make:
    """Makes an environment of the small shop."""
    return partial(WebShop, source=shop_path, split="dev")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("reward", "partly"), [("graded", 4 / 5), ("binary", 0.0)])
def test_a_reward_is_the_score_or_by_choice_the_success_alone(small, mode, reward, partly):
    env = small(reward=reward, mode=mode)
    for options, earned, score in ((["navy | blue"], partly, 4 / 5), (["navy | blue", "2 l"], 1.0, 1.0)):
        _, info = env.reset(options={"task_id": KETTLE})
        assert info["versions"]["reward"] == reward and info["task_type"] == "garden"
        for action in (search("steel kettle"), click("B000000001"), *map(click, options)):
            assert env.step(action)[1] == 0.0
        observation, got, terminated, _, info = env.step(click("Buy Now"))
        assert terminated and got == pytest.approx(earned) and observation["commands"] == ()
        assert info["score"] == pytest.approx(score), "whatever the reward"
        assert info["success"] is (score == 1.0) and info["metrics"]["options"] == len(options) / 2
        assert info["metrics"]["attributes"] == info["metrics"]["type"] == 1.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", [click("buy now"), click(""), search(""), click("x" * 10_000)])
def test_what_is_not_there_costs_a_step_changes_nothing_and_is_said(small, mode, action):
    env = small(mode=mode)
    before, _ = env.reset(options={"task_id": KETTLE})
    state = env.session.state
    observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["valid"], env.session.state) == (0.0, False, False, state)
    assert info["error"] and len(info["error"]) < 200
    if mode == "text":
        assert observation == before, "as in the original"
    else:
        assert info["error"] in observation["text"] and before["text"] in observation["text"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"search": "lucen"}, UnknownName, r"Nearest: 'lucene'\. Known: lucene, bm25"),
        ({"split": "test"}, UnknownTask, "Known: dev, train"),
        ({"source": "."}, DataError, "no WebShop data"),
        ({"source": "items_shuffle.json"}, DataError, "give the folder"),
        ({"source": None, "difficulty": {"near_mises": 1}}, UnknownName, r"difficulty of WebShop-v0.*near_mises"),
        ({"source": None, "products": -5}, UsageError, "products, got -5"),
    ],
)
def test_wrong_arguments_are_refused_with_what_exists(arguments, error, said, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        small(**arguments)
    with pytest.raises(UnknownTask, match="B000000001/synthetic"):
        small().reset(options={"task_id": "B000000001/synthetic-9"})


@pytest.mark.parametrize("mode", MODES)
def test_the_expert_earns_one_wherever_the_options_of_the_product_allow_it(official_path, mode):
    env = WebShop(source=official_path, mode=mode)
    catalogue: Catalogue = env.catalogue
    solved = 0
    for task_id in env.tasks.ids("train")[:150]:
        reward = play(env, WebShopExpert(), task_id)
        goal = catalogue.goal(task_id)
        every = [value for values in catalogue.product(goal.asin).options.values() for value in values]
        if options_matched(every, goal.options) == len(goal.options):
            assert reward == 1.0, task_id
            solved += 1
    assert solved > 130


def test_the_expert_and_the_baseline_play_goals_of_people(official_path):
    env = WebShop(source=official_path, goals="human", split="dev")
    rewards = [play(env, WebShopExpert(), task_id) for task_id in env.tasks.ids("dev")]
    assert sum(rewards) / len(rewards) > 0.9
    assert all(play(env, WebShopLexical(), task_id) >= 0.0 for task_id in env.tasks.ids("dev"))


def test_where_no_query_finds_the_target_the_expert_buys_the_first_product_found(shop_path):
    env = WebShop(source=shop_path, split="dev", search=lambda query, most: ["B000000006", "B000000002"])
    assert play(env, WebShopExpert(), KETTLE) < 1.0
    assert env.session.done and env.session.state.asin == "B000000006"


def test_an_option_that_cannot_count_is_still_chosen_as_asked(official):
    goal = official.goal("B07FKGQKZ1/synthetic-40")
    assert dict(plan(official.product(goal.asin), goal))["item shape"] == "rectangular"


@pytest.fixture
def page(page: str) -> str:
    """The page without line breaks."""
    return " ".join(page.split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_counts_on_the_page_are_those_of_the_task_sets(page, kind):
    splits = WebShop(goals=kind, source="builtin").tasks.splits  # type: ignore[arg-type]
    counts = " | ".join(f"{len(splits[split]):,}" for split in ("train", "dev", "test"))
    assert f"| {kind} | {counts} |" in page


def test_the_knobs_and_figures_on_the_page_are_those_of_the_shop(page):
    for name, default in asdict(ShopDifficulty()).items():
        assert f"| `{name}` | {default} |" in page
    products = list(Shop().raw_products())
    assert f"{len(kinds())} kinds" in page
    assert f"titles are shorter ({mean(len(raw.title.split()) for raw in products):.0f} words" in page
    assert f"({mean(len(raw.description.split()) for raw in products):.0f} words, the official 79)" in page
    assert f"({mean(len(raw.options) for raw in products):.1f} options" in page
    assert mean(len(raw.prices) == 2 for raw in products) == pytest.approx(0.1, abs=0.02), "one in ten a range"


EASY = {"attributes": 2, "hidden": 0, "vagueness": 0}
FORMS = (r"([a-z]{2} \d+ > \d+\. )*[a-z]{2} \d+ < \d+", r"[a-z0-9 -]+(, [a-z0-9 -]+)*")
"""All that the player ever says: which product is cheap enough, and which options it will choose."""


@pytest.fixture(scope="module")
def env() -> Any:
    return WebShop(source="builtin", goals="human", products=300, mode="structured", difficulty=EASY)


def test_a_careful_player_earns_nearly_everything_by_words_that_stand_in_the_instruction_or_on_the_page(env):
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


def test_the_first_product_that_is_cheap_enough_is_opened_and_those_before_it_are_said_to_be_too_dear():
    cards = [Card("GH12CD34EF", "a kettle", "$70.5"), Card("KD12CD34EF", "a kettle", "$16.0 to $19.0")]
    assert judge_cards(cards, 40.0) == ("gh 70 > 40. kd 16 < 40", "KD12CD34EF")
    assert judge_cards(cards, 10.0) == ("", "GH12CD34EF")


def test_with_vague_wishes_and_hidden_facts_it_asks_in_the_shop_s_words(env):
    goal = env.session.goal
    facts = [attribute for attribute in goal.attributes if attribute in query(goal)]
    assert facts
    vague = goal.__class__(
        **{name: getattr(goal, name) for name in goal.__slots__} | {"instruction": f"a {goal.query}"}
    )
    assert all(fact in query(vague) for fact in facts)


def test_a_player_that_slips_still_buys_what_was_asked_for_and_a_dreamy_one_only_clicks_wrong_values(env):
    tasks, bought, slips = env.tasks.ids("train")[:200], 0, {"hasty": 0, "dreamy": 0}
    for task_id, kind in product(tasks, slips):
        turns = played(env, task_id, Shopper(**{kind: 0.3}))
        bought += turns[-1].reward == 1.0
        options = env.session.catalogue.product(env.session.goal.asin).options.values()
        wrong = [any(turn.argument in values for values in options) for turn in turns if turn.slip]
        assert kind == "hasty" or all(wrong)
        slips[kind] += len(wrong)
    assert min(slips.values()) > 25 and bought > 0.8 * 2 * len(tasks)


def test_a_rash_player_says_nothing_chooses_nothing_and_mostly_earns_a_part(env):
    rewards = []
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, Shopper(rash=1.0))
        assert [turn.thought for turn in turns] == ["", "", ""] and turns[-1].argument == "buy now"
        rewards.append(turns[-1].reward)
    assert sum(reward == 1.0 for reward in rewards) < 0.25 * len(rewards)
    assert 0.2 < sum(rewards) / len(rewards) < 0.6
