"""Speeds of GPUs for a simulation, from the plan of a run: nobody has measured them on these GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from research.fleet.model import UpdateSpeed
from trainers.planning.plan import EngineSpeed, RunPlan, RunPlanner
from trainers.run.config import TrainConfig

ROLLOUT = ("prefill", "decode", "sync")
"""Phases of a plan that are not the update's."""


@dataclass(frozen=True)
class Speeds:
    """Speeds that a simulation takes from a plan."""

    engine: EngineSpeed
    """Speed of the engine of one GPU."""
    update: UpdateSpeed
    """Speed of all training GPUs together."""
    notes: tuple[str, ...]
    """Assumptions of the plan."""
    plan: RunPlan


def speeds_of(config: TrainConfig, training: RunPlanner, generation: RunPlanner) -> Speeds:
    """Takes the speeds from plans.

    The seconds of an update grow linearly with its tokens, so plans of one and of two iterations' tasks give both the
    seconds of a token and those that do not depend on their number.

    Args:
        config: Settings of the run.
        training: Plans of the training GPUs.
        generation: Plans of the GPUs that generate.
    """
    one = training.plan(config)
    two = training.plan(replace(config, rollout=replace(config.rollout, tasks=2 * config.rollout.tasks)))
    ranks = training.where.ranks
    token = (_update(two.seconds) - _update(one.seconds)) / (
        (two.work.training_tokens - one.work.training_tokens) * ranks
    )
    fixed = max(0.0, _update(one.seconds) - token * one.work.training_tokens * ranks)
    there = one if generation is training else generation.plan(_divisible(config, generation.where.ranks))
    update = UpdateSpeed(token, fixed, one.seconds.get("sync", 0.0))
    return Speeds(generation.engine(config, there.dry), update, one.work.notes, one)


def _update(seconds: Mapping[str, float]) -> float:
    return sum(value for name, value in seconds.items() if name not in ROLLOUT)


def _divisible(config: TrainConfig, ranks: int) -> TrainConfig:
    """The settings with as many tasks as these GPUs share evenly: an engine's speed does not depend on them."""
    return replace(config, rollout=replace(config.rollout, tasks=-(-config.rollout.tasks // ranks) * ranks))
