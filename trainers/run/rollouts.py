"""Episodes of an iteration: tasks are drawn, played in groups, and replaced where they give no learning signal."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from accelerate import Accelerator

from envsuite.core.errors import DataError
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.engine import EngineFailed, Sampling
from envsuite.playing.episode import Branches, EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.playing.timing import Timing
from envsuite.vector import EnvFactory
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import OracleEpisodes
from trainers.credit.rows import unshaped_steps
from trainers.gateway.agents import AgentManager
from trainers.policy.stateful import Stateful
from trainers.processes.distributed import all_gather_object
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import factory_of, with_milestones
from trainers.rollout.sampler import TaskSampler
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.features.branching.oracle import Continuations
from trainers.run.features.branching.trees import Tree
from trainers.run.shortage import OutOfMemory
from trainers.run.stopping import Abandoned, Stopping

if TYPE_CHECKING:
    from trainers.run.features.pool.rollouts import EpisodeStore

_LOG = logging.getLogger(__name__)


class EpisodesFailed(DataError):
    """All episodes failed: of an environment that cannot be played, or of servers that were lost."""


@dataclass(frozen=True)
class IterationRollout:
    """The rollout of one iteration in this process."""

    episodes: Sequence[Episode]
    timing: Timing
    metrics: Mapping[str, float]
    """Metrics of the rollout itself: of replaced groups, where some may be, and of those played between updates."""
    seconds: float | None = None
    """Seconds in which the episodes were played, where that is not the phase of the rollout alone."""
    covered: float | None = None
    """Seconds that ``timing`` is of, where these are not the iteration's."""
    pruned_tokens: int = 0
    """Response tokens that were sampled for episodes of trees which are not kept."""
    continued: OracleEpisodes | None = None
    """Episodes that went on from the states of the steps, where the method has them."""


@dataclass
class RolloutSource(ABC):
    """Gives each iteration its episodes; every process plays its share of the groups."""

    config: TrainConfig
    accelerator: Accelerator
    sampler: TaskSampler
    informative: Callable[[Sequence[Episode], int], int]
    """Number of groups of all processes, of these episodes of this one, that give a signal in an iteration."""
    counters: Counters
    stop: Stopping

    def __call__(self, iteration: int) -> IterationRollout:
        """Plays ``rollout.tasks`` groups, and further ones for those without a signal (DAPO's dynamic sampling).

        Raises:
            Abandoned: The run is to stop; no task is lost.
            EngineFailed: The engine of some process failed; no task is lost.
            OutOfMemory: Memory of some process ran out; no task is lost.
            DataError: All episodes failed.
        """
        tasks, most, rounds, further = self.config.rollout.tasks, self.config.method.refill_rounds, 0, 0
        episodes, timing = self._play(tasks)
        check_episodes(self.accelerator, episodes, f"iteration {iteration}")
        ACTIVITY.begin("scoring")
        lacking = tasks - self.informative(episodes, iteration) if most else 0
        while lacking > 0 and rounds < most:
            rounds, further = rounds + 1, further + lacking
            new_episodes, more = self._play(lacking)
            episodes, timing = episodes + new_episodes, timing + more
            ACTIVITY.begin("scoring")
            lacking -= self.informative(new_episodes, iteration)
        refills = {"rounds": rounds, "groups": further, "lacking": max(0, lacking)}
        metrics = {f"filter/refill_{name}": float(value) for name, value in refills.items()} if most else {}
        if self.sampler.rates is not None:
            outcomes = [(e.group_id, e.success) for e in episodes if e.error is None and not e.greedy]
            parts = all_gather_object(self.accelerator, outcomes)
            metrics["train/task_success"] = self.sampler.rates.learn([pair for part in parts for pair in part])
        if (steps := self._most_steps(iteration)) is not None:
            metrics["train/step_limit"] = float(steps)
        return IterationRollout(episodes, timing, metrics)

    @abstractmethod
    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        """Returns this process's share of the episodes of ``tasks`` further groups."""

    def draw_groups(self, tasks: int) -> list[tuple[int, list[EpisodePlan]]]:
        """Draws the tasks of further groups; returns the number and the plans of each, the same in every process.

        The plans are those of whole episodes: trees branch from them.
        """
        config, size = self.config, episodes_per_task(self.config)
        whole = config.rollout.group_size if config.rollout.tree is None else config.rollout.tree.trees
        first, steps = whole + config.method.plays_greedily, self._most_steps(self.counters.iteration + 1)
        number = self.counters.groups
        groups = [
            (group, [EpisodePlan(group * size + i, group, env, task, i >= whole, steps=steps) for i in range(first)])
            for group, (env, task) in enumerate(self.sampler.draw(tasks, number), start=number)
        ]
        self.counters.groups += tasks
        return groups

    def _most_steps(self, iteration: int) -> int | None:
        horizon = self.config.rollout.curricula.horizon
        return None if horizon is None else horizon.limit(iteration)

    def is_own(self, group: int) -> bool:
        """Whether this process plays the group."""
        return bool(group % self.accelerator.num_processes == self.accelerator.process_index)

    @property
    def parts(self) -> dict[str, Stateful]:
        """Its parts of a checkpoint, by name."""
        return {}

    def settle(self) -> None:
        """Leaves the engine to others until the next call."""
        return

    def progress(self) -> int:
        """Number that differs where a checkpoint would hold other episodes; every process must call this."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Ends environments, and processes that were started."""


