"""An engine by its name: those of this package, and those that others register."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trainers.rollout import hf_engine  # noqa: F401  (registers itself)
from trainers.rollout.engine import ENGINES, AnyEngine, ChatEngine, Engine, EngineSetup
from trainers.rollout.openai import engine as openai_engine  # noqa: F401  (registers itself)
from trainers.rollout.vllm import engine as vllm_engine  # noqa: F401  (registers itself)
from trainers.settings import ConfigError


def engine_class(name: str, options: Mapping[str, Any]) -> type[AnyEngine[Any, Any]]:
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


def check_machine(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options of the engine ``name`` that this machine lacks something for.

    Raises:
        UnknownName, UsageError, ConfigError: As :func:`engine_class`; or the machine lacks something.
    """
    engine_class(name, options).check_machine(options)


def answers_in_text(name: str) -> bool:
    """Whether the engine of that name takes and gives messages, with a model that is not trained here.

    Raises:
        UnknownName, UsageError: As :func:`engine_class`.
    """
    return issubclass(ENGINES[name], ChatEngine)


def make_engine(name: str, setup: EngineSetup, options: Mapping[str, Any]) -> Engine:
    """The engine that ``rollout.engine`` names, for tokens.

    Args:
        name: As it was registered, with ``ENGINES.register`` or the entry point ``trainers.engines`` of a package.
        setup: The parts of the run that it is made from.
        options: The engine's own settings.

    Raises:
        UnknownName, ConfigError: As :func:`engine_class`; or it answers in text.
        UsageError: It cannot be imported, or cannot work with this model.
    """
    engine = engine_class(name, options).from_setup(setup, **options)
    if not isinstance(engine, Engine):
        raise ConfigError(no_training(name))
    return engine


def make_chat_engine(name: str, slots: int, options: Mapping[str, Any]) -> ChatEngine:
    """The engine that ``rollout.engine`` names, for messages.

    Args:
        name: As it was registered.
        slots: Most requests on their way at a time.
        options: The engine's own settings.

    Raises:
        UnknownName, ConfigError, UsageError: As :func:`make_engine`; or it is for tokens.
    """
    engine = engine_class(name, options).from_setup(slots, **options)
    if not isinstance(engine, ChatEngine):
        raise ConfigError(f"rollout.engine is {name!r}, which samples from a model here; take one for messages: openai")
    return engine


def no_training(name: str) -> str:
    """Returns why the engine ``name``, which answers in text, cannot be trained with."""
    return (
        f"rollout.engine is {name!r}, which answers in text with a model that is not trained here, without token ids "
        "and log-probabilities; set rollout.engine to hf or vllm (and rollout.engine_options to theirs). "
        f"trainers.evaluate and trainers.imitate take {name!r}"
    )
