"""Checks that a run's environments, model and prompts go together, before anything is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from envsuite.core import TaskSet
from envsuite.prompting import Codec
from trainers.credit.hindsight import MOST_TOKENS
from trainers.gateway.managers import check_agent
from trainers.policy.loading import load_tokenizer, model_settings
from trainers.policy.model import Policy
from trainers.rollout.config import EnvConfig
from trainers.rollout.engine import Engine
from trainers.rollout.environments import (
    check_milestones,
    check_prompts,
    check_snapshots,
    check_vocabulary,
    tasks_of,
    with_day,
)
from trainers.rollout.limits import check_images, check_limits
from trainers.run.config import TrainConfig
from trainers.run.rollouts import branching
from trainers.run.teacher import check_teacher
from trainers.settings import ConfigError
from trainers.steps.columns import HINDSIGHT


def check_environments(config: TrainConfig, ranks: int) -> list[TaskSet]:
    """Returns the tasks of each environment of training.

    Raises:
        ConfigError: An environment cannot be made, or cannot do what the method asks of it; the message names its key.
    """
    rollout, method = config.rollout, config.method
    if rollout.tasks % ranks:
        raise ConfigError(
            f"rollout.tasks is {rollout.tasks}, which {ranks} processes cannot share evenly; "
            f"make it a multiple of {ranks}"
        )
    envs = envs_by_key("envs", config.envs)
    tasks = [tasks_of(env, key) for key, env in envs.items()]
    for key, env in envs.items():
        if method.milestones is not None:
            check_milestones(env, key, method.milestones)
        for setting in branching(config):
            check_snapshots(env, key, setting)
    check_images(envs, config.model, config.prompt, rollout, method.replay is not None)
    if rollout.agent is not None:
        check_agent(rollout.agent)
    return tasks


def load_prompting(
    config: TrainConfig, envs: Mapping[str, EnvConfig], earlier: Mapping[str, Any], trains: bool = True
) -> tuple[TrainConfig, PreTrainedTokenizerBase, Codec]:
    """Returns the settings with the day that the prompts say, the policy's tokenizer, and the codec of the prompts.

    Args:
        config: All settings.
        envs: The environments that are played, by their keys.
        earlier: Settings of prompts of the run that is gone on with, whose day stays.
        trains: Whether there is an update, whose batches and prompts have to fit, too.

    Raises:
        ConfigError: Chat template, vocabulary or context of the model do not fit the settings, or the teacher's.
        DataError: A tokenizer cannot be loaded.
        ServerUnreachable: The teacher's server does not answer.
    """
    tokenizer = load_tokenizer(config.model)
    config = replace(config, prompt=with_day(config.prompt, tokenizer, earlier))
    codec = check_prompts(config.prompt, tokenizer)
    for key, env in envs.items():
        check_vocabulary(env, key, tokenizer)
    budget = config.optim.tokens_per_microbatch if trains else None
    more = MOST_TOKENS if trains and HINDSIGHT in config.method.make_estimator().needs else 0
    check_limits(config.model.path, model_settings(config.model), config.prompt, config.rollout, budget, more)
    if trains:
        check_teacher(config, tokenizer)
    return config, tokenizer, codec


def check_experts(config: TrainConfig, policy: Policy, engine: Engine) -> None:
    """Checks that the engine tells the experts of a mixture where the update reads them.

    Raises:
        ConfigError: It does not.
    """
    from_pool = config.pool is not None and config.pool.take is not None
    if policy.balance_coef and (from_pool or not engine.records_experts):
        reason = "pool.take is set, and a pool" if from_pool else f"the engine {config.rollout.engine}"
        raise ConfigError(
            f"model.balance_coef is {policy.balance_coef} (null takes the model's own), but {reason} does not tell "
            f"the experts of {config.model.path}; set model.balance_coef: 0"
        )
    if policy.replay and not engine.records_experts:
        raise ConfigError(
            f"model.routing is replay, but the engine hf samples {config.model.path} with transformers' cache, and "
            "does not tell its experts there; set model.routing: own"
        )


def envs_by_key(name: str, envs: Sequence[EnvConfig]) -> dict[str, EnvConfig]:
    """The environments of a list of the settings, by their keys."""
    return {f"{name}[{i}]": env for i, env in enumerate(envs)}
