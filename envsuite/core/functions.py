"""An environment made of functions: a list of tasks, tools whose types and docstrings make their schemas, a reward.

    # lock.py
    from envsuite import Environment

    env = Environment({"train": range(80), "test": range(80, 100)}, goal="Open the lock.", steps=20)

    @env.start
    def start(number):
        return {"number": number, "open": False}, "The dial is at rest."

    @env.tool
    def turn(world, number: int):
        \"\"\"Turn the dial to a number from 0 to 99.\"\"\"
        world["open"] = number == world["number"]
        return "It opens." if world["open"] else "Higher." if number < world["number"] else "Lower."

    @env.reward
    def reward(world):
        return 1.0 if world["open"] else None

The file's name is then the environment's id: ``envsuite play lock.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import gymnasium
import numpy as np
from gymnasium.envs.registration import ENV_ID_RE

from envsuite.core.boundary import CodeError, boundary, number
from envsuite.core.env import Outcome, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.options import EnvOptions
from envsuite.core.players import unwrap_episode
from envsuite.core.registration import EnvSpec, register, tell
from envsuite.core.schemas import object_schema
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import Action, Tool, ToolCall

StartT = TypeVar("StartT", bound=Callable[[Any], tuple[Any, str]])
ToolT = TypeVar("ToolT", bound=Callable[..., str | Outcome])
RewardT = TypeVar("RewardT", bound=Callable[[Any], float | None])
KeyT = TypeVar("KeyT", bound=Callable[[Any], str])
ExpertT = TypeVar("ExpertT", bound=Callable[[Any], tuple[str, dict[str, Any]] | None])
_CLASS, _EXPERT = "ENVSUITE_CLASS", "ENVSUITE_EXPERT"
"""Attributes of a file's module: the class of its environment, and what makes its expert."""
_ARGUMENT = re.compile(r"^\s+(\w+)(?: \([^)]*\))?:\s*(.+(?:\n\s{8,}\S.*)*)", re.MULTILINE)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Environment:
    """The parts of an environment of functions; each method that takes a function is a decorator.

    Args:
        tasks: Split -> its tasks, or the tasks of the one split ``train``. A task is whatever :meth:`start` needs:
            a number, a text, a mapping. Its id is ``task["id"]``, else the split and its place, e.g. ``train-0``; its
            type is ``task["type"]``, else ``task``.
        goal: The instruction, or a function of the task that returns it.
        steps: Actions after which an episode is truncated.

    Raises:
        UsageError: There are no tasks.
    """

    def __init__(
        self, tasks: Mapping[str, Iterable[Any]] | Iterable[Any], *, goal: str | Callable[[Any], str], steps: int = 30
    ) -> None:
        splits = tasks if isinstance(tasks, Mapping) else {"train": tasks}
        self._tasks: dict[str, tuple[str, str, Any]] = {}
        for split, members in splits.items():
            for place, task in enumerate(members):
                record = task if isinstance(task, Mapping) else {}
                task_id = str(record.get("id", f"{split}-{place}"))
                if task_id in self._tasks:
                    raise UsageError(f"two tasks have the id {task_id!r}; give each its own")
                self._tasks[task_id] = (split, str(record.get("type", "task")), task)
        if not self._tasks:
            raise UsageError("an environment needs tasks: Environment({'train': […], 'test': […]}, goal=…)")
        self._splits, self._goal, self.steps = tuple(splits), goal, steps
        self._start: Callable[[Any], tuple[Any, str]] = lambda task: ({"task": task}, "")
        self._reward: Callable[[Any], float | None] = lambda world: None
        self._key: Callable[[Any], str] | None = None
        self.expert_function: Callable[[Any], tuple[str, dict[str, Any]] | None] | None = None
        self.tools: dict[str, tuple[Tool, Callable[..., str | Outcome]]] = {}

    def start(self, function: StartT) -> StartT:
        """Takes the function of a task that returns its world and the first text.

        The world is what the tools read and change, e.g. a dictionary; it has to be possible to copy it.
        """
        self._start = function
        return function

    def tool(self, function: ToolT) -> ToolT:
        """Takes a function of the world and the tool's arguments, whose docstring is the tool's description.

        It changes the world and returns the text that the agent reads, or an :class:`~envsuite.core.Outcome` with a
        reward of its own. A ``ValueError`` refuses the call: the agent reads its message, and nothing has changed.

        Raises:
            UsageError: It has no docstring, or an argument without a type or of one that JSON does not have.
        """
        name, docstring = function.__name__, inspect.getdoc(function)
        if not docstring:
            raise UsageError(f"the tool {name} needs a docstring, which tells agents what it does")
        about, _, arguments = docstring.partition("\nArgs:\n")
        meanings = {match[1]: " ".join(match[2].split()) for match in _ARGUMENT.finditer(arguments)}
        hints = get_type_hints(function, include_extras=True)
        properties, optional = dict[str, Any](), []
        for parameter in [*inspect.signature(function).parameters.values()][1:]:
            form = schema_of(hints.get(parameter.name))
            if not form:
                raise UsageError(
                    f"argument {parameter.name} of the tool {name} needs a type that JSON has: int, float, str, bool, "
                    "list[…], Literal[…], or one of these and None"
                )
            meaning = {"description": meanings[parameter.name]} if parameter.name in meanings else {}
            properties[parameter.name] = {**form, **meaning}
            if parameter.default is not parameter.empty:
                optional.append(parameter.name)
        schema = object_schema(properties, optional)
        self.tools[name] = (Tool(name, " ".join(about.split()), schema), function)
        return function

    def reward(self, function: RewardT) -> RewardT:
        """Takes the function of the world that is asked after each call: ``None`` goes on, a reward ends the episode.

        The task is solved if the reward is at least 1; the score is the reward, from 0 to 1.
        """
        self._reward = function
        return function

    def state_key(self, function: KeyT) -> KeyT:
        """Takes the function of the world that returns what of it an agent can tell apart; else it is the last text."""
        self._key = function
        return function

    def expert(self, function: ExpertT) -> ExpertT:
        """Takes the function of the world that returns the best call, a tool's name and its arguments, or ``None``.

        For example ``("turn", {"number": 50})``. Evaluations, hints, demonstrations and ``envsuite imitate`` take it.
        """
        self.expert_function = function
        return function

    def expert_call(self, world: Any) -> ToolCall | None:
        """Returns the expert's call in ``world``, which it cannot change; ``None`` where it has none.

        Raises:
            CodeError: It returns something else than a tool's name and its arguments.
        """
        assert self.expert_function is not None
        call: object = self.expert_function(deepcopy(world))
        match call:
            case None:
                return None
            case (str(name), dict(arguments)):
                return ToolCall(name, arguments)
        raise CodeError(f"expert has to return a call, such as ('turn', {{'number': 50}}); it returned {call!r}")

    def goal_of(self, task_id: str) -> str:
        """Returns the instruction of a task."""
        return self._goal if isinstance(self._goal, str) else self._goal(deepcopy(self._tasks[task_id][2]))

    def begin(self, task_id: str) -> tuple[Any, str]:
        """Returns world and first text of a task.

        Raises:
            CodeError: The function that starts it returns something else.
        """
        opening: object = self._start(deepcopy(self._tasks[task_id][2]))
        if not (isinstance(opening, tuple) and len(opening) == 2 and isinstance(opening[1], str)):
            raise CodeError(f"start has to return the world and the first text, a pair; it returned {opening!r}")
        return opening

    def call(self, world: Any, call: ToolCall) -> str | Outcome:
        """Executes a call, which changes the world; returns what the tool returns.

        Raises:
            ValueError: The tool refuses it.
            CodeError: The tool returns nothing.
        """
        answer = self.tools[call.name][1](world, **call.arguments)
        if answer is None:
            raise CodeError(f"the tool {call.name} returned None; return the text that the agent reads")
        return answer

    def outcome_of(self, world: Any, answer: str | Outcome) -> Outcome:
        """Returns the outcome of a call that changed the world, of which the tool returned ``answer``.

        Raises:
            CodeError: The reward is no number.
        """
        if isinstance(answer, Outcome):
            return answer
        raw_reward = self._reward(world)
        if isinstance(raw_reward, bool):
            raise CodeError(f"reward returned {raw_reward}; return None while the episode goes on, a number to end it")
        if raw_reward is None:
            return Outcome(str(answer))
        reward = number(raw_reward, f"what {self._reward.__name__} returned")
        return Outcome(str(answer), reward, done=True, success=reward >= 1, score=min(max(reward, 0.0), 1.0))

    def key_of(self, world: Any, text: str) -> str:
        """Returns the state key of a world whose last text is ``text``."""
        return text if self._key is None else str(self._key(world))

    def make_class(self, env_id: str, source: str, version: str) -> type[ToolEnv]:
        """Returns the class of the environment, under an id.

        Raises:
            UsageError: There is no tool.
        """
        if not self.tools:
            raise UsageError(f"{env_id} has no tools; put @env.tool above the functions that agents may call")
        splits = {
            split: tuple(task_id for task_id, (where, _, _) in self._tasks.items() if where == split)
            for split in self._splits
        }
        types = {task_id: kind for task_id, (_, kind, _) in self._tasks.items()}
        parts = {
            "functions": self,
            "tools": tuple(tool for tool, _ in self.tools.values()),
            "task_set": TaskSet(env_id, source, version, splits, types),
            "takes": type("FileOptions", (EnvOptions,), {"env_id": env_id}),
        }
        return type("FunctionEnv", (FunctionEnv,), parts)


