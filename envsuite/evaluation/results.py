"""Results of evaluations: one line of JSON for each episode, written when it ends.

Nothing is averaged before it is stored. A line has everything that its episode follows from, so that files can be
joined, split and read without anything else. Where an episode has several lines, since it was played again, the last
one counts, and one that finished before one that broke.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from envsuite.core.errors import DataError, UsageError
from envsuite.data.files import file_errors
from envsuite.data.locks import try_locked

Ending = Literal["done", "budget", "context", "tokens", "broken"]
"""How an episode ended: by itself; at the step budget; where the next prompt had no room in the context, or the tokens
of the episode were used up; or because the infrastructure broke."""


@dataclass(frozen=True)
class Conditions:
    """Everything that the episodes of an evaluation follow from, besides task and seed; mappings are plain JSON."""

    policy: str
    """Name in tables, e.g. ``"expert"`` or ``"SmolLM2-135M, react"``."""
    kind: str
    """``"player"`` (expert, lexical, random), ``"endpoint"``, ``"model"`` (weights) or ``"checkpoint"`` (of a run)."""
    env_id: str
    source: str
    """Source of the tasks, e.g. ``"builtin"``."""
    split: str
    panel: str
    """Hash of the split's :class:`~envsuite.evaluation.panels.panel.Panel`."""
    panel_size: int
    """Number of its tasks."""
    sample: int | None
    """Number of its tasks that are played; ``None``: all of them."""
    budget: int
    """Most steps of an episode."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make`` besides source and split."""
    model: str | None = None
    """Model behind the policy: hub name, folder, or the endpoint's name for it."""
    policy_version: int | None = None
    """Number of optimiser steps that the weights had seen, where they are ours."""
    prompt: Mapping[str, Any] = field(default_factory=dict)
    """Prompting: baseline (direct, react, reflexion, …), codec, memory, template and its hash."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How tokens are drawn: temperature, top_p, max_tokens, …"""
    trials: int = 1
    """Most trials of a task, of a policy that tries again (Reflexion)."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of envsuite, the environment's components and the engine."""

    @cached_property
    def canonical(self) -> bytes:
        """Returns the conditions as JSON with sorted keys: equal for equal conditions alone."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True)
class EpisodeResult:
    """One episode."""

    conditions: Conditions
    task_id: str
    stratum: str
    seed: int
    """Number of the repetition, from 0."""
    success: bool
    score: float
    """The task's graded result, 0 to 1."""
    reward: float
    """Sum of the environment's rewards."""
    steps: int
    ending: Ending
    parsed: int = 0
    """Number of steps whose completion parsed to an action."""
    valid: int = 0
    """Number of steps whose action was well-formed and executable."""
    cut: int = 0
    """Number of steps whose completion reached the token limit."""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float | None = None
    """In the currency of the prices that were given; ``None`` without prices."""
    seconds: float = 0.0
    """Duration by the clock."""
    trials: int = 1
    """Trials that were made."""
    seeds: int | None = None
    """Episodes of each task that were asked for when this one was played; ``None`` in files of older versions. It is no
    condition: no episode follows from it, and more may be asked for later."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further measures of the environment at the end of the episode."""
    broken: str | None = None
    """Why the infrastructure broke (no answer from an endpoint, crashed worker, missed deadline). Such an episode says
    nothing of the policy: it is in no rate, counted apart, and played again by ``envsuite eval run retry``."""

    def __post_init__(self) -> None:
        if (self.broken is not None) != (self.ending == "broken"):
            raise UsageError(f"ending is {self.ending!r}, and broken {self.broken!r}; give both or neither")
        if self.broken is not None and self.success:
            raise UsageError("a broken episode has no success")
        numbers = {"score": self.score, "reward": self.reward, "cost": self.cost or 0.0, **self.metrics}
        for name, value in numbers.items():
            if not isinstance(value, int | float) or not math.isfinite(value):  # JSON has no such number
                raise UsageError(f"{name} of task {self.task_id!r} is {value}; it must be a finite number")

    @property
    def key(self) -> tuple[str, int]:
        """Returns what tells the episode from others of its conditions: task and seed."""
        return self.task_id, self.seed

    def to_line(self) -> bytes:
        """Returns the line of the episode, with its end."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_line(cls, line: bytes) -> EpisodeResult:
        """Returns the result that :meth:`to_line` wrote; fields of newer versions are left out.

        Raises:
            DataError: It is not one.
        """
        try:
            body = orjson.loads(line)
            conditions = Conditions(**_known_fields(Conditions, body["conditions"]))
            result = cls(**{**_known_fields(cls, body), "conditions": conditions})
            _check(result)
        except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise DataError(f"not the result of an episode ({type(error).__name__}: {error})") from error
        return result


def _known_fields(kind: type[EpisodeResult | Conditions], body: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: body[f.name] for f in fields(kind) if f.name in body}


def _check(result: EpisodeResult) -> None:
    """Refuses values of the wrong kind, which would fail far from here."""
    if result.ending not in get_args(Ending):
        raise ValueError(f"ending is {result.ending!r}, not one of {', '.join(get_args(Ending))}")
    kinds: tuple[tuple[str, type | tuple[type, ...]], ...] = (
        ("task_id", str), ("stratum", str), ("seed", int), ("success", bool), ("score", (int, float)),
        ("reward", (int, float)), ("steps", int), ("parsed", int), ("valid", int), ("cut", int),
        ("prompt_tokens", int), ("answer_tokens", int), ("seconds", (int, float)), ("trials", int), ("metrics", dict),
    )  # fmt: skip
    for name, kind in kinds:
        value = getattr(result, name)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r}")
    if not isinstance(result.seeds, int | None) or isinstance(result.seeds, bool):
        raise ValueError(f"seeds is {result.seeds!r}")
    texts: dict[str, type] = dict.fromkeys(("policy", "kind", "env_id", "source", "split", "panel"), str)
    for name, kind in {**texts, "panel_size": int, "budget": int}.items():
        if not isinstance(value := getattr(result.conditions, name), kind):
            raise ValueError(f"conditions.{name} is {value!r}")


def read_results(*paths: Path) -> list[EpisodeResult]:
    """Returns one result of each episode in files, or in all files ``*.jsonl`` of folders, in their order.

    Where an episode has several, one that finished counts before one that broke, and else the last. The end of a file
    that was cut in the middle of a line, as by a process that was killed, is left out.

    Raises:
        DataError: There is no file, a line in it is no result (the message has its number), or two files have
            different outcomes of one episode under the same conditions.
    """
    results: dict[tuple[bytes, str, int], tuple[EpisodeResult, Path]] = {}
    for file in _files(paths):
        for result in _lines(file):
            key = (result.conditions.canonical, *result.key)
            earlier, where = results.get(key, (None, file))
            if earlier is not None and earlier.broken is None:
                if result.broken is not None:
                    continue
                if where != file and _outcome(earlier) != _outcome(result):
                    raise DataError(
                        f"{where} and {file} have different outcomes of task {result.task_id!r}, seed {result.seed}, "
                        f"of {result.conditions.policy!r} under the same conditions: name one of the files, or "
                        "evaluate the two policies under names of their own (--name, --policy)"
                    )
            results[key] = result, file
    return [result for result, _ in results.values()]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path}: has no results (*.jsonl)")
        yield from files


def _outcome(result: EpisodeResult) -> tuple[Any, ...]:
    return result.success, result.score, result.reward, result.steps, result.ending


def _lines(file: Path) -> Iterator[EpisodeResult]:
    with file_errors(file):
        content = file.read_bytes()
    whole, _, _ = content.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
        try:
            yield EpisodeResult.from_line(line)
        except DataError as error:
            raise DataError(f"{file}, line {number}: {error}") from error


class ResultFile:
    """A file to which the results of one evaluation are appended; one that exists is continued.

    The end of a line that was cut, as by a process that was killed, is removed first: its episode is played again.

    Args:
        path: The file; its folder is made if need be.
        conditions: Those of every result in it.
        other_paths: Files of other processes of the evaluation, whose results under these conditions count, too.

    Raises:
        DataError: A file cannot be read or written, or another process writes it.
        UsageError: It has results of other conditions; the message names what differs.
    """

    def __init__(self, path: Path, conditions: Conditions, other_paths: Iterable[Path] = ()) -> None:
        self.path = path
        self.conditions = conditions
        self.results: dict[tuple[str, int], EpisodeResult] = {}
        """The last result of each episode."""
        self._canonical = conditions.canonical
        with ExitStack() as stack:
            try:
                lock = try_locked(path.with_name(f".{path.name}.lock"))
                if lock is None:
                    raise DataError(f"{path}: another process writes it; wait for it, or name another folder")
                stack.callback(lock.close)
                # Without a buffer, of which a full disk would leave a part for later.
                self._file = stack.enter_context(path.open("ab", buffering=0))
                for result in _lines(path):
                    if result.conditions.canonical != self._canonical:
                        raise UsageError(f"{path}: {_differing(result.conditions, conditions)}; name another folder")
                    self.results[result.key] = result
                for result in (result for other_path in other_paths for result in _lines(other_path)):
                    earlier = self.results.get(result.key)
                    counts = earlier is None or earlier.broken is not None or result.broken is None
                    if counts and result.conditions.canonical == self._canonical:
                        self.results[result.key] = result
                self._size = path.read_bytes().rfind(b"\n") + 1
                self._file.truncate(self._size)
            except OSError as error:
                raise DataError(f"{path}: cannot be written ({error})") from error
            self._opened = stack.pop_all()

    def add(self, result: EpisodeResult) -> None:
        """Appends a result; it is on disk when this returns.

        Raises:
            DataError: The file cannot be written, e.g. because the disk is full.
        """
        if result.conditions.canonical != self._canonical:
            raise UsageError(f"{self.path}: {_differing(self.conditions, result.conditions)}")
        line = result.to_line()
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk took a part of a line")
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise DataError(f"{self.path}: cannot be written ({error}); what was played before is there") from error
        self._size += len(line)
        self.results[result.key] = result

    def missing(self, tasks: Iterable[str], seeds: Iterable[int]) -> list[tuple[str, int]]:
        """Returns the episodes that have no result, or a broken one, seed by seed."""
        task_ids = list(tasks)
        keys = [(task, seed) for seed in seeds for task in task_ids]
        return [key for key in keys if key not in self.results or self.results[key].broken is not None]

    def close(self) -> None:
        """Closes the file, for another process to write."""
        self._opened.close()


def _differing(old: Conditions, new: Conditions) -> str:
    """Says in which fields conditions differ."""
    pairs = [(f.name, getattr(old, f.name), getattr(new, f.name)) for f in fields(Conditions)]
    return "has results with " + ", ".join(f"{n} {a!r} where now it is {b!r}" for n, a, b in pairs if a != b)
