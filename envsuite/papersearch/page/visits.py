"""Episodes that people play in tabs of a browser, all in one environment: each visit keeps its snapshots."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.expert import PaperSearchExpert

UNDOS = 50
"""Steps that can be taken back."""


@dataclass(frozen=True)
class PageTasks:
    """The tasks of a page, and how an episode of them is limited."""

    split: str
    ids: Sequence[str]
    """Tasks in the order in which they are gone through."""
    first: str | None
    """Task of a new visit; ``None`` for the first of ``ids``, or with a seed a random one."""
    seed: int | None
    """Seed of random tasks."""
    horizon: int | None
    """Most steps of an episode; ``None`` for no limit."""


@dataclass(frozen=True)
class CallResult:
    """The result of one call."""

    tool: str
    argument: str
    said: str
    """Numbers of papers found, or why the call was refused."""
    refused: bool


@dataclass(frozen=True)
class VisitTurn:
    """A step of an episode."""

    results: tuple[CallResult, ...]
    reward: float


@dataclass(frozen=True)
class VisitMoment:
    """A point of an episode that can be gone back to."""

    snapshot: object
    over: bool
    papers: frozenset[int]
    """Numbers of the papers of the pool."""

    @classmethod
    def of(cls, env: PaperSearchEnv) -> VisitMoment:
        """Returns the present point of an episode."""
        return cls(env.snapshot(), env.done, frozenset(env.session.pool))


@dataclass
class Visit:
    """An episode in one tab. Only one thread at a time may use the environment.

    Raises:
        UnknownTask: The first task does not exist.
    """

    env: PaperSearchEnv
    """Shared by all visits; each restores its own snapshot."""
    tasks: PageTasks
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    changes: int = 0
    """Increases with every step, undo and task; identifies requests of a page that is out of date."""
    revealed: bool = False
    """Whether reward and recall are shown during the episode."""
    turns: list[VisitTurn] = field(default_factory=list)
    """The steps of the episode."""

    def __post_init__(self) -> None:
        self._draw = Draw(f"play {self.tasks.seed or 0}")
        if self.tasks.first is not None:
            self.begin(self.tasks.first)
        elif self.tasks.seed is not None:
            self.random()
        else:
            self.begin(self.tasks.ids[0])

    def begin(self, task_id: str) -> None:
        """Starts an episode of a task.

        Raises:
            UnknownTask: There is no such task; the present episode goes on.
        """
        self.env.reset(options={"task_id": task_id})
        self.task_id = task_id
        self.turns = []
        self._moments = [VisitMoment.of(self.env)]
        self.changes += 1

    def move(self, by: int) -> None:
        """Goes to a task further on in the order of the split, or back."""
        ids = self.tasks.ids
        place = ids.index(self.task_id) if self.task_id in ids else -1
        self.begin(ids[(place + by) % len(ids)])

    def random(self) -> None:
        """Goes to a random task."""
        self.begin(self._draw.choose(self.tasks.ids))

    def enter(self) -> PaperSearchEnv:
        """Returns the environment at the present point of the episode."""
        self.env.restore(self._moments[-1].snapshot)
        return self.env

    @property
    def over(self) -> bool:
        """Whether the episode has ended: by itself, or at the limit of steps."""
        return self._moments[-1].over or len(self.turns) == self.tasks.horizon

    @property
    def fresh(self) -> set[int]:
        """Papers that the last step found."""
        if not self.turns or len(self._moments) < 2:
            return set()
        before, now = self._moments[-2:]
        return set(now.papers - before.papers)

    @property
    def can_undo(self) -> bool:
        """Whether a step can be taken back."""
        return len(self._moments) > 1

    def act(self, action: Action) -> VisitTurn:
        """Takes a step.

        Raises:
            UsageError: The episode is over.
        """
        if self.over:
            raise UsageError("The episode is over: take the step back, restart it, or go to another task.")
        env = self.enter()
        past = len(env.session.history)
        _, reward, *_ = env.step(action)
        turn = VisitTurn(tuple(map(_result, action, env.session.history[past:])), float(reward))
        self.turns.append(turn)
        self._moments = [*self._moments[-UNDOS:], VisitMoment.of(env)]
        self.changes += 1
        return turn

    def undo(self) -> None:
        """Takes the last step back.

        Raises:
            UsageError: There is none, or it is too long ago.
        """
        if not self.can_undo:
            raise UsageError("There is nothing to take back.")
        self.turns.pop()
        self._moments.pop()
        self.changes += 1

    def hint(self) -> Action:
        """Returns the expert's next action.

        Raises:
            UsageError: The episode is over.
        """
        if self.over:
            raise UsageError("The episode is over.")
        return PaperSearchExpert().act(self.enter())


def _result(call: ToolCall, line: str) -> CallResult:
    """Returns the result of a call by its line in the history, whose last part says it."""
    text = line.rpartition(": ")[2]
    (argument,) = call.arguments.values()
    return CallResult(call.name, argument, text, text.startswith("refused, "))