class FunctionEnv(ToolEnv):
    """An environment of functions; see :class:`Environment`."""

    functions: ClassVar[Environment]
    task_set: ClassVar[TaskSet]

    def __init__(self, **given: object) -> None:
        options = self.takes.of(given)
        super().__init__(self.task_set.select(options.tasks), options.split, options.render_mode)
        self._world: Any = None

    def _goal(self, task_id: str) -> str:
        with boundary(self._where(task_id)):
            return self.functions.goal_of(task_id)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        goal = self.functions.goal_of(task_id)
        self._world, text = self.functions.begin(task_id)
        return goal, Outcome(text)

    def _call(self, call: ToolCall) -> Outcome:
        world = deepcopy(self._world)
        try:
            result = self.functions.call(world, call)
        except ValueError as problem:
            return Outcome(str(problem), error=str(problem))
        self._world = world
        return self.functions.outcome_of(world, result)

    def _state_key(self) -> str:
        return self.functions.key_of(self._world, "" if self._last is None else self._last["text"])

    def expert_action(self) -> Action:
        """Returns the expert's next action.

        Raises:
            UsageError: It has none here.
        """
        with boundary(self._where(self._task_id)):
            call = self.functions.expert_call(self._world)
        if call is None:
            raise UsageError(f"the expert of {self.tasks.env_id} knows no next call here")
        return (call,)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        tool = self.tools[int(rng.integers(len(self.tools)))]
        properties = tool.parameters["properties"]
        return ToolCall(tool.name, {name: draw_value(form, rng) for name, form in properties.items()})

    def _save(self) -> Any:
        return deepcopy(self._world)

    def _resume(self, task_id: str, world: Any) -> None:
        self._world = deepcopy(world)


