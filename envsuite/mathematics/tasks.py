"""Task sets: problems and their splits.

The task set of the built-in source is published as ``manifests/builtin.json``; its version has a hash of the problems.
``python -m envsuite.mathematics.tasks`` compares both with the code, ``--write`` writes the manifest.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from envsuite.core.tasks import TaskSet
from envsuite.data.files import write_atomically
from envsuite.mathematics.generate import KINDS, LEVELS, stratum
from envsuite.mathematics.source import (
    CONTENT,
    ProblemSource,
    builtin_problems,
    file_problems,
    generated_problems,
    official_folder,
)

ENV_ID = "PythonMath-v0"
HORIZON = 8
"""Maximum number of steps of an episode, as in SPEAR."""
MANIFEST = Path(__file__).parent / "manifests" / "builtin.json"
"""The published task set of the built-in source."""


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


def content(problems: ProblemSource, task_ids: Sequence[str]) -> str:
    """Returns the SHA-256 (hex) of the texts, answers and codes of problems."""
    digest = hashlib.sha256()
    for task_id in task_ids:
        problem = problems.problem(task_id)
        digest.update("\0".join((task_id, problem.text, problem.answer, problem.code, "")).encode())
    return digest.hexdigest()


def main() -> None:
    """Compares the built-in problems and their published manifest with the code, or writes the manifest."""
    parser = argparse.ArgumentParser(prog="python -m envsuite.mathematics.tasks", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the manifest instead of comparing")
    problems, task_set = load("builtin", 0, 1, KINDS, LEVELS)
    if parser.parse_args().write:
        write_atomically(MANIFEST, task_set.manifest() + b"\n")
    same = MANIFEST.is_file() and TaskSet.from_manifest(MANIFEST) == task_set
    digest = content(problems, list(task_set.types))[:12]
    counts = ", ".join(f"{name} {len(ids)}" for name, ids in task_set.splits.items())
    state = "matches the code" if same else "differs from the code: run with --write"
    if digest != CONTENT:
        state = f"the problems have changed: set CONTENT in source.py to {digest!r}, and run with --write"
    sys.stdout.write(f"{MANIFEST.name}: {counts}; hash {task_set.hash[:8]}; {state}\n")
    sys.exit(0 if same and digest == CONTENT else 1)


if __name__ == "__main__":
    main()
