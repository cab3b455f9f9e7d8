"""A snapshot goes on where it was taken, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from test_registration import MADE

from envsuite.core import ToolEnv, UsageError
from envsuite.core.registration import builtin


@pytest.fixture(scope="module")
def make_env(make_env: Callable[..., ToolEnv], where: dict[str, Any]) -> Callable[..., ToolEnv]:
    """Makes the environment of an id, here and on a server."""
    return partial(make_env, **where)


@pytest.mark.slow_remote
@pytest.mark.parametrize("env_id", [spec.id for spec in builtin()])
def test_a_snapshot_of_other_data_is_refused_and_the_episode_goes_on(
    env_id: str, make_env: Callable[..., ToolEnv]
) -> None:
    seed, small = MADE[env_id]
    env, same, other = (make_env(env_id, source="generated", **small, **{seed: number}) for number in (1, 1, 2))
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


def test_a_snapshot_of_another_search_or_environment_is_refused(make_env: Callable[..., ToolEnv]) -> None:
    gold, lexical = (make_env("PaperSearch-v0", papers=200, selector=name) for name in ("gold", "lexical"))
    team = make_env("PaperSearchTeam-v0", papers=200)
    for env, said in ((gold, r"selector 'gold' \(here 'lexical'\)"), (team, "environment 'PaperSearchTeam-v0'")):
        env.reset(seed=0)
        with pytest.raises(UsageError, match=f"the snapshot is of {said}"):
            lexical.restore(env.snapshot())
