"""Every environment, played here and on a server side by side."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from envsuite.core import ToolEnv, UnknownTask, UsageError
from envsuite.core.registration import ENVIRONMENTS

SMALL: dict[str, dict[str, Any]] = {"ALFWorld-v0": {"games": 18}}
"""Arguments of environments whose defaults make a lot on first use."""


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_remote_environment_renders_errs_and_goes_back_as_the_local_one(
    server: str, make_env: Callable[..., ToolEnv], env_id: str
) -> None:
    arguments = {**SMALL.get(env_id, {}), "render_mode": "ansi"}
    pair = make_env(env_id, **arguments), make_env(env_id, url=server, **arguments)

    def same(name: str, *arguments: Any, **more: Any) -> Any:
        """What a method returns or raises here, if it is the same there."""
        told = []
        for env in pair:
            try:
                told.append(getattr(env, name)(*arguments, **more))
            except (UsageError, UnknownTask) as error:
                told.append((type(error), str(error)))
        assert told[0] == told[1]
        return told[0]

    same("step", ())
    for options in ({"task_id": "no such task"}, {"task": "x"}, None):
        same("reset", options=options)
    tokens = [pickle.loads(pickle.dumps(env.snapshot())) for env in pair]
    for env in pair:
        env.action_space.seed(1)
    for _ in range(4):
        action, other = (env.action_space.sample() for env in pair)
        assert action == other, "the same random numbers"
        ended = same("step", action)[2]
        same("render")
        if ended:
            break
    assert pair[0].restore(tokens[0]) == pair[1].restore(tokens[1])
    same("restore", "nothing")
