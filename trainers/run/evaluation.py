"""Measures success on tasks that are not trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from envsuite.evaluation.protocol import sample_of
from envsuite.evaluation.recorder import EpisodeRecorder
from envsuite.playing.engine import BaseEngine, ChatEngine, EngineFailed
from envsuite.playing.episode import EpisodeCost, EpisodePlan
from envsuite.playing.loop import Keeper
from envsuite.playing.manager import Watcher
from envsuite.playing.step import Episode
from envsuite.prompting import ChatTokenizer
from trainers.gateway.managers import manager_of
from trainers.processes.distributed import all_gather_object
from trainers.report.stats import EpisodeOutcome, EvalResult, evaluate_summary
from trainers.rollout.environments import answers_of, panel_of_env, sampling_of, tasks_of
from trainers.rollout.limits import check_images
from trainers.run.config import EvalConfig, TrainConfig
from trainers.run.episode_folder import EpisodeFolder, played_with
from trainers.run.examples import examples_of
from trainers.run.origin import origin_of
from trainers.run.playing import playing, usage_of
from trainers.run.results import conditions_of, outcome_of
from trainers.run.rollouts import training_slots
from trainers.settings import ConfigError


@dataclass
class Evaluator:
    """Plays the evaluation episodes of a run, spread over its processes.

    Every chosen task is played equally often. All evaluations play the same tasks, with the same seeds, whatever the
    number of processes.

    Args:
        config: The run's settings.
        accelerator: The run's accelerator.
        engine: Samples from the policy, or answers messages.
        tokenizer: The policy's tokenizer; ``None`` with an engine for messages.
        stop_ids: Tokens that end a response.
        keep: Folder of the episodes, which are written as they end; those that are there are not played again.
        out: Folder of the results, likewise.
        name: The model, in the results.
        policy: Name of the policy in tables; by default that of the model.

    Raises:
        ConfigError: An environment cannot be made, or has fewer tasks than are to be played.
    """

    config: TrainConfig
    accelerator: Accelerator
    engine: BaseEngine[Any, Any]
    tokenizer: ChatTokenizer | None
    stop_ids: Sequence[int]
    keep: Path | None = None
    out: Path | None = None
    name: str = ""
    policy: str | None = None

    def __post_init__(self) -> None:
        config, accelerator = self.config, self.accelerator
        is_known = self.out is not None and not isinstance(self.engine, ChatEngine)
        self.origin = origin_of(config.model.path) if is_known else None
        envs = config.evaluation.envs
        self.tasks = [tasks_of(env, f"evaluation.envs[{i}]") for i, env in enumerate(envs)]
        places = {f"evaluation.envs[{i}]": env for i, env in enumerate(envs)}
        check_images(places, config.model, config.prompt, config.rollout, replays=False)
        self.chosen = [
            chosen_tasks(tasks.ids(env.split), config.evaluation, f"evaluation.envs[{i}] ({env.split})")
            for i, (tasks, env) in enumerate(zip(self.tasks, envs, strict=True))
        ]
        """The tasks that are played, for each environment."""
        count, rank = accelerator.num_processes, accelerator.process_index
        self.plans = [self._all_plans(env)[rank::count] for env in range(len(envs))]
        """The episodes of this process, for each environment."""
        self.examples = [examples_of(env, config.prompt) for env in envs]

    def _all_plans(self, env: int) -> list[EpisodePlan]:
        """Returns the episodes of environment number ``env``, those of all processes."""
        group_tasks = [*enumerate(self.chosen[env])] * self.config.evaluation.repeats
        return [EpisodePlan(i, group, 0, task) for i, (group, task) in enumerate(group_tasks)]

    def play(self, env: int, watch: Watcher | None = None) -> list[Episode]:
        """This process's share of the episodes of environment number ``env``."""
        return self._play(env, self.plans[env], watch)

    def record(self, env: int) -> list[EpisodeOutcome]:
        """Plays what ``out`` has no results of; returns this process's share of the outcomes of all episodes."""
        results, types = self._results(env), self.tasks[env].types
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        try:
            all_gather_object(self.accelerator, None)  # all have read what is there before one writes
            open_plans = results.open_plans(self._all_plans(env))

            def write(plan: EpisodePlan, episode: Episode, effort: EpisodeCost) -> None:
                if not (episode.unanswered and self.engine.stopped is not None):  # not asked: it is missing, not broken
                    results.add(plan, episode, effort)

            self._play(env, open_plans[rank::count], None, write)
        finally:
            results.close()
        there = {plan.episode_id for plan in self._all_plans(env)} - {plan.episode_id for plan in open_plans}
        mine = {plan.episode_id for plan in open_plans[rank::count]} | (there if rank == 0 else set())
        return [
            outcome_of(plan, types[plan.task_id], results.result(plan))
            for plan in self._all_plans(env)
            if plan.episode_id in mine
        ]

    def _results(self, env: int) -> EpisodeRecorder:
        """Opens the results of environment number ``env``."""
        assert self.out is not None
        config, tasks, messages = self.config, self.chosen[env], isinstance(self.engine, ChatEngine)
        env_config, repeats = config.evaluation.envs[env], config.evaluation.repeats
        panel, versions = panel_of_env(env_config, f"evaluation.envs[{env}]")
        conditions = replace(
            conditions_of(config, env_config, panel, versions, self.name, len(tasks), self.origin, messages),
            policy=self.name if self.policy is None else self.policy,
        )
        prices = config.rollout.engine_options.get("prices") if messages else None
        strata = {task: self.tasks[env].types[task] for task in tasks}
        return EpisodeRecorder(self.out, conditions, strata, repeats, prices, self.accelerator.process_index)

    def _play(
        self, env: int, plans: list[EpisodePlan], watch: Watcher | None, also: Keeper | None = None
    ) -> list[Episode]:
        """Plays ``plans`` but those whose episodes are kept already."""
        env_config, settings = self.config.evaluation.envs[env], self.config.evaluation
        episodes: list[Episode] = []
        keepers = [] if also is None else [also]
        if self.keep is not None:
            what = played_with(self.config, env_config, settings.sampling, self.tasks[env].hash)
            text = None if self.tokenizer is None else answers_of(self.config.prompt, self.tokenizer)
            folder = EpisodeFolder(self.keep / f"{env}-{env_config.id}-{env_config.split}", what, text)
            by_id = {plan.episode_id: plan for plan in plans}
            episodes, plans = folder.split(plans)
            if also is not None:
                for episode in episodes:
                    also(by_id[episode.episode_id], episode, _effort(episode))
            keepers.append(folder.add)
        slots = max(1, min(self.config.rollout.slots, len(plans)))
        manager = manager_of(
            self.config.rollout, self.config.prompt, [env_config], slots, self.engine, self.tokenizer,
            [self.examples[env]], rank=self.accelerator.process_index,
        )  # fmt: skip
        with closing(manager):
            sampling = sampling_of(settings.sampling, self.stop_ids)

            def keep(plan: EpisodePlan, episode: Episode, effort: EpisodeCost) -> None:
                for keeper in keepers:
                    keeper(plan, episode, effort)

            return [*episodes, *manager.run(plans, sampling, self.config.seed, watch, keep)]

    def result(
        self,
        name: str,
        env: int,
        episodes: Sequence[Episode | EpisodeOutcome],
        seconds: float,
        usage: dict[str, Any] | None = None,
    ) -> EvalResult:
        """The result over the episodes of all processes; each process must call this.

        Args:
            name: Name of the evaluation, e.g. ``"before"``.
            env: Index of the environment.
            episodes: The episodes that this process played.
            seconds: Duration.
            usage: What an engine for messages was asked for.
        """
        all_episodes = [episode for part in all_gather_object(self.accelerator, tuple(episodes)) for episode in part]
        return evaluate_summary(
            all_episodes,
            name=name,
            env_id=self.config.evaluation.envs[env].id,
            split=self.config.evaluation.envs[env].split,
            manifest_hash=self.tasks[env].hash,
            policy_version=self.engine.policy_version,
            temperature=self.config.evaluation.sampling.temperature,
            wall_s=seconds,
            usage=usage,
        )


