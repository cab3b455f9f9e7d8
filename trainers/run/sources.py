"""Chooses where the episodes of a run's iterations come from: played, played ahead of their update, or stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.gateway.managers import manager_of
from trainers.rollout.environments import make_manager, sampling_of
from trainers.run.examples import examples_of
from trainers.run.features.pool.files import open_stored
from trainers.run.features.pool.rollouts import EpisodeStore, PooledRollouts
from trainers.run.features.staleness.groups import GroupPool
from trainers.run.features.staleness.rollouts import AsynchronousRollouts
from trainers.run.rollouts import RolloutSource, SynchronousRollouts, branching, training_factory, training_slots

if TYPE_CHECKING:
    from trainers.run.assembly import Run


def make_rollouts(run: Run, ends: Sequence[int]) -> RolloutSource:
    """The episodes of the iterations, as ``rollout.staleness`` and ``pool`` say.

    Args:
        run: The run, with its engine.
        ends: Tokens that end an answer.

    Raises:
        ConfigError: Settings contradict each other.
        UsageError: An environment cannot be made.
    """
    config, rollout, accelerator = run.config, run.config.rollout, run.accelerator
    common = (config, accelerator, run.sampler, run.crediting.informative, run.counters, run.stop)
    if config.pool is not None and config.pool.take is not None:
        return PooledRollouts(*common, open_stored(config, Path(config.pool.folder), run.tokenizer), config.pool.take)
    sampling = sampling_of(rollout.sampling, ends)
    slots = training_slots(config, accelerator.num_processes)
    examples = [examples_of(env, config.prompt) for env in config.envs]
    parts = (rollout, config.prompt, config.envs, slots, run.engine, run.tokenizer, examples)
    factory = training_factory(config.method)
    if not rollout.staleness:
        store = None if config.pool is None else EpisodeStore(config.pool, config.name, accelerator.num_processes)
        player = manager_of(*parts, factory, bool(branching(config)), accelerator.process_index)
        return SynchronousRollouts(*common, player, sampling, run.sync, store=store)
    groups = GroupPool(accelerator, rollout.tasks, rollout.staleness)
    turns = make_manager(*parts, factory).open(sampling, config.seed + 1, lambda _, episode, __: groups.enter(episode))
    return AsynchronousRollouts(*common, groups, turns, run.sync, lambda: run.updater.steps)
