"""What the classics share: a puzzle for each task, a state of plain data, and a tool that takes one command."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
import numpy as np

from envsuite.core.draws import Draw
from envsuite.core.env import Observation, Outcome, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.options import SEED, EnvOptions, option
from envsuite.core.players import unwrap_episode
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import Action, ToolCall

Puzzle = TypeVar("Puzzle")
State = TypeVar("State")
COUNTS = {"train": 400, "validation": 100, "test": 200}
"""Tasks of each split."""
MOST_DRAWS = 100_000
"""Puzzles that are drawn for one task set."""


@dataclass(frozen=True, kw_only=True)
class ClassicOptions(EnvOptions):
    """The options of every classic; a game adds its dials."""

    source: str = option(
        "builtin", '"builtin": the same tasks for every game_seed; "generated": each game_seed has others, whose ids '
        "name it", enum=("builtin", "generated"),
    )  # fmt: skip
    game_seed: int = option(0, "draws the tasks of the source generated", **SEED)


def number_of(*parts: object) -> int:
    """Returns a random number below 2**64 that follows from the parts."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def split_of(puzzle: object) -> str:
    """Returns the split of a puzzle. It follows from the puzzle alone, so no seed moves it to another split."""
    splits = [split for split, count in COUNTS.items() for _ in range(count)]
    return splits[number_of(puzzle) % len(splits)]


def deal(draw: Callable[[Draw], Puzzle | None], key: str) -> dict[str, Puzzle]:
    """Returns a puzzle for each task, no two alike.

    Args:
        draw: Draws a puzzle; ``None`` if it is not one that the dials allow.
        key: Determines the puzzles.

    Raises:
        UsageError: There are not enough different ones.
    """
    decks: dict[str, dict[Puzzle, None]] = {split: {} for split in COUNTS}
    for number in range(MOST_DRAWS):
        puzzle = draw(Draw(f"{key} {number}"))
        if puzzle is not None and len(deck := decks[split := split_of(puzzle)]) < COUNTS[split]:
            deck[puzzle] = None
            if [*map(len, decks.values())] == [*COUNTS.values()]:
                return {f"{name}-{n}": entry for name, deck in decks.items() for n, entry in enumerate(deck)}
    raise UsageError(f"the dials allow too few different puzzles ({key}); widen them")


class Classic(ToolEnv, Generic[Puzzle, State]):
    """A game of one tool with the argument ``command``; reward 1 when it is solved, which ends it, as losing does.

    Args:
        given: Values of the options of the game, :attr:`takes`.
    """

    takes: type[ClassicOptions]
    options: ClassicOptions
    dial: ClassVar[str]
    """The option whose name and value are the type of all tasks."""
    samples: Sequence[str]
    """Commands to sample from where the game lists none."""
    puzzle: Puzzle
    """The puzzle of the current episode."""
    state: State
    """Its state: plain data that nothing changes; each move makes another."""

    def __init__(self, **given: Any) -> None:
        options = self.options = self.takes.of(given)
        self.seed = f"{options.game_seed}/" if options.source == "generated" else ""
        splits = {name: tuple(f"{self.seed}{name}-{n}" for n in range(count)) for name, count in self._counts().items()}
        dials = {name: value for name, value in asdict(options).items() if name not in ClassicOptions.schema()}
        types = {task_id: f"{self.dial}-{dials[self.dial]}" for ids in splits.values() for task_id in ids}
        version = f"{self.seed}{number_of(dials):016x}"
        tasks = TaskSet(options.env_id, options.source, version, splits, types).select(options.tasks)
        super().__init__(tasks, options.split, options.render_mode)
        self._board = ""

    def _counts(self) -> Mapping[str, int]:
        """Returns how many tasks each split has."""
        return COUNTS

    @abstractmethod
    def _puzzle(self, name: str) -> Puzzle:
        """Returns the puzzle of a task, from its id without the seed; that stands in :attr:`seed`."""

    @abstractmethod
    def _facts(self, puzzle: Puzzle) -> dict[str, Any]:
        """Returns what tells a puzzle from others, as plain JSON."""

    @abstractmethod
    def _rules(self, puzzle: Puzzle) -> str:
        """Returns the instruction of a puzzle."""

    @abstractmethod
    def _opening(self) -> State:
        """Returns the first state of :attr:`puzzle`."""

    @abstractmethod
    def _possible(self) -> tuple[str, ...]:
        """Returns the commands that are possible in :attr:`state`; none where they are too many to list."""

    def _refusal(self, command: str) -> str | None:
        """Returns why a command is not possible, and which are; ``None`` if it is."""
        possible = self._possible()
        return None if command in possible else f"{command} is not possible here; possible: {', '.join(possible)}"

    @abstractmethod
    def _move(self, command: str) -> State:
        """Returns the state after a command that is not refused."""

    @abstractmethod
    def _result(self) -> bool | None:
        """Returns whether the game is solved; ``None`` while it goes on."""

    @abstractmethod
    def _show(self) -> str:
        """Returns :attr:`state` as text."""

    @abstractmethod
    def best(self) -> str:
        """Returns the expert's command.

        Raises:
            UsageError: The game cannot be solved any more.
        """

    def _goal(self, task_id: str) -> str:
        return self._rules(self._puzzle(task_id.removeprefix(self.seed)))

    def _identity(self, task_id: str) -> dict[str, Any]:
        return self._facts(self._puzzle(task_id.removeprefix(self.seed)))

    def call(self, command: str) -> ToolCall:
        """Returns the call of the game's tool with a command."""
        return ToolCall(self.tools[0].name, {"command": command})

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.puzzle = self._puzzle(task_id.removeprefix(self.seed))
        self.state = self._opening()
        return self._rules(self.puzzle), self._outcome(None)

    def _call(self, call: ToolCall) -> Outcome:
        problem = self._refusal(call.arguments["command"])
        if problem is None:
            self.state = self._move(call.arguments["command"])
        return self._outcome(problem)

    def _outcome(self, problem: str | None) -> Outcome:
        result = self._result()
        text = problem or {True: "Solved.", False: "Lost.", None: ""}[result]
        commands, reward = self._possible() if result is None else (), float(result is True)
        return Outcome(text, reward, result is not None, problem, commands, result is True, reward)

    def _observe(self, outcome: Outcome) -> Observation:
        self._board = self._show()
        text = f"{outcome.text}\n{self._board}" if outcome.text else self._board
        return super()._observe(Outcome(text, commands=outcome.commands))

    def _state_key(self) -> str:
        return self._board

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        commands = (() if self._last is None else self._last["commands"]) or self.samples
        return self.call(commands[int(rng.integers(len(commands)))])

    def _save(self) -> State:
        return self.state

    def _resume(self, task_id: str, world: State) -> None:
        self.puzzle, self.state = self._puzzle(task_id.removeprefix(self.seed)), world


@dataclass(frozen=True)
class ClassicExpert:
    """Plays a game by its method ``best``."""

    kind: type[Classic[Any, Any]]

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a game of the kind in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, has no running episode, or one that cannot be solved any more.
        """
        game = unwrap_episode(env, self.kind.takes.env_id, self.kind)
        return (game.call(game.best()),)
