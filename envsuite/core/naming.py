"""Environments that are registered by their name: those in files, and those of other packages."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
from gymnasium.envs.registration import load_env_creator

from envsuite.core import registration
from envsuite.core.errors import UsageError, unknown
from envsuite.core.registration import ENVIRONMENTS, NAMED, EnvSpec, register_envs, tell

ADAPTERS = ("gem", "gymnasium", "mcp", "openenv", "pettingzoo", "reasoning_gym", "textarena", "verifiers")
"""Packages whose environments are taken as they are, under ``PACKAGE/NAME``: modules of ``envsuite.adapters``."""


def resolve_id(name: str) -> str:
    """Returns the id of an environment by its name, and registers one that is taken by it. Other names are left alone.

    Args:
        name: An id; a short name, e.g. ``sokoban``; the path of a file with an
            :class:`~envsuite.core.functions.Environment`; the name of another package's environment, e.g.
            ``reasoning_gym/chain_sum``; ``module:ID`` or ``gymnasium/module:ID``, of an id that the module registers.

    Raises:
        UnknownName: The other package has no such environment.
        UsageError: There is no such file, or it does not have an environment.
        MissingExtra: The other package is not installed.
    """
    short = {env_id.rpartition("-v")[0].lower(): env_id for env_id in ENVIRONMENTS if "-v" in env_id}
    if (env_id := short.get(name.lower(), name)) in ENVIRONMENTS:
        return env_id
    package, name = env_id.split("/", 1) if "/" in env_id else ("", env_id)
    module, _, own_id = name.rpartition(":")
    if module and package in ("", "gymnasium"):
        _import(module)
        if not package and own_id in gymnasium.registry and own_id not in ENVIRONMENTS and _has_tools(own_id):
            return name
        env_id = own_id if own_id in ENVIRONMENTS else f"gymnasium/{own_id}"
        tell(f"{env_id}={module}")  # first, so that processes import the module before they look for the id
        return resolve_id(env_id)
    if env_id.endswith(".py"):
        from envsuite.core.functions import load

        load(env_id)
    elif package in ADAPTERS and name:
        place = f"envsuite.adapters.{package}"
        adapter = importlib.import_module(place)
        getattr(adapter, name)  # it must be there
        spec = EnvSpec(env_id, f"{place}:{name}", adapter.HORIZON)
        if package == "gymnasium":
            own = gymnasium.spec(name).max_episode_steps or adapter.HORIZON
            spec = replace(spec, max_episode_steps=own, players=adapter.players(name))
        register(spec)
        tell(env_id)
    return env_id


def _has_tools(own_id: str) -> bool:
    """Whether what only Gymnasium knows is an environment of tool calls, or a function that may make one."""
    from envsuite.core.env import ToolEnv

    entry = gymnasium.spec(own_id).entry_point
    kind = load_env_creator(entry) if isinstance(entry, str) else entry
    return not isinstance(kind, type) or issubclass(kind, ToolEnv)


def _import(module: str) -> None:
    """Imports a module, also one of the present folder.

    Raises:
        UsageError: It cannot be imported.
    """
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        importlib.import_module(module)
    except ImportError as error:
        remedy = "write MODULE:ID, with a module of this folder or of an installed package"
        raise UsageError(f"{module} cannot be imported ({error}); {remedy}") from error
    finally:
        sys.path.remove(folder)


def spec_of(env_id: str) -> EnvSpec:
    """Returns the specification of an environment.

    Args:
        env_id: A name as of :func:`resolve_id`.

    Raises:
        UnknownName: There is no such environment.
        UsageError, MissingExtra: As :func:`resolve_id`.
    """
    if (env_id := resolve_id(env_id)) not in ENVIRONMENTS:
        raise unknown("environment", env_id, ENVIRONMENTS)
    return ENVIRONMENTS[env_id]


def register(spec: EnvSpec | str) -> str:
    """Registers an environment with Gymnasium, servers, bridges and the command line; a second time does nothing.

    Returns its id, which ``gymnasium.make`` takes.

    Args:
        spec: Its specification, or a name as of :func:`resolve_id`.

    Raises:
        UnknownName: There is no environment of the name.
        UsageError: Another environment has the id, or the file does not have one.
    """
    if isinstance(spec, str):
        return spec_of(spec).id
    registration.register(spec)
    return spec.id


def register_all() -> None:
    """Registers envsuite's environments, those of installed packages, and those that the starting process has named."""
    register_envs()
    for entry in filter(None, os.environ.get(NAMED, "").split(os.pathsep)):
        env_id, _, file = entry.partition("=")
        if not file.endswith(".py"):
            if file:
                _import(file)
            spec_of(env_id)
        elif env_id not in ENVIRONMENTS:
            from envsuite.core.functions import load_from

            load_from(env_id, Path(file))
