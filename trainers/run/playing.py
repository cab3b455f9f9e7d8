"""The engine of a program that plays and trains nothing: of a model that is loaded here, or an endpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from accelerate import Accelerator

from envsuite.playing.engine import BaseEngine, ChatEngine
from envsuite.prompting import ChatTokenizer
from trainers.gateway.managers import check_agent
from trainers.policy.adapter import merged_weights
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.model import stop_ids
from trainers.processes.cpu import keep_freed_memory
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import answers_in_text, make_chat_engine, start_engine
from trainers.rollout.environments import check_chat, ends_of
from trainers.run.checks import envs_by_key, load_prompting
from trainers.run.config import TrainConfig
from trainers.run.origin import differing, origin_of
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedEngine:
    """An engine, and what prompts for it are made with."""

    config: TrainConfig
    """All settings, with the name of the engine."""
    engine: BaseEngine[Any, Any]
    name: str
    """The model, for people."""
    tokenizer: ChatTokenizer | None
    """``None`` where the engine takes messages, and no agent asks."""
    stop_ids: tuple[int, ...]


@contextmanager
def playing(config: TrainConfig, accelerator: Accelerator) -> Iterator[LoadedEngine]:
    """Makes the engine that ``rollout.engine`` names, and closes it after the block.

    An engine for messages loads no model; ``model.path`` is read for an agent's prompts alone, which have its tokens.

    Raises:
        ConfigError: The settings do not go with the engine.
        DataError: The model cannot be loaded.
        EngineFailed: The engine failed.
    """
    rollout = config.rollout
    if rollout.agent is not None:
        check_agent(rollout.agent)
    if answers_in_text(rollout.engine):
        if rollout.agent is None:
            check_chat(rollout, config.prompt, config.evaluation.sampling)
        if accelerator.num_processes > 1:
            raise ConfigError(
                f"rollout.engine is {rollout.engine!r}, whose budget and concurrency are those of one process, but "
                f"there are {accelerator.num_processes}; start one, without accelerate launch"
            )
        with closing(make_chat_engine(rollout.engine, rollout.slots, rollout.engine_options)) as chats:
            own = None if rollout.agent is None else load_tokenizer(config.model)
            yield LoadedEngine(config, chats, chats.name, own, ())
        return
    origin = origin_of(config.model.path)
    earlier = {} if origin is None else origin.prompt
    envs = envs_by_key("evaluation.envs", config.evaluation.envs)
    config, tokenizer, codec = load_prompting(config, envs, earlier, trains=False)
    if origin is not None and (difference := differing(origin, config.prompt)) is not None:
        _LOG.warning(
            "model.path %s was trained with other prompts: %s; its success with these says little of the training "
            "(give the run's config.yaml with --config)", config.model.path, difference,
        )  # fmt: skip
    model = load_model(config.model).requires_grad_(False)
    model.to(accelerator.device)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    setup = EngineSetup(model, tokenizer, config.model, rollout.slots, accelerator)
    rollout, engine = start_engine(rollout, setup, _LOG.warning)
    with closing(engine):
        engine.sync(merged_weights(model), 0)  # a running server may have others
        ends = stop_ids(model, tokenizer, ends_of(config.prompt, tokenizer, codec))
        yield LoadedEngine(replace(config, rollout=rollout), engine, config.model.path, tokenizer, ends)


def usage_of(engine: BaseEngine[Any, Any], before: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Returns what an engine for messages was asked for since ``before``; ``None`` for any other engine."""
    if not isinstance(engine, ChatEngine):
        return None
    old, now = before or {}, engine.usage()
    return {k: round(v - old.get(k, 0), 6) if isinstance(v, int | float) else v for k, v in now.items()}
