"""The base of environments of other packages: tasks are seeds, and no state can be saved."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from envsuite.core import Outcome, TaskSet, Tool, ToolEnv
from envsuite.core.errors import MissingExtra, unknown
from envsuite.core.options import Options, option


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
    takes = SeedOptions

    def __init__(self, **given: object) -> None:
        self.options: Any = self.takes.of(given)
        self.tools = self._prepare()
        train, test = self.options.train, self.options.test
        splits = {
            "train": tuple(f"seed-{seed}" for seed in range(train)),
            "test": tuple(f"seed-{seed}" for seed in range(train, train + test)),
        }
        version = f"{self.package}-{metadata.version(self.package)}"
        types = {task: self.name for ids in splits.values() for task in ids}
        tasks = TaskSet(self.takes.env_id, self.name, version, splits, types).select(self.options.tasks)
        super().__init__(tasks, self.options.split, self.options.render_mode)

    @abstractmethod
    def _prepare(self) -> tuple[Tool, ...]:
        """Makes what the options ask for, once, before anything else; returns the tools."""

    @abstractmethod
    def _open(self, seed: int) -> tuple[str, str]:
        """Starts the episode of a seed; returns instruction and first text."""

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        goal, text = self._open(int(task_id.removeprefix("seed-")))
        return goal, Outcome(text)

    def _state_key(self) -> str:
        return "" if self._last is None else self._last["text"]


def imported(module: str, package: str) -> ModuleType:
    """Returns a module of a package.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed ({error}): pip install {package}") from error


def classes(kind: type[Adapted], names: Callable[[], Any]) -> Callable[[str], type[Adapted]]:
    """Returns what makes the class of each name that a package knows.

    Args:
        kind: The class of all environments of the package.
        names: Returns the names that there are.
    """

    @cache
    def of(name: str) -> type[Adapted]:
        if name.startswith("__"):  # Python looks for attributes of the module, too
            raise AttributeError(name)
        if name not in (known := names()):
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