@dataclass
class SynchronousRollouts(RolloutSource):
    """Plays the episodes of an iteration with the weights that it updates."""

    manager: RolloutManager | AgentManager
    sampling: Sampling
    sync: Callable[[], None]
    """Gives the engine the policy's weights."""
    plans: dict[int, EpisodePlan] = field(default_factory=dict)
    """Plans of the iteration's episodes, by their ids."""
    branches: Branches = field(default_factory=dict)
    """Their steps as points where other episodes can start, where the method starts some."""
    store: EpisodeStore | None = None
    """Takes the episodes as they end."""
    pruned: int = 0
    """Tokens of the iteration that were sampled for episodes of trees which are not kept."""

    def __call__(self, iteration: int) -> IterationRollout:
        """Plays the groups; where that is abandoned, the drawn tasks are put back."""
        before, groups = self.sampler.state(), self.counters.groups
        self.plans, self.branches, self.pruned = {}, {}, 0
        try:
            began = time.perf_counter()
            rollout = replace(super().__call__(iteration), pruned_tokens=self.pruned)
            if self.config.method.continuations is None:
                return rollout
            return self._continue_episodes(replace(rollout, seconds=time.perf_counter() - began), iteration)
        except (Abandoned, EngineFailed, OutOfMemory):
            self.sampler.load(before)
            self.counters.groups = groups
            raise

    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        plans = [plan for number, group in self.draw_groups(tasks) if self.is_own(number) for plan in group]
        self.sync()
        episodes, timing = self._play_plans("rollout", plans)
        tree_config = self.config.rollout.tree
        if tree_config is None:
            return episodes, timing
        trees = [self._root_tree(plan, tree_config.leaves - 1) for plan in plans if not plan.greedy]
        whole = {episode.episode_id: episode for episode in episodes}
        for tree in trees:
            tree.grow([whole[tree.root.episode_id]], self.branches)
        for number in range(tree_config.rounds):
            branch_plans = [tree.plan_branches(tree_config.branches, self.branches) for tree in trees]
            further, more = self._play_plans(f"branches {number + 1}", [plan for own in branch_plans for plan in own])
            timing += more
            by_id = {episode.episode_id: episode for episode in further}
            for tree, own in zip(trees, branch_plans, strict=True):
                tree.grow([by_id[plan.episode_id] for plan in own], self.branches)
        kept_episodes = [episode for episode in episodes if episode.greedy]
        for tree in trees:
            leaves, tokens = tree.prune(tree_config)
            kept_episodes += leaves
            self.pruned += tokens
        return sorted(kept_episodes, key=lambda episode: episode.episode_id), timing

    def _root_tree(self, plan: EpisodePlan, branches: int) -> Tree:
        """The tree of a whole episode, with room for so many branches after the whole episodes of its group."""
        config, first = self.config, plan.group_id * episodes_per_task(self.config)
        assert config.rollout.tree is not None
        number, whole = plan.episode_id - first, config.rollout.tree.trees + config.method.plays_greedily
        return Tree(plan, first + whole + number * branches, [config.seed, 3, plan.episode_id])

    def _play_plans(self, name: str, plans: Sequence[EpisodePlan]) -> tuple[list[Episode], Timing]:
        """Plays episodes, and keeps their steps as points where others can start, if the method starts some."""
        config, seed = self.config, self.config.seed + 1
        branches = None if config.method.continuations is None and config.rollout.tree is None else self.branches
        self.plans |= {plan.episode_id: plan for plan in plans}
        episodes = self.stop.phase(
            name, len(plans), lambda watch: self.manager.run(plans, self.sampling, seed, watch, self.store, branches)
        )
        return episodes, self.manager.timing

    def _continue_episodes(self, rollout: IterationRollout, iteration: int) -> IterationRollout:
        """Continues episodes from the state of every step; returns the rollout with what was played."""
        assert self.config.method.continuations is not None
        (count, states), began, seed = self.config.method.continuations, time.perf_counter(), self.config.seed + 2
        steps = unshaped_steps(rollout.episodes, iteration)
        continuations = Continuations.of(steps, count, self.plans, self.branches, states == "key")
        self.plans, self.branches, plans = {}, {}, continuations.plans
        episodes = self.stop.phase(
            "oracle", len(plans), lambda watch: self.manager.run(plans, self.sampling, seed, watch)
        )
        playouts = continuations.playouts(episodes)
        counts = {
            "states": len(continuations.known),
            "episodes": len(episodes),
            "failed": sum(episode.error is not None for episode in episodes),
            "tokens": sum(len(step.response_ids) for episode in playouts.episodes for step in episode.steps),
        }
        parts = all_gather_object(self.accelerator, counts)
        metrics = {f"oracle/{name}": float(sum(part[name] for part in parts)) for name in counts}
        return replace(
            rollout,
            continued=playouts,
            timing=rollout.timing + self.manager.timing,
            metrics={**rollout.metrics, **metrics, "time/oracle": time.perf_counter() - began},
        )

    def close(self) -> None:
        """Closes the environments, and the pool."""
        self.manager.close()
        if self.store is not None:
            self.store.close()


