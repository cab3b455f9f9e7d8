"""The interface of vectors, which run many episodes at once, and their events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import gymnasium

from envsuite.core.boundary import boundary
from envsuite.core.env import Observation, StepInfo
from envsuite.core.errors import UsageError
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.tools import Action, Tool, UnparsedAction

if TYPE_CHECKING:
    from envsuite.remote.session import EnvDescription


@dataclass(frozen=True)
class EnvFactory:
    """Makes an environment, in any process."""

    env_id: str
    """Id for ``gymnasium.make``, ``"module:Id-v0"`` included."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``; they must be picklable."""

    def make(self) -> gymnasium.Env[Observation, Action]:
        """Makes a new environment, with its time limit."""
        import envsuite  # noqa: F401  (registers the ids, in a worker process too)

        with boundary(self.env_id):
            return gymnasium.make(self.env_id, disable_env_checker=True, **self.kwargs)


@dataclass(frozen=True)
class VectorSnapshot:
    """The state of an episode between two steps, from which a slot of any vector of the same environments goes on.

    Plain data, if the environment's snapshots are.
    """

    world: object
    """The environment's own (:meth:`ToolEnv.snapshot <envsuite.core.ToolEnv.snapshot>`); of an environment on a server,
    the actions that lead there, which are played again."""
    info: StepInfo
    """Info of the answer after which it was taken."""
    elapsed: int
    """Steps made before it, which count for the time limit."""


COLLATERAL = "EpisodeLost: "
"""Start of the errors of episodes that shared a process with the one whose call crashed or blocked it."""


@dataclass(frozen=True)
class VectorEvent:
    """The answer to one :meth:`Vector.reset`, :meth:`Vector.restore` or :meth:`Vector.step`."""

    slot: int
    observation: Observation | None
    reward: float
    terminated: bool
    truncated: bool
    info: StepInfo | None
    error: str | None
    """Why the call failed, in one line that starts with the class of the error; ``None`` if it succeeded. After a
    failure the episode is lost, observation and info are ``None``, and the slot needs a :meth:`Vector.reset`."""
    snapshot: VectorSnapshot | None = None
    """The state after the call, where the vector takes snapshots and the episode goes on."""

    @property
    def collateral(self) -> bool:
        """Whether another episode's call crashed or blocked the process that they shared."""
        return self.error is not None and self.error.startswith(COLLATERAL)


@dataclass(frozen=True)
class Wait:
    """Something that is waited for, such as the answer to a call."""

    what: str
    """Worded to follow "waits for"."""
    since: float
    """When it began (``time.monotonic``)."""
    slot: int | None = None
    """Slot of a vector that it belongs to; ``None`` for none."""

    def __str__(self) -> str:
        """Says what is waited for, and for how long already."""
        return f"{self.what}, for {time.monotonic() - self.since:.0f} s"


def failure(slot: int, error: str) -> VectorEvent:
    """Returns the event of a call that failed."""
    return VectorEvent(slot, None, 0.0, False, False, None, error)