def _effort(episode: Episode) -> EpisodeCost:
    """Returns the tokens of an episode that was kept; how long it took is not, nor what an endpoint counted."""
    steps = episode.steps
    prompts, answers = sum(len(step.prompt_ids) for step in steps), sum(len(step.response_ids) for step in steps)
    return EpisodeCost(0.0, prompts, answers, counted=False)


def chosen_tasks(ids: Sequence[str], config: EvalConfig, where: str) -> list[str]:
    """The tasks that an evaluation plays, each ``config.repeats`` times: all of the split, or a :func:`sample_of` them.

    Args:
        ids: All tasks of the split.
        config: How many episodes are played.
        where: The environment, for the message.

    Raises:
        ConfigError: ``config.episodes`` does not fit; the message says what does.
    """
    if config.episodes is None:
        return list(ids)
    count, remainder = divmod(config.episodes, config.repeats)
    if remainder:
        raise ConfigError(
            f"evaluation.episodes is {config.episodes}, evaluation.repeats {config.repeats}: every task is played "
            f"equally often; make it a multiple of {config.repeats}"
        )
    if count > len(ids):
        raise ConfigError(
            f"evaluation.episodes is {config.episodes}, but {where} has {len(ids)} tasks; leave it out for "
            f"{len(ids) * config.repeats} episodes, or play each task several times with evaluation.repeats"
        )
    return sample_of(ids, count)


