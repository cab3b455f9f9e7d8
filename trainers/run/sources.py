"""Chooses where the episodes of a run's iterations come from: played, played ahead of their update, or stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from envsuite.playing.step import Episode
from trainers.gateway.managers import manager_of
from trainers.pool import Pool
from trainers.rollout.engine import Engine
from trainers.rollout.environments import make_manager, sampling_of
from trainers.rollout.sampler import TaskSampler
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.examples import examples_of
from trainers.run.features.pool.rollouts import EpisodeStore, PooledRollouts
from trainers.run.features.staleness.groups import GroupPool
from trainers.run.features.staleness.rollouts import AsynchronousRollouts
from trainers.run.rollouts import RolloutSource, SynchronousRollouts, branching, training_factory, training_slots
from trainers.run.stopping import Stopping


def make_rollouts(
    config: TrainConfig,
    accelerator: Accelerator,
    sampler: TaskSampler,
    informative: Callable[[Sequence[Episode], int], int],
    counters: Counters,
    stop: Stopping,
    *,
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    ends: Sequence[int],
    sync: Callable[[], None],
    version: Callable[[], int],
) -> RolloutSource:
    """The episodes of the iterations, as ``rollout.staleness`` and ``pool`` say.

    Args:
        config: All settings.
        accelerator: The run's accelerator.
        sampler: Draws the tasks.
        informative: Number of groups with a signal (:class:`RolloutSource`).
        counters: The run's counters.
        stop: Ends a phase where the run is to stop.
        engine: Answers the prompts.
        tokenizer: The policy's.
        ends: Tokens that end an answer.
        sync: Gives the engine the policy's weights.
        version: Returns the version of the policy's weights.

    Raises:
        ConfigError: Settings contradict each other.
        UsageError: An environment cannot be made.
    """
    rollout = config.rollout
    common = (config, accelerator, sampler, informative, counters, stop)
    if config.pool is not None and config.pool.take is not None:
        return PooledRollouts(*common, Pool(config.pool.folder), config.pool.take)
    sampling = sampling_of(rollout.sampling, ends)
    slots = training_slots(config, accelerator.num_processes)
    examples = [examples_of(env, config.prompt) for env in config.envs]
    parts = (rollout, config.prompt, config.envs, slots, engine, tokenizer, examples)
    factory = training_factory(config.method)
    if not rollout.staleness:
        store = None if config.pool is None else EpisodeStore(config.pool, config.name, accelerator.num_processes)
        player = manager_of(*parts, factory, bool(branching(config)), accelerator.process_index)
        return SynchronousRollouts(*common, player, sampling, sync, store=store)
    groups = GroupPool(accelerator, rollout.tasks, rollout.staleness)
    turns = make_manager(*parts, factory).open(sampling, config.seed + 1, lambda _, episode, __: groups.enter(episode))
    return AsynchronousRollouts(*common, groups, turns, sync, version)
