"""Makes environments for Gymnasium: here, or as the client of a server."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import TimeLimit

from envsuite.core import Player, ToolEnv
from envsuite.core.errors import UnknownName, UsageError, unknown
from envsuite.core.naming import spec_of
from envsuite.core.practice import ExpertTeacher, Practice
from envsuite.core.registration import ENVIRONMENTS, Default, EnvSpec
from envsuite.remote import RemoteEnv


def make(env_id: str, url: str | Sequence[str] | None = None, **arguments: Any) -> ToolEnv:
    """Makes environment ``env_id`` in this process or, with ``url``, on a server, with the same behaviour.

    Args:
        env_id: Its id, or another name as of :func:`~envsuite.core.naming.resolve_id`.
        url: Address of an ``envsuite serve http``, e.g. ``"http://127.0.0.1:8080"``, or several of them.
        arguments: Arguments of the environment.

    Raises:
        UnknownName: There is no such environment, or it has no such argument.
        UsageError: It is not a :class:`ToolEnv`.
    """
    env_id = spec_of(env_id).id
    if url is not None:
        return RemoteEnv(url, env_id, **arguments)
    kind = load_env_creator(ENVIRONMENTS[env_id].entry_point)
    parameters = inspect.signature(kind).parameters  # an environment that takes options by name checks the names
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in arguments:
            if name not in parameters:
                raise unknown(f"argument of {env_id}", name, (*parameters, "url"))
    env = kind(**arguments)
    if not isinstance(env, ToolEnv):
        raise UsageError(f"{env_id} is a {type(env).__name__}, not a ToolEnv")
    return env


def by_source(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Returns what ``gymnasium.make`` has made with the horizon of its source, if none was asked for."""
    spec = env.spec
    if isinstance(env, TimeLimit) and spec is not None and isinstance(spec.max_episode_steps, Default):
        return TimeLimit(env.env, ENVIRONMENTS[spec.id].horizon(spec.kwargs))
    return env


def horizon_of(env_id: str, arguments: Mapping[str, Any] | None = None) -> int | None:
    """Returns the number of steps after which an episode of ``env_id``, made with ``arguments``, is truncated."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name].horizon(arguments or {})
    return gymnasium.spec(name).max_episode_steps


def practice_of(env_id: str) -> Practice:
    """Returns teacher and vocabulary of an environment, for imitation; of one without, its expert as the teacher.

    Raises:
        UnknownName: There is no such environment, or it has neither.
    """
    spec = spec_of(env_id)
    if not spec.practice:
        return Practice(partial(ExpertTeacher, make_player(env_id, "expert")))
    module, _, function = spec.practice.partition(":")
    practice: Practice = getattr(importlib.import_module(module), function)()
    return practice


def make_player(env_id: str, name: str) -> Player:
    """Returns the baseline ``name`` of ``env_id``, such as its ``expert``.

    Raises:
        UnknownName: There is no such environment, or it has no such baseline.
    """
    spec = spec_of(env_id)
    if name not in spec.players:
        raise unknown_player(spec, name, spec.players)
    module, _, attribute = spec.players[name].partition(":")
    player: Player = getattr(importlib.import_module(module), attribute)()
    return player


def unknown_player(spec: EnvSpec, name: str, known: Iterable[str]) -> UnknownName:
    """Returns the error for a baseline that an environment does not have; for an expert it says how to write one."""
    if name != "expert":
        return unknown(f"player of {spec.id}", name, known)
    how = "write players={'expert': 'module:Class'} in its EnvSpec"
    if spec.id.endswith(".py"):
        how = "write @env.expert above a function"
    elif spec.id.startswith("gymnasium/"):
        how = "write a method expert(self) into its class, which returns the best action"
    elif "/" in spec.id:
        how = f"play it yourself (envsuite play {spec.id} --save mine.jsonl), or let a model play: docs/endpoints.md"
    return UnknownName(f"{spec.id} has no expert; {how}")
