"""The state of an episode as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from envsuite.core.errors import UsageError


class EnvSnapshot(TypedDict):
    """The state of an episode, as plain data that can be pickled."""

    of: dict[str, str]
    """The environment's id and its versions, which an environment must share to go on with the episode."""
    task_id: str
    task: str
    text: str
    commands: list[str]
    done: bool
    world: Any
    """The state of the world, of :meth:`ToolEnv._save <envsuite.core.ToolEnv>`."""


def check_snapshot(token: object, here: Mapping[str, str], name: str) -> EnvSnapshot:
    """Returns a snapshot of an environment of the same id and versions.

    Args:
        token: The snapshot.
        here: Id and versions of the environment that restores it.
        name: Name of its class, for messages.

    Raises:
        UsageError: ``token`` is something else, or the snapshot of another environment.
    """
    if not isinstance(token, dict) or token.keys() != EnvSnapshot.__annotations__.keys():
        raise UsageError(f"{name}.restore takes what snapshot() returned")
    check_same(token["of"], here, name)
    return cast(EnvSnapshot, token)


def check_same(there: Mapping[str, str], here: Mapping[str, str], name: str) -> None:
    """Raises :class:`UsageError` if a snapshot is of another environment or of other versions than are ``here``."""
    if there != here:
        differences = ", ".join(
            f"{key} {there.get(key)!r} (here {here.get(key)!r})"
            for key in {**here, **there}
            if there.get(key) != here.get(key)
        )
        raise UsageError(
            f"{name}.restore: the snapshot is of {differences}; restore it in an environment that was made with "
            "the same arguments"
        )
