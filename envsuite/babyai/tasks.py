"""Task sets: a task is a level and the seed from which ``minigrid`` makes its world."""

from __future__ import annotations

from itertools import pairwise

from envsuite.babyai.world import VERSION
from envsuite.core.tasks import TaskSet

ENV_ID = "BabyAI-v0"
BUILTIN = {"train": range(1000), "validation": range(1000, 1100), "test": range(1100, 1300)}
"""Seeds of the built-in tasks by split; the same for each level."""
MOST = 1_000_000
"""Most generated tasks; as many seeds belong to each ``world_seed``, and as many are left to the built-in tasks."""


def load(level: str, source: str, world_seed: int, worlds: int) -> TaskSet:
    """Returns the tasks of a level; of generated ones 80 % are in train and 10 % in validation.

    Args:
        level: Name of the level.
        source: ``"builtin"`` or ``"generated"``.
        world_seed: Determines the generated tasks.
        worlds: Number of generated tasks.
    """
    version, seeds = f"{VERSION}-{level}", BUILTIN
    if source == "generated":
        version, first = f"{version}-{world_seed}", (world_seed + 1) * MOST
        ends = [first, first + worlds * 80 // 100, first + worlds * 90 // 100, first + worlds]
        seeds = {split: range(*pair) for split, pair in zip(BUILTIN, pairwise(ends), strict=True)}
    splits = {split: tuple(f"{level}/{seed}" for seed in split_seeds) for split, split_seeds in seeds.items()}
    types = {task_id: level for ids in splits.values() for task_id in ids}
    return TaskSet(ENV_ID, source, version, splits, types)


def parse_task_id(task_id: str) -> tuple[str, int]:
    """Returns level and seed of a task."""
    level, _, seed = task_id.partition("/")
    return level, int(seed)