@dataclass(frozen=True)
class FunctionExpert:
    """Plays by the function that a file gives as its expert."""

    env_id: str

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the current episode of ``env``.

        Raises:
            UsageError: ``env`` is another environment or on a server, or the function knows no next call.
        """
        return unwrap_episode(env, self.env_id, FunctionEnv).expert_action()


_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}


def schema_of(hint: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a type; nothing for one of which JSON has no values.

    ``Annotated`` adds to it: a mapping further keywords, a text the description.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        more = [part if isinstance(part, Mapping) else {"description": str(part)} for part in parts[1:]]
        form = schema_of(parts[0])
        return {key: value for part in (form, *more) for key, value in part.items()} if form else {}
    if kind is Literal:
        kinds = {_PLAIN.get(type(part), "") for part in parts}
        form = {"type": kinds.pop()} if len(kinds) == 1 else {}
        return {**form, "enum": [*parts]} if all(type(part) in _PLAIN for part in parts) else {}
    if kind in (Union, UnionType):
        forms = [schema_of(part) for part in parts]
        return {"anyOf": forms} if all(forms) else {}
    if kind is list:
        return {"type": "array", "items": items} if (items := schema_of(parts[0])) else {}
    return {"type": _PLAIN[hint]} if isinstance(hint, type) and hint in _PLAIN else {}


def draw_value(form: Mapping[str, Any], rng: np.random.Generator) -> Any:
    """Returns a random value of a schema that :func:`schema_of` makes; of another, one that may not fit it."""
    if "enum" in form:
        return form["enum"][int(rng.integers(len(form["enum"])))]
    if "anyOf" in form:
        return draw_value(form["anyOf"][int(rng.integers(len(form["anyOf"])))], rng)
    low = form.get("minimum", min(-100, form.get("maximum", 0)))
    high = form.get("maximum", low + 200)
    match form.get("type"):
        case "integer":
            return int(rng.integers(low, high + 1))
        case "number":
            return float(rng.uniform(low, high))
        case "boolean":
            return bool(rng.integers(2))
        case "object":
            return {name: draw_value(part, rng) for name, part in form.get("properties", {}).items()}
        case "array" if "prefixItems" in form:
            return [draw_value(part, rng) for part in form["prefixItems"]]
        case "array":
            return [draw_value(form.get("items", {}), rng) for _ in range(int(rng.integers(4)))]
        case "string":
            return "".join(_LETTERS[int(place)] for place in rng.integers(len(_LETTERS), size=int(rng.integers(1, 9))))
    return None


def load(path: str) -> EnvSpec:
    """Registers the environment of a Python file, under the file's path as it is given.

    Processes that this one starts register it, too.

    Args:
        path: A file of the present folder, or of a folder in it, with one :class:`Environment`.

    Raises:
        UsageError: There is no such file, it raises an error, or it has not one environment.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{path}: there is no such file in {Path.cwd()}")
    if not ENV_ID_RE.fullmatch(path):
        raise UsageError(f"{path} cannot be the id of an environment; go to its folder, and type {file.name}")
    return load_from(path, file.resolve())


