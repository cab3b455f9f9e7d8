"""Environments that are registered by their name: those in files, and those of other packages."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import gymnasium

from envsuite.core import registration
from envsuite.core.errors import unknown
from envsuite.core.registration import ENVIRONMENTS, NAMED, EnvSpec, register_envs, tell

ADAPTERS = ("gem", "gymnasium", "mcp", "openenv", "pettingzoo", "reasoning_gym", "textarena", "verifiers")
"""Packages whose environments are taken as they are, under ``PACKAGE/NAME``: modules of ``envsuite.adapters``."""


def registered(env_id: str) -> str:
    """Registers an environment that is taken by its name, and leaves other ids alone; returns the id.

    Args:
        env_id: The path of a file with an :class:`~envsuite.core.functions.Environment`; the name of another package's
            environment, e.g. ``reasoning_gym/chain_sum``; or any id.

    Raises:
        UnknownName: The other package has no such environment.
        UsageError: There is no such file, or it does not have an environment.
        MissingExtra: The other package is not installed.
    """
    package, _, name = env_id.partition("/")
    if env_id in ENVIRONMENTS:
        return env_id
    if env_id.endswith(".py"):
        from envsuite.core.functions import load

        load(env_id)
    elif package in ADAPTERS and name:
        place = f"envsuite.adapters.{package}"
        module = importlib.import_module(place)
        getattr(module, name)  # it must be there
        own = gymnasium.spec(name).max_episode_steps if package == "gymnasium" else None
        register(EnvSpec(env_id, f"{place}:{name}", own or module.HORIZON))
        tell(env_id)
    return env_id


def spec_of(env_id: str) -> EnvSpec:
    """Returns the specification of an environment.

    Args:
        env_id: An id, or a name as of :func:`registered`.

    Raises:
        UnknownName: There is no such environment.
        UsageError, MissingExtra: As :func:`registered`.
    """
    if registered(env_id) not in ENVIRONMENTS:
        raise unknown("environment", env_id, ENVIRONMENTS)
    return ENVIRONMENTS[env_id]


def register(spec: EnvSpec | str) -> None:
    """Registers an environment with Gymnasium, servers, bridges and the command line; a second time does nothing.

    Args:
        spec: Its specification, or a name as of :func:`registered`.

    Raises:
        UnknownName: There is no environment of the name.
        UsageError: Another environment has the id, or the file does not have one.
    """
    if isinstance(spec, str):
        spec_of(spec)
    else:
        registration.register(spec)


def register_all() -> None:
    """Registers envsuite's environments, those of installed packages, and those that the starting process has named."""
    register_envs()
    for told in filter(None, os.environ.get(NAMED, "").split(os.pathsep)):
        env_id, _, file = told.partition("=")
        if not file:
            spec_of(env_id)
        elif env_id not in ENVIRONMENTS:
            from envsuite.core.functions import load_from

            load_from(env_id, Path(file))