def training_factory(method: MethodConfig) -> Callable[[EnvConfig], EnvFactory]:
    """Returns how a training environment is made: with milestones, where the method has them."""
    kind = method.milestones
    return factory_of if kind is None else partial(with_milestones, of=kind)


def episodes_per_task(config: TrainConfig) -> int:
    """Returns the number of episodes that are played per task, the greedy one of a baseline included."""
    return config.rollout.episodes_per_task + config.method.plays_greedily


def branching(config: TrainConfig) -> list[str]:
    """Returns the settings with which episodes start at steps of others."""
    on = {config.method.estimator: config.method.continuations, "rollout.tree": config.rollout.tree}
    return [name for name, value in on.items() if value is not None]


def training_slots(config: TrainConfig, ranks: int) -> int:
    """Most episodes that each of ``ranks`` processes plays at a time in training."""
    rollout = config.rollout
    if branching(config):
        return rollout.slots
    return min(rollout.slots, (rollout.staleness + 1) * (rollout.tasks // ranks) * episodes_per_task(config))


def check_episodes(accelerator: Accelerator, episodes: Sequence[Episode], what: str) -> None:
    """Warns of failed episodes of all processes, which are left out and counted.

    Raises:
        EpisodesFailed: All did.
    """
    errors = [error for part in all_gather_object(accelerator, [e.error for e in episodes]) for error in part]
    failures = [error for error in errors if error is not None]
    if failures and accelerator.is_main_process:
        _LOG.warning("%s: %d of %d episodes failed, e.g. %s", what, len(failures), len(errors), failures[0])
    if len(failures) == len(errors):
        raise EpisodesFailed(f"{what}: all {len(errors)} episodes failed, e.g. {failures[0]}")
