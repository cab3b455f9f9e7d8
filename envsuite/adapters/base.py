"""The base of environments of other packages: tasks are seeds, and no state can be saved."""

from __future__ import annotations

import gc
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, metadata
from multiprocessing import active_children
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from envsuite.core import Action, DataError, Observation, Outcome, TaskSet, Tool, ToolCall, ToolEnv
from envsuite.core.boundary import number
from envsuite.core.env import StepInfo
from envsuite.core.errors import EnvsuiteError, MissingExtra, UsageError, WorkerLost, unknown
from envsuite.core.functions import draw_value
from envsuite.core.options import EnvOptions, option
from envsuite.core.settings import read_json
from envsuite.interpreter.confined import PATIENCE, CodeFailed, ConfinedProcess, LoadedCode, ProcessLost, origin

_DRAWS = 100
"""Draws of a random call until it fits the schema of its tool."""
SECONDS = 2.0
"""Processor time that a package has for a step."""
_BEGIN_SECONDS = 600.0
"""Seconds that the beginning of an episode may take, to which no text of a model adds."""
_OWN = EnvOptions.schema().keys()
"""Options that choose tasks, of which a world knows nothing."""


@dataclass(frozen=True, kw_only=True)
class SeedOptions(EnvOptions):
    """Options of an environment whose tasks are seeds."""

    train: int = option(1000, "tasks of the split train: seeds from 0", minimum=1, maximum=10**6)
    test: int = option(200, "tasks of the split test: the seeds that follow", minimum=1, maximum=10**6)


class AdaptedEnv(ToolEnv):
    """An environment of another package. A task ``seed-17`` is the episode of seed 17, the same everywhere."""

    package: ClassVar[str]
    """Name of the package, as pip knows it."""
    name: ClassVar[str]
    """The package's name of the environment."""
    in_file: ClassVar[bool] = False
    """Whether options that are not given stand in the file ``NAME.json`` of the present folder, if there is one.

    So a server plays it whose clients may not say which command it starts, or which server it asks.
    """
    takes: type[EnvOptions] = SeedOptions
    _cut = False
    """Whether the last step ended the episode though its task has not ended."""
    _rows: Mapping[str, Mapping[str, Any]] | None = None
    """Task id -> its ``split`` and ``type``; ``None`` where tasks are seeds."""
    _version: str | None = None
    """The version of the tasks; ``None`` for that of the package."""

    def __init__(self, **given: object) -> None:
        self._given = {**(_read_options(self.name) if self.in_file else {}), **given}
        self.options: Any = self.takes.of(self._given)
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
        observation, reward, over, _, info = super().step(action)
        return observation, reward, over and not self._cut, self._cut, info

    def _state_key(self) -> str:
        return "" if self._last is None else self._last["text"]

    def close(self) -> None:
        """Ends what the environment has opened."""
        self._session.close()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return propose_call(self.tools, rng)


def propose_call(tools: Sequence[Tool], rng: np.random.Generator) -> ToolCall:
    """Returns a random call that fits the schema of its tool, if one of a hundred does."""
    for _ in range(_DRAWS):
        tool = tools[int(rng.integers(len(tools)))]
        form, names = tool.parameters.get("properties", {}), tool.parameters.get("required", ())
        call = ToolCall(tool.name, {name: draw_value(schema, rng) for name, schema in form.items() if name in names})
        if tool.problem(call.arguments) is None:
            break
    return call


def _read_options(name: str) -> dict[str, Any]:
    """Returns the options in the file ``NAME.json`` of the present folder; none where there is no such file."""
    file = Path(f"{name}.json")
    try:
        return {**read_json(file.read_bytes(), str(file))} if file.is_file() else {}
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: not a JSON object of options ({error})") from error


def words_missing(env_id: str, error: Exception) -> Exception:
    """Returns what to raise for an error of NLTK: how to get the words that it does not have; for others, the error."""
    cause: BaseException | None = error
    while cause is not None:  # a game that then fetches them may not, and fails in another way
        if match := re.search(r"nltk\.download\('([^']+)'\)", str(cause)):
            return DataError(f"{env_id} reads words of NLTK: python -m nltk.downloader {match[1]}")
        cause = cause.__context__
    return error


def import_extra(module: str, package: str) -> ModuleType:
    """Returns a module of a package.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed ({error}): pip install {package}") from error


def classes(
    kind: type[AdaptedEnv], names: Callable[[], Any], others: Callable[[str], bool] = lambda name: False
) -> Callable[[str], type[AdaptedEnv]]:
    """Returns what makes the class of each name that a package knows.

    Args:
        kind: The class of all environments of the package.
        names: Returns the names that there are.
        others: Whether a further name is taken.
    """

    @cache
    def of(name: str) -> type[AdaptedEnv]:
        if name.startswith("__"):  # Python looks for attributes of the module, too
            raise AttributeError(name)
        if name not in (env_names := names()) and not others(name):
            raise unknown(f"environment of {kind.package}", name, map(str, env_names))
        env_id = f"{kind.__module__.rpartition('.')[2]}/{name}"
        takes = type("Takes", (kind.takes,), {"env_id": env_id})
        own = {"name": name, "takes": takes, "__module__": kind.__module__, "__qualname__": name}
        return type(kind.__name__, (kind,), own)

    return of


class AdaptedWorld(ABC):
    """A package's side of an environment: it plays in a confined process of its own for each episode.

    Args:
        name: The package's name of the environment.
        options: Options of the environment.
    """

    readable: tuple[str, ...] = ()
    """Folders of data that the package reads while it plays."""

    def __init__(self, name: str, options: Any) -> None:
        self.name, self.options = name, options
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Loads the package, once for all episodes.

        Raises:
            EnvsuiteError: It cannot be loaded, or cannot play in a confined process.
        """

    def about(self) -> dict[str, Any]:
        """Returns what the environment is told of the world, as plain JSON."""
        return {}

    @abstractmethod
    def begin(self, task_id: str) -> tuple[str, str]:
        """Starts an episode, with Python's and NumPy's global random numbers seeded; returns instruction and text."""

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        """Takes a step; returns what it led to, and whether it ends the episode though its task has not ended."""

    def answer(self, request: dict[str, Any]) -> object:
        """Answers a request of :class:`ConfinedEnv`."""
        if (task_id := request.get("task")) is None:
            outcome, cut = self.call(request["tool"], request["arguments"])
            return {**asdict(outcome), "cut": cut}
        seed = int(task_id.rpartition("-")[2])
        random.seed(seed)
        np.random.seed(seed % 2**32)
        return self.begin(task_id)


