"""The base of environments of other packages: tasks are seeds, and no state can be saved."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import orjson

from envsuite.core import Action, DataError, Observation, Outcome, TaskSet, Tool, ToolCall, ToolEnv
from envsuite.core.env import StepInfo
from envsuite.core.errors import MissingExtra, unknown
from envsuite.core.functions import drawn
from envsuite.core.options import Options, option

_DRAWS = 100
"""Draws of a random call until it fits the schema of its tool."""


@dataclass(frozen=True, kw_only=True)
class SeedOptions(Options):
    """Options of an environment whose tasks are seeds."""

    train: int = option(1000, "tasks of the split train: seeds from 0", minimum=1, maximum=10**6)
    test: int = option(200, "tasks of the split test: the seeds that follow", minimum=1, maximum=10**6)


class Adapted(ToolEnv):
    """An environment of another package. A task ``seed-17`` is the episode of seed 17, the same everywhere."""

    package: ClassVar[str]
    """Name of the package, as pip knows it."""
    name: ClassVar[str]
    """The package's name of the environment."""
    in_file: ClassVar[bool] = False
    """Whether options that are not given stand in the file ``NAME.json`` of the present folder, if there is one.

    So a server plays it whose clients may not say which command it starts, or which server it asks.
    """
    takes: type[Options] = SeedOptions
    _cut = False
    """Whether the last step ended the episode though its task has not ended."""
    _rows: Mapping[str, Mapping[str, Any]] | None = None
    """Task id -> its ``split`` and ``type``; ``None`` where tasks are seeds."""
    _version: str | None = None
    """The version of the tasks; ``None`` for that of the package."""

    def __init__(self, **given: object) -> None:
        self.options: Any = self.takes.of({**(_stated(self.name) if self.in_file else {}), **given})
        self._session = ExitStack()  # what close() ends; it can be filled again
        self.tools = self._prepare()
        try:
            for tool in self.tools:
                tool.check()
        except DataError as error:
            self.close()
            raise DataError(f"{self.takes.env_id}: {error}") from error
        rows, lists = self._rows or self._seeds(), dict[str, list[str]]()
        for task, row in rows.items():
            lists.setdefault(str(row.get("split", "train")), []).append(task)
        splits = {split: tuple(ids) for split, ids in lists.items()}
        types = {task: str(row.get("type", self.name)) for task, row in rows.items()}
        version = self._version or f"{self.package}-{metadata.version(self.package)}"
        tasks = TaskSet(self.takes.env_id, self.name, version, splits, types).select(self.options.tasks)
        super().__init__(tasks, self.options.split, self.options.render_mode)

    def _seeds(self) -> dict[str, dict[str, str]]:
        train, test = self.options.train, self.options.test
        return {f"seed-{n}": {"split": "train" if n < train else "test"} for n in range(train + test)}

    @abstractmethod
    def _prepare(self) -> tuple[Tool, ...]:
        """Makes what the options ask for, once, before anything else; returns the tools."""

    def _open(self, seed: int) -> tuple[str, str]:
        """Starts the episode of a seed; returns instruction and first text."""
        raise NotImplementedError  # of an environment whose tasks are no seeds, which begins in another way

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        goal, text = self._open(int(task_id.removeprefix("seed-")))
        return goal, Outcome(text)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Takes a step as :meth:`ToolEnv.step`; an end that the package calls truncated is told as that."""
        self._cut = False
        seen, reward, ended, _, info = super().step(action)
        return seen, reward, ended and not self._cut, self._cut, info

    def _state_key(self) -> str:
        return "" if self._last is None else self._last["text"]

    def close(self) -> None:
        """Ends what the environment has opened."""
        self._session.close()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return proposed(self.tools, rng)


def proposed(tools: Sequence[Tool], rng: np.random.Generator) -> ToolCall:
    """Returns a random call that fits the schema of its tool, if one of a hundred does."""
    for _ in range(_DRAWS):
        tool = tools[int(rng.integers(len(tools)))]
        form, needed = tool.parameters.get("properties", {}), tool.parameters.get("required", ())
        call = ToolCall(tool.name, {name: drawn(one, rng) for name, one in form.items() if name in needed})
        if tool.problem(call.arguments) is None:
            break
    return call


def _stated(name: str) -> dict[str, Any]:
    """Returns the options in the file ``NAME.json`` of the present folder; none where there is no such file."""
    file = Path(f"{name}.json")
    try:
        return {**orjson.loads(file.read_bytes())} if file.is_file() else {}
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: not a JSON object of options ({error})") from error


def reason(error: BaseException) -> str:
    """Returns what happened, in one line: of a group of errors the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())


def words_missing(env_id: str, error: LookupError) -> Exception:
    """Returns what to raise for an error of NLTK: how to get the words that it does not have; for others, the error."""
    missing = re.search(r"nltk\.download\('([^']+)'\)", str(error))
    told = f"{env_id} reads words of NLTK: python -m nltk.downloader {missing[1] if missing else ''}"
    return DataError(told) if missing else error


def imported(module: str, package: str) -> ModuleType:
    """Returns a module of a package.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed ({error}): pip install {package}") from error


def classes(
    kind: type[Adapted], names: Callable[[], Any], others: Callable[[str], bool] = lambda name: False
) -> Callable[[str], type[Adapted]]:
    """Returns what makes the class of each name that a package knows.

    Args:
        kind: The class of all environments of the package.
        names: Returns the names that there are.
        others: Whether a further name is taken.
    """

    @cache
    def of(name: str) -> type[Adapted]:
        if name.startswith("__"):  # Python looks for attributes of the module, too
            raise AttributeError(name)
        if name not in (known := names()) and not others(name):
            raise unknown(f"environment of {kind.package}", name, map(str, known))
        env_id = f"{kind.__module__.rpartition('.')[2]}/{name}"
        return type(kind.__name__, (kind,), {"name": name, "takes": type("Takes", (kind.takes,), {"env_id": env_id})})

    return of


class OwnRandom:
    """Random numbers of a package that draws from Python's and NumPy's global generators, apart from all others.

    Args:
        seed: Where they begin, at least 0.
    """

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Lets the package draw, from where it was the last time; others then draw as if it had not."""
        python, numpy = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(python)
            np.random.set_state(numpy)
