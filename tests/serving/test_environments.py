"""Every environment, played here and on a server side by side."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import pytest

from envsuite.core import DataError, ToolCall, ToolEnv, UnknownTask, UsageError
from envsuite.core.registration import ENVIRONMENTS

SMALL: dict[str, dict[str, Any]] = {"ALFWorld-v0": {"games": 18}}
"""Arguments of environments whose defaults make a lot on first use."""


@pytest.fixture(params=list(ENVIRONMENTS))
def pair(request: pytest.FixtureRequest, server: str) -> tuple[ToolEnv, ToolEnv]:
    """The same environment here and there."""
    made = []
    for where in ({}, {"url": server}):
        arguments = {**SMALL.get(request.param, {}), **where, "render_mode": "ansi"}
        try:
            env = gymnasium.make(request.param, disable_env_checker=True, **arguments).unwrapped
        except DataError as error:
            pytest.skip(f"needs data: {error}")
        assert isinstance(env, ToolEnv)
        made.append(env)
    return made[0], made[1]


def same(pair: tuple[ToolEnv, ToolEnv], name: str, *arguments: Any, **more: Any) -> Any:
    """What a method returns or raises here, if it is the same there."""
    told = []
    for env in pair:
        try:
            told.append(getattr(env, name)(*arguments, **more))
        except (UsageError, UnknownTask) as error:
            told.append((type(error), str(error)))
    assert told[0] == told[1]
    return told[0]


def test_a_remote_environment_is_the_local_one_step_for_step(pair: tuple[ToolEnv, ToolEnv]) -> None:
    here, there = pair
    assert (here.tools, here.max_calls, here.tasks, here.split) == (
        there.tools,
        there.max_calls,
        there.tasks,
        there.split,
    )
    assert (here.observation_space, here.action_space) == (there.observation_space, there.action_space)
    same(pair, "step", ())
    same(pair, "reset", options={"task_id": "no such task"})
    same(pair, "reset", options={"task": "x"})
    for seed in (None, 0, 7, None):
        same(pair, "reset", seed=seed)
        for env in pair:
            env.action_space.seed(seed or 1)
        for step in range(8):
            action = here.action_space.sample()
            assert action == there.action_space.sample(), "the same random numbers"
            done = same(pair, "step", action)[2]
            same(pair, "render")
            if done:
                break
            if step == 3:
                tokens = [pickle.loads(pickle.dumps(env.snapshot())) for env in pair]
        for action in ((), "look", None, [ToolCall("dance", {})], [ToolCall(here.tools[0].name, {"x": "\udc00"})]):
            same(pair, "step", action)
    assert here.restore(tokens[0]) == there.restore(tokens[1])
    same(pair, "step", here.action_space.sample())
    same(pair, "restore", "nothing")
