"""Gives players access to the environment that they play."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import gymnasium

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action

T = TypeVar("T")
World = TypeVar("World", bound=ToolEnv)


class Player(Protocol):
    """Plays one environment, whichever episode it is in: an expert, or a baseline."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the current episode of ``env``.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        ...


def unwrap_env(env: gymnasium.Env[Any, Action], env_id: str) -> ToolEnv:
    """Returns the environment inside the wrappers of ``env``, for players that use observations only.

    Args:
        env: An environment, here or on a server.
        env_id: Id of the environment that the player supports.

    Raises:
        UsageError: ``env`` is another environment.
    """
    inner = env.unwrapped
    if not isinstance(inner, ToolEnv):
        raise UsageError(f"this plays {env_id}, not {type(inner).__name__}")
    if inner.tasks.env_id != env_id:
        raise UsageError(f"this plays {env_id}, not {inner.tasks.env_id}")
    return inner


def unwrap_local_env(env: gymnasium.Env[Any, Action], env_id: str, kind: type[World]) -> World:
    """Returns the environment inside the wrappers of ``env``, for players that use its internal state.

    Args:
        env: An environment of this process.
        env_id: Id of the environment that the player supports.
        kind: Its class.

    Raises:
        UsageError: ``env`` is another environment, or is on a server.
    """
    inner = unwrap_env(env, env_id)
    if not isinstance(inner, kind):
        raise UsageError(f"this needs the state of {env_id} itself, which a server does not give; make it without url=")
    return inner


def unwrap_episode(env: gymnasium.Env[Any, Action], env_id: str, kind: type[World]) -> World:
    """Returns what :func:`unwrap_local_env` does, for players that act in a running episode.

    Raises:
        UsageError: ``env`` is another environment, is on a server, or has no running episode.
    """
    inner = unwrap_local_env(env, env_id, kind)
    if inner.done:
        raise UsageError(f"{env_id} has no running episode to act in; call reset() first")
    return inner


def require_episode(world: T | None, env_id: str) -> T:
    """Returns the world of the current episode.

    Raises:
        UsageError: It is ``None``: no episode has been started.
    """
    if world is None:
        raise UsageError(f"{env_id} has no episode; call reset() first")
    return world