def load_from(env_id: str, file: Path) -> EnvSpec:
    """Registers the environment of a Python file under an id; as :func:`load`."""
    source = file.read_bytes()
    module = import_file(file)
    envs = [value for value in vars(module).values() if isinstance(value, Environment)]
    if len(envs) != 1:
        raise UsageError(f"{file.name} has {len(envs)} environments; it needs one: env = envsuite.Environment(…)")
    kind = envs[0].make_class(env_id, file.name, hashlib.sha256(source).hexdigest()[:12])
    kind.__module__, kind.__qualname__ = module.__name__, _CLASS
    setattr(module, _CLASS, kind)
    setattr(module, _EXPERT, partial(FunctionExpert, env_id))
    players = {"expert": f"{module.__name__}:{_EXPERT}"} if envs[0].expert_function else {}
    spec = EnvSpec(env_id, f"{module.__name__}:{_CLASS}", envs[0].steps, players=players)
    register(spec)
    tell(f"{env_id}={file}")
    return spec


def import_file(file: Path) -> ModuleType:
    """Returns the module of a Python file, which is run now.

    Raises:
        UsageError: It is not a Python file, or raises an error; the message names the line.
    """
    name = f"envsuite_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with boundary(""):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f", line {lines[-1]}" if lines else ""
        raise UsageError(f"{file.name}{where}: {type(error).__name__}: {error}") from error
    return module


def function_in(place: str) -> Callable[..., Any]:
    """Returns the function that ``file.py:function`` names; the file is run now.

    Raises:
        UsageError: There is no such file or function, or the file raises an error.
    """
    path, _, name = place.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file():
        raise UsageError(f"{place!r} is not file.py:function of a file that is there")
    function = vars(import_file(Path(path).resolve())).get(name)
    if not callable(function):
        raise UsageError(f"{path} has no function {name}")
    return function  # type: ignore[no-any-return]
