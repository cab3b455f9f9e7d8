"""An engine by its name: those of this package, and those that others register."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trainers.rollout import hf_engine  # noqa: F401  (registers itself)
from trainers.rollout.engine import ENGINES, Engine, EngineSetup
from trainers.rollout.vllm import engine as vllm_engine  # noqa: F401  (registers itself)
from trainers.settings import ConfigError


def engine_class(name: str, options: Mapping[str, Any]) -> type[Engine]:
    """The engine that is registered under ``name``, and takes ``options``.

    Raises:
        UnknownName: There is none; the message lists those that exist.
        ConfigError: It does not take these options.
        UsageError: It cannot be imported.
    """
    engine = ENGINES[name]
    try:
        inspect.signature(engine.from_setup).bind(None, **options)
    except TypeError as error:
        raise ConfigError(f"rollout.engine_options: engine {name!r}: {error}") from error
    engine.check(options)
    return engine


def make_engine(name: str, setup: EngineSetup, options: Mapping[str, Any]) -> Engine:
    """The engine that ``rollout.engine`` names.

    Args:
        name: As it was registered, with ``ENGINES.register`` or the entry point ``trainers.engines`` of a package.
        setup: The parts of the run that it is made from.
        options: The engine's own settings.

    Raises:
        UnknownName, ConfigError: As :func:`engine_class`.
        UsageError: It cannot be imported, or cannot work with this model.
    """
    return engine_class(name, options).from_setup(setup, **options)
