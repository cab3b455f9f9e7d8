from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from shopping import play

from envsuite.core import DataError, ToolCall, ToolEnv, UnknownName, UnknownTask, UsageError
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import WebShopExpert, WebShopLexical, plan
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
def test_a_reward_is_the_score_or_by_choice_the_success_alone(
    small: Make, mode: Mode, reward: str, partly: float
) -> None:
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
def test_what_is_not_there_costs_a_step_changes_nothing_and_is_said(
    small: Callable[..., Any], mode: Mode, action: Any
) -> None:
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
def test_wrong_arguments_are_refused_with_what_exists(
    arguments: dict[str, Any], error: type[Exception], said: str, small: Make, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        small(**arguments)
    with pytest.raises(UnknownTask, match="B000000001/synthetic"):
        small().reset(options={"task_id": "B000000001/synthetic-9"})


@pytest.mark.parametrize("mode", MODES)
def test_the_expert_earns_one_wherever_the_options_of_the_product_allow_it(official_path: Path, mode: Mode) -> None:
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


def test_the_expert_and_the_baseline_play_goals_of_people(official_path: Path) -> None:
    env = WebShop(source=official_path, goals="human", split="dev")
    rewards = [play(env, WebShopExpert(), task_id) for task_id in env.tasks.ids("dev")]
    assert sum(rewards) / len(rewards) > 0.9
    assert all(play(env, WebShopLexical(), task_id) >= 0.0 for task_id in env.tasks.ids("dev"))


def test_where_no_query_finds_the_target_the_expert_buys_the_first_product_found(shop_path: Path) -> None:
    env = WebShop(source=shop_path, split="dev", search=lambda query, most: ["B000000006", "B000000002"])
    assert play(env, WebShopExpert(), KETTLE) < 1.0
    assert env.session.done and env.session.state.asin == "B000000006"


def test_an_option_that_cannot_count_is_still_chosen_as_asked(official: Catalogue) -> None:
    goal = official.goal("B07FKGQKZ1/synthetic-40")
    assert dict(plan(official.product(goal.asin), goal))["item shape"] == "rectangular"
