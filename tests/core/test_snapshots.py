"""A snapshot goes on where it was taken, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from envsuite.core import ToolEnv, UsageError
from envsuite.core.registration import builtin

TWO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ALFWorld-v0": ({"source": "generated", "games": 20}, {"source": "generated", "games": 20, "scene_seed": 1}),
    "PaperSearch-v0": ({"papers": 200}, {"papers": 200, "corpus_seed": 1}),
    "PaperSearchTeam-v0": ({"papers": 200}, {"papers": 200, "corpus_seed": 1}),
    "PythonMath-v0": (
        {"source": "generated", "problems": 20},
        {"source": "generated", "problems": 20, "problem_seed": 1},
    ),
    "SearchQA-v0": ({"entities": 100}, {"entities": 100, "corpus_seed": 1}),
    "Sokoban-v0": ({"source": "generated", "levels": 20}, {"source": "generated", "levels": 20, "level_seed": 1}),
    "TextCraft-v0": ({"source": "generated", "goals": 20}, {"source": "generated", "goals": 20, "book_seed": 1}),
    "WebShop-v0": ({"source": "generated", "products": 50}, {"source": "generated", "products": 50, "shop_seed": 1}),
}
"""Arguments of two environments of one id with other data."""


@pytest.fixture(scope="module")
def make_env(make_env: Callable[..., ToolEnv], where: dict[str, Any]) -> Callable[..., ToolEnv]:
    """Makes the environment of an id, here and on a server."""
    return partial(make_env, **where)


@pytest.mark.slow_remote
@pytest.mark.parametrize("env_id", [spec.id for spec in builtin()])
def test_a_snapshot_of_other_data_is_refused_and_the_episode_goes_on(
    env_id: str, make_env: Callable[..., ToolEnv]
) -> None:
    mine, others = TWO[env_id]
    env, same, other = make_env(env_id, **mine), make_env(env_id, **mine), make_env(env_id, **others)
    env.reset(seed=0)
    env.action_space.seed(0)
    env.step(env.action_space.sample())
    begun, _ = other.reset(seed=0)
    token, before = env.snapshot(), other.episode
    assert same.restore(token) == env.observation
    with pytest.raises(UsageError, match=r"the snapshot is of data .*\(here .*the same arguments"):
        other.restore(token)
    assert other.episode == before and other.observation == begun
    other.step(other.action_space.sample())
    for one in (env, same, other):
        one.close()


def test_a_snapshot_of_another_search_is_refused(make_env: Callable[..., ToolEnv]) -> None:
    env, other = (make_env("PaperSearch-v0", papers=200, selector=selector) for selector in ("gold", "lexical"))
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"the snapshot is of selector 'gold' \(here 'lexical'\)"):
        other.restore(env.snapshot())


def test_a_snapshot_of_another_environment_is_refused(make_env: Callable[..., ToolEnv]) -> None:
    env, other = make_env("PaperSearchTeam-v0", papers=200), make_env("PaperSearch-v0", papers=200)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="the snapshot is of environment 'PaperSearchTeam-v0'"):
        other.restore(env.snapshot())
