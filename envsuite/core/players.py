"""What a player sees of the environment that it is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError

if TYPE_CHECKING:
    import gymnasium

    from envsuite.core.tools import Action

World = TypeVar("World", bound=ToolEnv)


def played(env: gymnasium.Env[Any, Action], env_id: str) -> ToolEnv:
    """The environment inside the wrappers of ``env``, for players who see no more than an agent does.

    Args:
        env: An environment, here or on a server.
        env_id: What the player plays.

    Raises:
        UsageError: It is another environment.
    """
    inner = env.unwrapped
    if not isinstance(inner, ToolEnv):
        raise UsageError(f"this plays {env_id}, not {type(inner).__name__}")
    if inner.tasks.env_id != env_id:
        raise UsageError(f"this plays {env_id}, not {inner.tasks.env_id}")
    return inner


def looked_into(env: gymnasium.Env[Any, Action], env_id: str, kind: type[World]) -> World:
    """The environment inside the wrappers of ``env``, for players who know what is in its world.

    Args:
        env: An environment of this process.
        env_id: What the player plays.
        kind: Its class.

    Raises:
        UsageError: It is another environment, or its world is on a server.
    """
    inner = played(env, env_id)
    if not isinstance(inner, kind):
        raise UsageError(f"this looks into the world of {env_id}, which a server does not show; make it without url=")
    return inner