@dataclass(frozen=True)
class Description:
    """Properties of an environment that do not depend on an episode."""

    tools: tuple[Tool, ...]
    max_calls: int
    agents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Agents that take turns -> names of the tools of each; empty where there is one agent."""


class Vector(ABC):
    """Runs many episodes at once, one in each of ``slots``, which are numbered from 0.

    Calls return at once; :meth:`poll` returns a :class:`VectorEvent` for each call, in any order between slots. A slot
    accepts its next call once the last one is answered. Where an episode is lost between two calls (another one crashed
    its worker), the answer to its next step reports that.

    Args:
        factories: The environments; calls name them by their index.
        slots: Number of concurrent episodes.
        deadline: Limit in seconds of one call.
        snapshots: Whether answers have snapshots.

    Raises:
        UsageError: ``slots`` is less than 1, there is no factory, or ``deadline`` is not positive.
    """

    _descriptions: Sequence[Description | EnvDescription]
    """Of each environment; set by the class that makes them."""

    def __init__(
        self, factories: Sequence[EnvFactory], slots: int, deadline: float = 60.0, snapshots: bool = False
    ) -> None:
        if slots < 1 or not factories:
            raise UsageError(f"a vector needs at least one slot and one environment, got {slots} and {len(factories)}")
        if deadline <= 0:
            raise UsageError(f"deadline must be positive, got {deadline}")
        self.deadline = deadline
        self.snapshots = snapshots
        self.factories = tuple(factories)
        quick = {spec.id for spec in ENVIRONMENTS.values() if spec.inline}
        self._quick = [factory.env_id in quick for factory in self.factories]
        self.slots = slots
        self._called: dict[int, str] = {}
        self._live: set[int] = set()

    def tools(self, env: int) -> tuple[Tool, ...]:
        """Returns the tools of environment ``env``."""
        return self._descriptions[env].tools

    def agents(self, env: int) -> Mapping[str, tuple[str, ...]]:
        """Returns the agents of environment ``env`` and the tools of each; nothing where there is one agent."""
        return self._descriptions[env].agents

    def max_calls(self, env: int) -> int:
        """Returns the maximum number of calls in one step of environment ``env``."""
        return self._descriptions[env].max_calls

    def reset(self, slot: int, env: int, *, task_id: str | None = None, seed: int | None = None) -> None:
        """Starts an episode of environment ``env`` in ``slot``.

        Drops the slot's previous episode. :attr:`VectorEvent.error` reports a task that does not exist.

        Raises:
            UsageError: The slot or environment does not exist, or the slot's last call is not yet answered.
        """
        self._admit(slot, "reset")
        self._check(env)
        self._reset(slot, env, task_id, None if seed is None else int(seed))
        self._called[slot] = "reset"
        self._live.add(slot)

    def restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> None:
        """Starts an episode of environment ``env`` in ``slot`` in the middle, where ``snapshot`` was taken.

        Drops the slot's previous episode. The answer is that of the reset or step after which the snapshot was taken,
        without its reward.

        Raises:
            UsageError: As :meth:`reset`.
        """
        self._admit(slot, "restore")
        self._check(env)
        self._restore(slot, env, snapshot)
        self._called[slot] = "restore"
        self._live.add(slot)

    def step(self, slot: int, action: Action) -> None:
        """Takes a step in the episode of ``slot``.

        Raises:
            UsageError: The slot does not exist, has no running episode, or its last call is not yet answered.
        """
        if slot not in self._live:
            raise UsageError(f"slot {slot} has no running episode; call reset({slot}, env) first")
        self._admit(slot, "step")
        self._step(slot, action)
        self._called[slot] = "step"

    def refuse(self, slot: int, problem: str) -> None:
        """Consumes a step of the episode of ``slot`` for an output that could not be parsed as an action.

        The answer is that of :meth:`ToolEnv.refuse <envsuite.core.ToolEnv.refuse>`: the state of the world does not
        change, and the observation states ``problem``.

        Raises:
            UsageError: As :meth:`step`.
        """
        self.step(slot, UnparsedAction(problem))

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[VectorEvent]:
        """Returns the events that have arrived.

        Args:
            timeout: Limit in seconds of the wait for a first event; ``None`` waits without limit.

        Returns:
            At least one event, unless the time is up or no call is outstanding.
        """

    @property
    def pending(self) -> int:
        """Number of calls that :meth:`poll` has not yet answered."""
        return len(self._called)

    @abstractmethod
    def waiting_for(self) -> Wait | None:
        """Returns the oldest outstanding call; ``None`` for none."""

    @abstractmethod
    def close(self) -> None:
        """Closes every environment and ends every worker; further calls raise. A second call does nothing."""

    def __enter__(self) -> Self:
        """Returns the vector."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the vector."""
        self.close()

    @abstractmethod
    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None: ...

    def _restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> None:
        raise UsageError(f"{type(self).__name__} cannot restore snapshots")

    @abstractmethod
    def _step(self, slot: int, action: Action) -> None: ...

    def _check(self, env: int) -> None:
        if not 0 <= env < len(self.factories):
            raise UsageError(f"no environment {env}; this vector has {len(self.factories)}, from 0")

    def _admit(self, slot: int, call: str) -> None:
        if not 0 <= slot < self.slots:
            raise UsageError(f"no slot {slot}; this vector has {self.slots}, from 0")
        if slot in self._called:
            raise UsageError(f"{call} of slot {slot} before its {self._called[slot]} was answered; poll() first")

    def _finish_calls(self, events: list[VectorEvent]) -> list[VectorEvent]:
        for event in events:
            del self._called[event.slot]
            if event.terminated or event.truncated or event.error is not None:
                self._live.discard(event.slot)
        return events
