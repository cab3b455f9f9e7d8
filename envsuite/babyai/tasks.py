"""Task sets: a task is a level and the seed from which ``minigrid`` makes its world."""

from __future__ import annotations

ENV_ID = "BabyAI-v0"
BUILTIN = {"train": range(1000), "validation": range(1000, 1100), "test": range(1100, 1300)}
"""Seeds of the built-in tasks by split; the same for each level."""


def parse_task_id(task_id: str) -> tuple[str, int]:
    """Returns level and seed of a task."""
    level, _, seed = task_id.partition("/")
    return level, int(seed)
