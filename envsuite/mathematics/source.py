"""Where problems come from: the generator, with fixed or chosen seed, and files."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from envsuite.core.draws import Draw
from envsuite.core.errors import DataError
from envsuite.data.places import data_root
from envsuite.mathematics.files import read
from envsuite.mathematics.generate import BY_STRATUM, GENERATOR, draw_problem, generate_problem
from envsuite.mathematics.problem import MathProblem

COUNTS = {"train": 200, "validation": 20, "test": 40}
"""Number of built-in problems of each type."""
CONTENT = "6f0fd7104b78"
"""Beginning of the hash of the built-in problems, a part of their version."""
PUBLISHED = "https://huggingface.co/datasets (BytedTsinghua-SIA/DAPO-Math-17k, HuggingFaceH4/MATH-500, AIME)"
_SPLIT = re.compile(
    r"(?:(?P<train>train|training|dapo)|(?P<validation>val|valid|validation|dev)|(?P<test>test|aime|math-?500))(?![a-z])"
)


class ProblemSource(ABC):
    """A set of problems with ids."""

    version: str
    """Hash of the files, or the arguments of the generator; determines the problem of an id."""

    listed: Mapping[str, tuple[str, str]]
    """Split and type of every id, in their order."""

    @abstractmethod
    def problem(self, task_id: str) -> MathProblem:
        """Returns the problem of an id in :attr:`listed`."""

    def place(self, task_id: str) -> dict[str, Any]:
        """Returns where the problem of an id in :attr:`listed` comes from, as plain JSON: draws, and the number."""
        stem, _, number = task_id.rpartition("#")
        return {"generated": stem, "index": int(number)}


class BuiltinProblems(ProblemSource):
    """The same problems for ever, of every type, none of them twice, even in other words.

    An id is the type, the split and a number, e.g. ``arithmetic-1/test#12``.
    """

    version = f"{GENERATOR}-{CONTENT}"

    def __init__(self) -> None:
        self.listed = {
            f"{task_type}/{split}#{number}": (split, task_type)
            for task_type in BY_STRATUM
            for split, count in COUNTS.items()
            for number in range(count)
        }

    def problem(self, task_id: str) -> MathProblem:
        """Draws the problems of its type and split, the first time, and returns it."""
        split, task_type = self.listed[task_id]
        return _builtin(task_type, split)[int(task_id.rpartition("#")[2])]


@cache
def _builtin(task_type: str, split: str) -> tuple[MathProblem, ...]:
    draw, contents, problems = Draw(f"{GENERATOR} builtin {task_type} {split}"), set[str](), []
    for _ in range(COUNTS[split]):
        family, parameters, wording = draw_problem(draw, task_type, split, contents)
        contents.add(family.content(parameters))
        problems.append(family.problem(parameters, wording))
    return tuple(problems)


class GeneratedProblems(ProblemSource):
    """Problems drawn from a seed, each when it is first played: 80 % of each type in train, 10 % in validation.

    No two splits have a problem in common, even in other words; two problems of one split may be alike. An id is the
    same problem whatever the other arguments are.

    Args:
        seed: Determines them.
        count: How many there are, of all types together.
        types: Their types.
    """

    def __init__(self, seed: int, count: int, types: Sequence[str]) -> None:
        self.version = f"{GENERATOR}-{seed}-{count}-{','.join(types)}"
        self.listed = {}
        for place, task_type in enumerate(types):
            number = (count - place + len(types) - 1) // len(types)
            first, second = number * 80 // 100, number * 90 // 100
            counts = {"train": first, "validation": second - first, "test": number - second}
            self.listed |= {
                f"{seed}/{task_type}/{split}#{index}": (split, task_type)
                for split, size in counts.items()
                for index in range(size)
            }

    def problem(self, task_id: str) -> MathProblem:
        """Draws the problem, or returns one of the last that were."""
        split, task_type = self.listed[task_id]
        return generate_problem(task_id, task_type, split)


class ProblemFiles(ProblemSource):
    """Problems in files of JSON lines; :func:`envsuite.mathematics.files.read` says what a line has.

    An id is the file and the number of the line, ``math500#12``. The split of a file is said by the word with which its
    name begins, or that of a folder above it up to the named one: ``train`` or ``dapo`` (train), ``val``, ``valid`` or
    ``dev`` (validation), ``test``, ``aime`` or ``math500`` (test); it is test where none is. The type of a problem is
    its subject and level, or else the name of its file. A problem that is there several times counts once: as one of
    test before validation before train.

    Args:
        path: A file, or a folder, whose files ``*.jsonl`` and those in folders below it are read.

    Raises:
        DataError: There is no such file or folder, it has no problems, or one cannot be read.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise DataError(
                f"PythonMath-v0: there is no file or folder {path}. source= takes 'builtin', 'generated', 'official' "
                "(the folder mathematics in $ENVSUITE_DATA), or the path of a file of problems (*.jsonl) or of a "
                "folder of such files"
            )
        folder = path if path.is_dir() else path.parent
        paths = sorted(file for file in path.rglob("*.jsonl") if file.is_file()) if path.is_dir() else [path]
        by_split: dict[str, dict[str, tuple[str, str, MathProblem]]] = {"test": {}, "validation": {}, "train": {}}
        digest = hashlib.sha256()
        for file in paths:
            inner = file.relative_to(folder).with_suffix("")
            split = _split((*((folder.name,) if path.is_dir() else ()), *inner.parts))
            for number, problem, task_type in read(file):
                task_id = f"{inner.as_posix()}#{number}"
                by_split[split].setdefault(problem.text, (task_id, task_type or inner.name.lower(), problem))
        self.listed: dict[str, tuple[str, str]] = {}
        self._problems: dict[str, MathProblem] = {}
        texts: set[str] = set()
        for split, problems in by_split.items():
            for text, (task_id, task_type, problem) in problems.items():
                if text not in texts:
                    texts.add(text)
                    self.listed[task_id] = (split, task_type)
                    self._problems[task_id] = problem
                    digest.update(f"{task_id} {len(text)} {text} {problem.answer}\n".encode("utf-8", "replace"))
        if not self.listed:
            raise DataError(f"{path}: there are no problems (files *.jsonl of them); they are published at {PUBLISHED}")
        self.version = digest.hexdigest()[:12]

    def problem(self, task_id: str) -> MathProblem:
        """Returns the problem."""
        return self._problems[task_id]

    def place(self, task_id: str) -> dict[str, Any]:
        """Returns the file, below the folder, and the number of the line, from 1."""
        name, _, number = task_id.rpartition("#")
        return {"file": f"{name}.jsonl", "line": int(number)}


def _split(parts: Sequence[str]) -> str:
    """Returns the split of a file from the names of its folders and its own, the last that says one."""
    for part in reversed(parts):
        if (match := _SPLIT.match(part.lower())) is not None:
            return str(match.lastgroup)
    return "test"


@cache
def builtin_problems() -> BuiltinProblems:
    """Returns the built-in problems."""
    return BuiltinProblems()


@lru_cache(maxsize=8)
def generated_problems(seed: int, count: int, types: tuple[str, ...]) -> GeneratedProblems:
    """Returns problems from a seed; see :class:`GeneratedProblems`."""
    return GeneratedProblems(seed, count, types)


@lru_cache(maxsize=8)
def file_problems(path: Path) -> ProblemFiles:
    """Returns the problems of a file or folder, read once per process."""
    return ProblemFiles(path)


def official_folder() -> Path:
    """Returns the folder of ``source="official"``."""
    return data_root() / "mathematics"
