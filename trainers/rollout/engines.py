"""An engine by its name: those of this package, and those that others register."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.playing.engine import BaseEngine, ChatEngine
from trainers.rollout.config import RolloutConfig
from trainers.rollout.engine import ENGINES, Engine, EngineSetup
from trainers.settings import ConfigError, config_errors

AUTO = "auto"
"""In the place of an engine's name: vllm on a GPU where it starts, hf elsewhere."""
HF = "hf"
"""The engine that takes no options and needs nothing of a machine: it is checked without the seconds of its import."""


def engine_class(name: str, options: Mapping[str, Any]) -> type[BaseEngine[Any, Any]]:
    """The engine that is registered under ``name``, and takes ``options``; under :data:`AUTO` vLLM's.

    Raises:
        UnknownName: There is none; the message lists those that exist.
        ConfigError: It does not take these options.
        UsageError: It cannot be imported.
    """
    engine = ENGINES["vllm" if name == AUTO else name]
    with config_errors(f"rollout.engine_options: engine {name!r}", TypeError):
        inspect.signature(engine.from_setup).bind(None, **options)
    try:
        engine.check(options)
    except UsageError as error:
        raise ConfigError(str(error)) from error
    return engine


def check_engine(name: str, options: Mapping[str, Any]) -> None:
    """Refuses an engine that does not exist, or does not take these options.

    Raises:
        UnknownName, ConfigError, UsageError: As :func:`engine_class`.
    """
    if name != HF or options:
        engine_class(name, options)


def check_machine(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options of the engine ``name`` that this machine lacks something for; :data:`AUTO` needs nothing.

    Raises:
        UnknownName, UsageError, ConfigError: As :func:`engine_class`; or the machine lacks something.
    """
    check_engine(name, options)
    if name not in (AUTO, HF):
        engine_class(name, options).check_machine(options)


def answers_in_text(name: str) -> bool:
    """Whether the engine of that name takes and gives messages, with a model that is not trained here.

    Raises:
        UnknownName, UsageError: As :func:`engine_class`.
    """
    return name not in (AUTO, HF) and issubclass(ENGINES[name], ChatEngine)


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


def start_engine(
    rollout: RolloutConfig, setup: EngineSetup, tell: Callable[[str], None]
) -> tuple[RolloutConfig, Engine]:
    """The engine of a run, and the settings with its name; every process of the run must call this.

    :data:`AUTO` is vllm where there is CUDA and it starts in every process; else hf, without options, which are vLLM's.

    Args:
        rollout: The settings.
        setup: The parts of the run.
        tell: Called with what was chosen, and why, in a line.

    Raises:
        UnknownName, ConfigError, UsageError: As :func:`make_engine`.
    """
    if rollout.engine != AUTO:
        return rollout, make_engine(rollout.engine, setup, rollout.engine_options)
    engine, why = None, f"there is no CUDA, the device is {setup.device.type}"
    from trainers.processes.distributed import sharing_failures  # settings are checked without PyTorch, in a second

    if setup.device.type == "cuda":
        try:
            with sharing_failures(setup.accelerator):
                engine = make_engine("vllm", setup, rollout.engine_options)
            why = ""
        except EnvsuiteError as error:  # also what vLLM itself raises while it starts, in any of the processes
            why = str(error).partition("\n")[0]
    if engine is not None and not why:
        tell("rollout.engine auto: vllm")
        return replace(rollout, engine="vllm"), engine
    if engine is not None:
        engine.close()
    tell(f"rollout.engine auto: hf, not vllm: {why}")
    return replace(rollout, engine="hf", engine_options={}), make_engine("hf", setup, {})


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
        f"envsuite eval model and envsuite imitate take {name!r}"
    )