def load(settings: Mapping[str, Any]) -> LoadedCode:
    """Loads a world in the process from which those of its episodes are forked."""
    kind: type[ConfinedEnv] = getattr(import_module(settings["module"]), settings["name"])
    world = kind.world(kind.name, kind.takes.of(settings["options"]))
    if active_children():
        raise UsageError(f"{kind.takes.env_id} starts processes of its own, which cannot be confined")
    gc.freeze()
    return LoadedCode(world.about(), world.answer, world.readable)


@dataclass(frozen=True, kw_only=True)
class ConfinedOptions(SeedOptions):
    """Options of an environment whose package reads models' text."""

    confined: bool = option(True, "false lets its code do whatever this user may, e.g. ask a judge", offered=False)


class ConfinedEnv(AdaptedEnv):
    """An environment whose package reads models' text: it plays in a confined process, one for each episode.

    An action over which the package fails, or takes too much time or memory, is invalid: nothing changes.
    """

    world: ClassVar[type[AdaptedWorld]]
    takes = ConfinedOptions
    seconds, patience = SECONDS, PATIENCE
    """Processor time that a step may take, and wall-clock time."""
    _process: ConfinedProcess | None = None

    def _prepare(self) -> tuple[Tool, ...]:
        process = self._fork()
        process.close()
        return self._tools(process.about)

    def _tools(self, about: Any) -> tuple[Tool, ...]:
        """Returns the tools, given what the world tells of itself."""
        return self.tools

    def _fork(self) -> ConfinedProcess:
        options = {name: value for name, value in self._given.items() if name not in _OWN}
        place = {"module": self.__module__, "name": self.name, "options": options}
        return origin("envsuite.adapters.base:load").open(place, self.options.confined)

    def _replay(self, task_id: str, calls: Sequence[dict[str, Any]] = ()) -> tuple[ConfinedProcess, str, str]:
        """Begins an episode in a process of its own, and repeats calls; returns it, instruction and first text."""
        process = self._fork()
        try:
            goal, text = process.ask({"task": task_id}, _BEGIN_SECONDS, _BEGIN_SECONDS)
            for call in calls:
                process.ask(call, self.seconds, self.patience)
        except (CodeFailed, ProcessLost, EnvsuiteError) as error:
            process.close()
            if isinstance(error, EnvsuiteError):
                raise
            raise WorkerLost(f"{self.takes.env_id} cannot play {task_id}: {error}") from error
        return process, str(goal), str(text)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        process, goal, text = self._replay(task_id)
        self._end()
        self._process = process
        self._played, self._calls = task_id, list[dict[str, Any]]()
        return goal, Outcome(text)

    def _goal(self, task_id: str) -> str:
        """Returns the instruction of a task, whose episode is begun and ended."""
        text = super()._goal(task_id)
        self._end()
        return text

    def _call(self, call: ToolCall) -> Outcome:
        request = {"tool": call.name, "arguments": dict(call.arguments)}
        for attempt in (1, 2):
            process, self._process = self._process or self._replay(self._played, self._calls)[0], None
            try:
                answer = process.ask(request, self.seconds, self.patience)
                outcome, self._cut = _outcome_of(answer), answer["cut"] is True
            except (CodeFailed, EnvsuiteError, KeyError, TypeError, ValueError) as error:
                process.close()  # the world may have changed before it failed
                has_reason = isinstance(error, CodeFailed | EnvsuiteError)
                return self._failure(str(error) if has_reason else "it gave no result")
            except ProcessLost as error:
                if error.late or not error.by_others or attempt == 2:
                    return self._failure(f"it {error}")
            else:
                break
        self._calls.append(request)
        if outcome.done:
            process.close()
        else:
            self._process = process
        return outcome

    def _failure(self, problem: str) -> Outcome:
        """Returns what an action leads to over which the package failed."""
        return Outcome(f"Invalid action: {problem}.", error=problem)

    def _save(self) -> Any:
        return [*self._calls]

    def _resume(self, task_id: str, world: Any) -> None:
        self._end()
        self._played, self._calls = task_id, [*world]  # they are repeated when the next step is taken

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def close(self) -> None:
        """Ends the process of the episode."""
        self._end()
        super().close()


def _outcome_of(answer: dict[str, Any]) -> Outcome:
    """Returns the outcome that a confined process has told."""
    reward, score = number(answer["reward"], "the reward"), number(answer["score"], "the score")
    metrics = {str(name): number(value, "a metric") for name, value in dict(answer["metrics"]).items()}
    over, success = answer["done"] is True, answer["success"] is True
    return Outcome(str(answer["text"]), reward, over, success=success, score=min(max(score, 0.0), 1.0), metrics=metrics)
