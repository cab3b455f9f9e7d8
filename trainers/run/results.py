"""Results of an evaluation in the files of ``envsuite.evaluation``: their conditions, and what counts of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

import orjson

from envsuite import __version__
from envsuite.evaluation.panels.panel import Panel
from envsuite.evaluation.protocol import SEEDS
from envsuite.evaluation.results import Conditions, EpisodeResult
from envsuite.playing.episode import EpisodePlan
from envsuite.remote.making import horizon_of
from trainers.report.stats import EpisodeOutcome
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import prompt_file_of
from trainers.run.config import TrainConfig
from trainers.run.episode_folder import PASSING
from trainers.run.origin import RunOrigin, weights_of
from trainers.settings import ConfigError


def outcome_of(plan: EpisodePlan, stratum: str, result: EpisodeResult | None) -> EpisodeOutcome:
    """Returns what counts of an episode; one without a result was not asked for."""
    if result is None:
        return EpisodeOutcome(plan.task_id, stratum, False, 0.0, 0, "it was not played", unanswered=True)
    return EpisodeOutcome(
        result.task_id, result.stratum, result.success, result.score, result.steps, result.broken,
        context_truncated=result.ending == "context",
    )  # fmt: skip


def conditions_of(
    config: TrainConfig,
    env: EnvConfig,
    panel: Panel,
    versions: Mapping[str, str],
    name: str,
    played: int,
    origin: RunOrigin | None,
    endpoint: bool,
) -> Conditions:
    """Returns the conditions of an evaluation's results.

    Args:
        config: The settings.
        env: The environment.
        panel: Its tasks.
        versions: Versions of its components.
        name: The model.
        played: Number of tasks that are played.
        origin: What is known of a checkpoint.
        endpoint: Whether the engine is one for messages.
    """
    budget = env.max_episode_steps or horizon_of(env.id, env.kwargs)
    if budget is None:
        raise ConfigError(f"{env.id} has no horizon; set max_episode_steps of evaluation.envs")
    options = {name: value for name, value in env.kwargs.items() if name != "source"}
    file = prompt_file_of(config.prompt)
    digest = {} if file is None else {"template_sha256": hashlib.sha256(file.source.encode()).hexdigest()}
    without = (*PASSING, "url", "model")
    engine = {key: value for key, value in config.rollout.engine_options.items() if key not in without}
    weights = None if endpoint else weights_of(config.model.path) if origin is None else origin.fingerprint
    return Conditions(
        policy=name,
        kind="endpoint" if endpoint else "model" if origin is None else "checkpoint",
        env_id=env.id,
        source=panel.source,
        split=env.split,
        panel=panel.hash,
        panel_size=len(panel.tasks),
        sample=None if played == len(panel.tasks) else played,
        budget=budget,
        env_options=options,
        model=name,
        policy_version=None if origin is None else origin.policy_version,
        prompt=_plain({**asdict(config.prompt), **digest, "chat_template": config.model.chat_template}),
        sampling=_plain({
            **asdict(config.evaluation.sampling), "seed": config.seed, "episode_tokens": config.rollout.episode_tokens,
            "engine": config.rollout.engine, "engine_options": engine,
            **({} if endpoint else {"compute_dtype": config.model.compute_dtype}),
        }),
        versions={
            "envsuite": __version__, "torch": version("torch"), "transformers": version("transformers"),
            **({} if weights is None else {"weights": weights}), **versions,
        },
    )  # fmt: skip


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping as JSON has it."""
    content: dict[str, Any] = orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    return content


def with_seeds(config: TrainConfig, seeds: int | None, out: bool) -> TrainConfig:
    """Returns the settings with ``seeds`` episodes of each task.

    With ``out``, and neither ``seeds`` nor ``evaluation.repeats``, it is :data:`~envsuite.evaluation.protocol.SEEDS`
    where tokens are drawn, and 1 where they are not. ``evaluation.episodes``, where it is set, then counts those of one
    seed.

    Raises:
        ConfigError: Both are set, and differ.
    """
    evaluation = config.evaluation
    if seeds is not None and evaluation.repeats not in (1, seeds):
        raise ConfigError(
            f"--seeds is {seeds} and evaluation.repeats {evaluation.repeats}, which means the same; give one"
        )
    if evaluation.repeats > 1 or (seeds is None and not out):
        return config
    count = seeds if seeds is not None else SEEDS if evaluation.sampling.temperature > 0 else 1
    episodes = None if evaluation.episodes is None else evaluation.episodes * count
    return replace(config, evaluation=replace(evaluation, repeats=count, episodes=episodes))
