"""PaperSearchTeam-v0: turns, rewards by hand, PettingZoo's own tests, a server, and training rows for each agent."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import envsuite  # noqa: F401  # registers the environments
from envsuite.core import ToolCall, UsageError
from envsuite.core.agents import aec_env, parallel_env
from envsuite.papersearch.team import PaperSearchTeam
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings

GOLD = ("g1", "g2", "g3")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three gold papers, one of which only a citation leads to, and others."""
    papers = [
        Document("g1", "walking robots on ice", "robots walk", 20100101, ("g3", "x1")),
        Document("g2", "walking robots on sand", "robots walk", 20110101),
        Document("g3", "legged machines", "nothing in common", 20090101),
        Document("x1", "walking dogs", "dogs walk", 20080101),
        Document("x2", "walking robots in the future", "robots", 20300101),
    ]
    task = {"text": "walking robots", "gold": [*GOLD], "date": 20200101, "kind": "test"}
    tasks = [{**task, "id": f"{split}-0", "split": split} for split in ("train", "validation", "test")]
    return str(build(InMemory("team", papers, tasks), tmp_path_factory.mktemp("team") / "team.corpus"))


def _made(corpus: str, **arguments: Any) -> PaperSearchTeam:
    env = gymnasium.make("PaperSearchTeam-v0", source=corpus, disable_env_checker=True, **arguments).unwrapped
    assert isinstance(env, PaperSearchTeam)
    return env


def _call(tool: str, argument: Any) -> tuple[ToolCall, ...]:
    name = {"search": "query", "expand": "paper_id", "keep": "paper_ids"}[tool]
    return (ToolCall(tool, {name: argument}),)


def test_searcher_and_selector_take_turns_and_earn_by_their_rules(corpus):
    env = _made(corpus)
    observation, info = env.reset()
    assert (info["agent"], info["rewards"]) == ("searcher_0", {"searcher_0": 0.0, "selector_0": 0.0})
    observation, reward, *_, info = env.step(_call("search", "walking robots"))
    assert (reward, info["agent"]) == (2.0, "selector_0")  # g1 and g2 are gold, x1 is not, x2 is too new
    assert info["rewards"] == {"searcher_0": 2.0, "selector_0": 0.0}
    assert "g1" in observation["text"]
    assert "x2" not in observation["text"]
    observation, reward, *_, info = env.step(_call("keep", ["g1", "x1"]))
    assert reward == pytest.approx(0.5)  # one of two gold ones kept, one of two kept is gold
    assert info["rewards"] == {"searcher_0": 0.0, "selector_0": pytest.approx(0.5)}
    assert (info["agent"], info["metrics"]["recall_all"]) == ("searcher_0", pytest.approx(1 / 3))
    *_, info = env.step(_call("expand", "g2"))  # it was discarded
    assert (info["valid"], info["rewards"]["searcher_0"], info["agent"]) == (False, -0.5, "searcher_0")
    observation, reward, *_, info = env.step(_call("expand", "g1"))
    assert (reward, info["agent"]) == (1.0, "selector_0")
    *_, reward, terminated, _, info = env.step(_call("keep", ["g3"]))
    assert (reward, terminated) == (1.0, False)
    assert info["metrics"]["f1_all"] == pytest.approx(2 * 2 / (3 + 3))
    env.reset()
    assert env.step(_call("search", "dogs"))[4]["agent"] == "selector_0"
    assert env.step(_call("keep", []))[1] == 1.0, "a right choice of nothing"
    env.reset()
    env.step(_call("search", "walking robots"))
    env.step(_call("keep", ["g1"]))
    _, reward, *_, info = env.step(_call("search", "walking robots on sand"))
    assert (reward, info["agent"]) == (0.0, "searcher_0"), "what was discarded is no candidate again"


@pytest.mark.parametrize(
    ("first", "action", "message"),
    [
        ([], _call("keep", []), r"it is the turn of searcher_0, whose tools are search, expand, not keep"),
        ([_call("search", "walking")], _call("search", "dogs"), r"it is the turn of selector_0, whose tools are keep"),
        ([_call("search", "walking")], _call("keep", ["nowhere"]), r"'nowhere' is not among the candidates"),
        ([_call("search", "walking")], _call("keep", []) * 2, r"the selector makes one call a step"),
        ([], (ToolCall("fly", {}),), r"unknown tool 'fly'"),
    ],
)  # fmt: skip
def test_what_is_not_in_turn_changes_nothing(corpus, first, action, message):
    env = _made(corpus)
    env.reset()
    for earlier in first:
        env.step(earlier)
    key, agent = env._state_key(), env.agent
    observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["valid"], info["agent"], env._state_key()) == (0.0, False, False, agent, key)
    assert info["error"] is not None
    assert re.search(message, info["error"])
    assert info["error"] in observation["text"]


@pytest.mark.parametrize("place", ["here", "server"])
def test_pettingzoo(corpus, place):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # clients keep connections for the next environment
        for told in (
            "Observation is not a NumPy array",
            "(Observation|Action) space for each agent probably should be",
        ):
            warnings.filterwarnings("ignore", told)  # PettingZoo says so of every text, and of all spaces but its own
        if place == "here":
            _pettingzoo({"source": corpus})
        else:
            open_to = (Path(corpus).parent,)
            with serving(ServerSettings(("PaperSearchTeam-v0",), port=0, workers=0, source_folders=open_to)) as server:
                _pettingzoo({"source": corpus, "url": server.url})


def _pettingzoo(arguments: dict[str, Any]) -> None:
    made: list[Any] = []

    def make(kind: Any) -> Any:
        made.append(kind("PaperSearchTeam-v0", **arguments))
        return made[-1]

    api_test(make(aec_env), num_cycles=200)
    parallel_api_test(make(parallel_env), num_cycles=200)
    seed_test(lambda: make(aec_env), num_cycles=50)
    parallel_seed_test(lambda: make(parallel_env), num_cycles=50)
    for env in made:
        env.close()


def test_an_environment_of_one_agent_is_refused():
    with pytest.raises(UsageError, match=r"^SokobanEnv is an environment of one agent$"):
        aec_env("Sokoban-v0")


@given(st.lists(st.one_of(
    st.text(max_size=20).map(lambda text: _call("search", text)),
    st.sampled_from(["g1", "g2", "x1", "x2", ""]).map(lambda key: _call("expand", key)),
    st.lists(st.sampled_from(["g1", "g2", "g3", "x1", "", "g1 "]), max_size=3).map(lambda keys: _call("keep", keys)),
    st.just(()),
), max_size=12))  # fmt: skip
def test_any_calls_leave_the_episode_sound(corpus, actions):
    env = _made(corpus)
    env.reset()
    for action in actions:
        if env.done:
            break
        observation, reward, _, _, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert reward == pytest.approx(sum(info["rewards"].values()))
        assert 0.0 <= info["score"] <= 1.0
        assert {*env.team.papers.tolist()} == {*env.team.kept} <= env.team.pool