def slots_of(config: TrainConfig, ranks: int) -> int:
    """Most episodes that each of ``ranks`` processes plays at a time, in training or an evaluation."""
    settings, counts = config.evaluation, [0]
    for number, env in enumerate(settings.envs):
        tasks = tasks_of(env, f"evaluation.envs[{number}]").ids(env.split)
        counts.append(len(tasks) * settings.repeats if settings.episodes is None else settings.episodes)
    return min(config.rollout.slots, max(training_slots(config, ranks), -(-max(counts) // ranks)))


def evaluate(
    config: TrainConfig,
    accelerator: Accelerator,
    keep: Path | None = None,
    out: Path | None = None,
    policy: str | None = None,
) -> list[EvalResult]:
    """Measure ``config.model.path``, or the model of an engine for messages, on every environment.

    An engine that stops early (an endpoint that is down, a spent budget) ends the evaluation there: what was played is
    counted, what was not is ``unanswered``.

    Args:
        config: All settings; ``evaluation`` has the environments.
        accelerator: Has the device and the processes.
        keep: Folder of the episodes, which are written as they end; those that are there are not played again.
        out: Folder of the results in envsuite's format, likewise.
        policy: Name of the policy in tables; by default that of the model.

    Raises:
        ConfigError: There is no environment, or one cannot be made.
        DataError: The model cannot be loaded.
        EngineFailed: The engine failed, or stopped before an episode had ended.
    """
    if not config.evaluation.envs:
        raise ConfigError("evaluation.envs is empty; name what to measure success on")
    results: list[EvalResult] = []
    with playing(config, accelerator) as player:
        engine, name = player.engine, player.name
        parts = (player.config, accelerator, engine, player.tokenizer, player.stop_ids)
        evaluator = Evaluator(*parts, keep, out, name, policy)
        for env in range(len(config.evaluation.envs)):
            began, before = time.perf_counter(), usage_of(engine)
            episodes = evaluator.play(env) if out is None else evaluator.record(env)
            seconds, usage = time.perf_counter() - began, usage_of(engine, before)
            results.append(evaluator.result(name, env, episodes, seconds, usage))
            if engine.stopped is not None:
                break
        if engine.stopped is not None and not any(result.all.n for result in results):
            raise EngineFailed(engine.stopped)
    return results
