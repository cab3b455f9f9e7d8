"""Environments here and on a server, for the fixtures of ``conftest.py``."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.utils.env_checker import data_equivalence

import envsuite  # noqa: F401
from envsuite.core import ToolEnv
from envsuite.remote import RemoteEnv


def made(env_id: str, **arguments: Any) -> ToolEnv:
    """The environment without wrappers; on a server, where there is a ``url``."""
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped
    assert isinstance(env, ToolEnv) and isinstance(env, RemoteEnv) == ("url" in arguments)
    return env


class Followed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of this process, and one on a server that is asked the same and has to answer the same."""

    def __init__(self, env: ToolEnv, follower: ToolEnv) -> None:
        super().__init__(env)
        self.follower = follower

    def __getattr__(self, name: str) -> Any:
        """What only the one here has, e.g. its world."""
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        """As the environment."""
        answer = super().reset(**arguments)
        assert data_equivalence(self.follower.reset(**arguments), answer)
        return answer

    def step(self, action: Any) -> Any:
        """As the environment."""
        answer = super().step(action)
        assert data_equivalence(self.follower.step(action), answer)
        return answer
