"""Measures success on tasks that are not trained on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing

from accelerate import Accelerator

from envsuite.prompting import ChatTokenizer
from trainers.distributed import every
from trainers.policy.adapter import merged_weights
from trainers.policy.loading import load_model, load_tokenizer, model_settings
from trainers.policy.model import stop_ids
from trainers.report.stats import EvalResult, evaluate_summary
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.environments import check_prompts, make_manager, sampling_of, tasks_of
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.limits import check_limits
from trainers.rollout.manager import Watcher
from trainers.run.config import EvalConfig, TrainConfig
from trainers.settings import ConfigError
from trainers.steps import Episode


class Evaluator:
    """Plays the evaluation episodes of a run, spread over its processes.

    Every chosen task is played equally often. All evaluations play the same tasks, with the same seeds, whatever the
    number of processes.

    Args:
        config: The run's settings.
        accelerator: The run's accelerator.
        engine: Samples from the policy.
        tokenizer: The policy's tokenizer.
        stop_ids: Tokens that end a response.

    Raises:
        ConfigError: An environment cannot be made, or has fewer tasks than are to be played.
    """

    def __init__(
        self,
        config: TrainConfig,
        accelerator: Accelerator,
        engine: Engine,
        tokenizer: ChatTokenizer,
        stop_ids: Sequence[int],
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.engine = engine
        self.tokenizer = tokenizer
        self.stop_ids = tuple(stop_ids)
        envs = config.evaluation.envs
        self.tasks = [tasks_of(env, f"evaluation.envs[{i}]") for i, env in enumerate(envs)]
        self.plans = [
            self._plans(chosen_tasks(tasks.ids(env.split), config.evaluation, f"evaluation.envs[{i}] ({env.split})"))
            for i, (tasks, env) in enumerate(zip(self.tasks, envs, strict=True))
        ]
        """The episodes of this process, for each environment."""

    def _plans(self, chosen: Sequence[str]) -> list[EpisodePlan]:
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        repeated = [*enumerate(chosen)] * self.config.evaluation.repeats
        return [EpisodePlan(i, group, 0, task) for i, (group, task) in enumerate(repeated)][rank::count]

    def play(self, env: int, watch: Watcher | None = None) -> list[Episode]:
        """This process's share of the episodes of environment number ``env``."""
        chosen, settings, plans = self.config.evaluation.envs[env], self.config.evaluation, self.plans[env]
        slots = max(1, min(self.config.rollout.slots, len(plans)))
        manager = make_manager(self.config.rollout, self.config.prompt, [chosen], slots, self.engine, self.tokenizer)
        with manager.vector:
            return manager.run(plans, sampling_of(settings.sampling, self.stop_ids), self.config.seed, watch)

    def result(self, name: str, env: int, episodes: Sequence[Episode], seconds: float) -> EvalResult:
        """The result over the episodes of all processes; each process must call this.

        Args:
            name: Name of the evaluation, e.g. ``"before"``.
            env: Index of the environment.
            episodes: The episodes that this process played.
            seconds: Duration.
        """
        together = [episode for part in every(self.accelerator, tuple(episodes)) for episode in part]
        return evaluate_summary(
            sorted(together, key=lambda episode: episode.episode_id),
            name=name,
            env_id=self.config.evaluation.envs[env].id,
            split=self.config.evaluation.envs[env].split,
            manifest_hash=self.tasks[env].hash,
            policy_version=self.engine.policy_version,
            temperature=self.config.evaluation.sampling.temperature,
            wall_s=seconds,
        )


def chosen_tasks(ids: Sequence[str], config: EvalConfig, where: str) -> list[str]:
    """The tasks that an evaluation plays, each ``config.repeats`` times, in the order of the split.

    A sample is a function of the ids alone: those with the smallest SHA-256. So it does not follow the order of the
    split, which may be by difficulty, and a smaller sample is part of a larger one.

    Args:
        ids: All tasks of the split.
        config: How many episodes are played.
        where: The environment, for the message.

    Raises:
        ConfigError: ``config.episodes`` does not fit; the message says what does.
    """
    if config.episodes is None:
        return list(ids)
    count, rest = divmod(config.episodes, config.repeats)
    if rest:
        raise ConfigError(
            f"evaluation.episodes is {config.episodes}, evaluation.repeats {config.repeats}: every task is played "
            f"equally often; make it a multiple of {config.repeats}"
        )
    if count > len(ids):
        raise ConfigError(
            f"evaluation.episodes is {config.episodes}, but {where} has {len(ids)} tasks; leave it out for "
            f"{len(ids) * config.repeats} episodes, or play each task several times with evaluation.repeats"
        )
    return [ids[i] for i in sorted(sorted(range(len(ids)), key=lambda i: _digest(ids[i]))[:count])]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def evaluate(config: TrainConfig, accelerator: Accelerator) -> list[EvalResult]:
    """Measure ``config.model.path`` on every environment of ``config.evaluation``.

    Raises:
        ConfigError: There is none, or one cannot be made.
        DataError: The model cannot be loaded.
        EngineFailed: The engine failed.
    """
    if not config.evaluation.envs:
        raise ConfigError("evaluation.envs is empty; name what to measure success on")
    tokenizer = load_tokenizer(config.model)
    codec = check_prompts(config.prompt, tokenizer)
    check_limits(config.model.path, model_settings(config.model), config.prompt, config.rollout)
    model = load_model(config.model)
    model.to(accelerator.device)
    setup = EngineSetup(model, tokenizer, config.model, config.rollout.slots, accelerator)
    results = []
    with closing(make_engine(config.rollout.engine, setup, config.rollout.engine_options)) as engine:
        evaluator = Evaluator(config, accelerator, engine, tokenizer, stop_ids(model, tokenizer, codec.stop_ids))
        engine.sync(merged_weights(model), 0)  # a running server may have others
        for env in range(len(config.evaluation.envs)):
            began = time.perf_counter()
            episodes = evaluator.play(env)
            results.append(evaluator.result(config.model.path, env, episodes, time.perf_counter() - began))
    return results
