"""Results of an evaluation in the files of ``envsuite.evaluation``, a line for each episode as it ends."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from envsuite import __version__
from envsuite.evaluation.panels.panel import Panel
from envsuite.evaluation.protocol import SEEDS, stem_of
from envsuite.evaluation.results import Conditions, EpisodeResult, ResultFile
from envsuite.evaluation.results import Ending as ResultEnding
from envsuite.prompting.endpoints import AnswerTokens, cost_of
from envsuite.remote.making import horizon_of
from trainers.report.stats import EpisodeOutcome
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import prompt_file_of
from trainers.rollout.episode import EpisodeCost, EpisodePlan
from trainers.run.config import TrainConfig
from trainers.run.origin import RunOrigin, weights_of
from trainers.settings import ConfigError
from trainers.steps import Episode

_PASSING = ("key_variable", "concurrency", "patience", "timeout", "budget", "prices", "url")
"""Options of an engine that change no answer."""


class EvaluationResults:
    """The results of one environment of an evaluation; each process of it writes a file of its own.

    Args:
        folder: Where they are; made if need be.
        conditions: Those of every result.
        rank: Number of this process.
        tasks: The tasks that are played, in their order.
        seeds: Episodes of each.
        prices: Of a million tokens, for the cost.

    Raises:
        DataError: The folder cannot be read or written, or has results of other conditions.
    """

    def __init__(
        self,
        folder: Path,
        conditions: Conditions,
        rank: int,
        tasks: Sequence[str],
        seeds: int,
        prices: Mapping[str, float] | None = None,
    ) -> None:
        stem = stem_of(conditions.env_id, conditions.split, conditions.policy)
        self.conditions = conditions
        self.tasks = tuple(tasks)
        self.seeds = seeds
        self.prices = prices
        path = folder / (f"{stem}.{rank}.jsonl" if rank else f"{stem}.jsonl")
        pattern = re.compile(re.escape(stem) + r"(\.[0-9]+)?\.jsonl")
        other_files = (file for file in sorted(folder.glob("*.jsonl")) if pattern.fullmatch(file.name) and file != path)
        self._file = ResultFile(path, conditions, other_files)

    def seed(self, plan: EpisodePlan) -> int:
        """Returns the number of the repetition that an episode is."""
        return plan.episode_id // len(self.tasks)

    def open_plans(self, plans: Sequence[EpisodePlan]) -> list[EpisodePlan]:
        """Returns the plans that have no sound result yet."""
        missing = {*self._file.missing(self.tasks, range(self.seeds))}
        return [plan for plan in plans if (plan.task_id, self.seed(plan)) in missing]

    def add(self, plan: EpisodePlan, episode: Episode, effort: EpisodeCost, stratum: str) -> None:
        """Writes an episode that has ended."""
        steps = episode.steps
        failure = None if episode.context_truncated else episode.error
        figures = steps[-1].info.get("metrics", {}) if steps else {}
        result = EpisodeResult(
            self.conditions,
            episode.task_id,
            stratum,
            self.seed(plan),
            success=episode.success and failure is None,
            score=episode.score,
            reward=episode.total_reward,
            steps=len(steps),
            ending=_ending(episode, self.conditions.budget),
            parsed=sum(step.action is not None for step in steps),
            valid=sum(step.valid for step in steps),
            cut=sum(step.finish_reason == "length" for step in steps),
            prompt_tokens=effort.prompt_tokens,
            answer_tokens=effort.answer_tokens,
            cost=None if self.prices is None else _cost(effort, self.prices),
            seeds=self.seeds,
            seconds=round(effort.seconds, 3),
            metrics={name: float(value) for name, value in figures.items()},
            broken=failure,
        )
        self._file.add(result)

    def outcomes(self, plans: Sequence[EpisodePlan], types: Mapping[str, str]) -> list[EpisodeOutcome]:
        """Returns what counts of each episode; one without a result was not asked for."""
        outcomes = []
        for plan in plans:
            task, result = plan.task_id, self._file.results.get((plan.task_id, self.seed(plan)))
            if result is None:
                outcomes.append(EpisodeOutcome(task, types[task], False, 0.0, 0, "it was not played", unanswered=True))
            else:
                outcomes.append(_outcome(result))
        return outcomes

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _outcome(result: EpisodeResult) -> EpisodeOutcome:
    return EpisodeOutcome(
        result.task_id, result.stratum, result.success, result.score, result.steps, result.broken,
        context_truncated=result.ending == "context",
    )  # fmt: skip


def _ending(episode: Episode, budget: int) -> ResultEnding:
    if episode.context_truncated:
        return "context"
    if episode.error is not None:
        return "broken"
    if episode.terminated:
        return "done"
    return "budget" if len(episode.steps) >= budget else "tokens"


def _cost(effort: EpisodeCost, prices: Mapping[str, float]) -> float | None:
    """Returns the cost of an episode; ``None`` where the endpoint did not count."""
    tokens = AnswerTokens(effort.prompt_tokens, effort.cached_tokens, effort.answer_tokens)
    return cost_of(tokens, prices) if effort.counted else None


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
    engine = {key: value for key, value in config.rollout.engine_options.items() if key not in (*_PASSING, "model")}
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


def read_seeds(text: str | None) -> int | None:
    """Returns the number that ``--seeds`` gives.

    Raises:
        ConfigError: It is none.
    """
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ConfigError(f"--seeds is {text!r}; it must be a whole number from 1")
    return int(text)
