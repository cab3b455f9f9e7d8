"""Task sets: problems and their splits."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from envsuite.core.tasks import TaskSet
from envsuite.mathematics.generate import KINDS, LEVELS, stratum
from envsuite.mathematics.source import (
    ProblemSource,
    builtin_problems,
    file_problems,
    generated_problems,
    official_folder,
)

ENV_ID = "PythonMath-v0"
HORIZON = 8
"""Maximum number of steps of an episode, as in SPEAR."""


def load(
    source: str, problem_seed: int, count: int, kinds: Collection[str], difficulty: Collection[int]
) -> tuple[ProblemSource, TaskSet]:
    """Returns the problems of a source and its task set; listed once per process.

    Args:
        source: ``"builtin"``, ``"generated"``, ``"official"``, or the path of a file or folder of problems.
        problem_seed: Seed of generated problems.
        count: Number of generated problems.
        kinds: Kinds of generated problems.
        difficulty: Levels of generated problems.

    Raises:
        DataError: The file or folder is missing, or a line of it is no problem.
    """
    types = _types(kinds, difficulty)
    if source == "builtin":
        problems: ProblemSource = builtin_problems()
    elif source == "generated":
        problems = generated_problems(problem_seed, count, types)
    else:
        problems = file_problems(official_folder() if source == "official" else Path(source).resolve())
    return problems, _task_set(problems, source if source in ("builtin", "generated") else "official")


def _types(kinds: Collection[str], difficulty: Collection[int]) -> tuple[str, ...]:
    return tuple(stratum(kind, level) for kind in KINDS if kind in kinds for level in LEVELS if level in difficulty)


@lru_cache(maxsize=16)
def _task_set(problems: ProblemSource, source: str) -> TaskSet:
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for task_id, (split, _) in problems.listed.items():
        splits[split].append(task_id)
    types = {task_id: kind for task_id, (_, kind) in problems.listed.items()}
    return TaskSet(ENV_ID, source, problems.version, {name: tuple(ids) for name, ids in splits.items()}, types)
