"""Runs many episodes in this process."""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, Tool
from envsuite.vector.base import Description, EnvFactory, Event, Vector, Wait
from envsuite.vector.runner import Runner


class LocalVector(Vector):
    """Executes each call immediately, in this process.

    The cheapest way to run worlds that are fast and do not crash. It cannot interrupt a call: a world that hangs blocks
    the program, and one that crashes the interpreter ends it. Use :class:`WorkerVector` for such worlds.

    Raises:
        UsageError: An environment cannot be made.
    """

    def __init__(self, factories: Sequence[EnvFactory], slots: int) -> None:
        super().__init__(factories, slots)
        self._runner = Runner(self.factories)
        self._events: list[Event] = []
        self._closed = False
        self._descriptions = [checked(factory, self._runner.describe(i)) for i, factory in enumerate(self.factories)]

    def tools(self, env: int) -> tuple[Tool, ...]:
        """Returns the tools of environment ``env``."""
        return self._descriptions[env].tools

    def max_calls(self, env: int) -> int:
        """Returns the maximum number of calls in one step of environment ``env``."""
        return self._descriptions[env].max_calls

    def poll(self, timeout: float | None = None) -> list[Event]:
        """Returns the events of all calls since the last poll; never waits."""
        events, self._events = self._events, []
        return self._answered(events)

    def waiting_for(self) -> Wait | None:
        """Returns ``None``: no call is ever outstanding."""
        return None

    def close(self) -> None:
        """Closes every environment."""
        self._closed = True
        self._runner.close()

    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        self._events.append(self._runner.reset(slot, env, task_id, seed))

    def _step(self, slot: int, action: Action) -> None:
        self._events.append(self._runner.step(slot, action))

    def _admit(self, slot: int, call: str) -> None:
        if self._closed:
            raise UsageError(f"{call} of a vector that is closed; make another one")
        super()._admit(slot, call)


def checked(factory: EnvFactory, description: Description | str) -> Description:
    """Returns the description; raises :class:`UsageError` if it is an error message."""
    if isinstance(description, str):
        raise UsageError(f"{factory.env_id} cannot be made: {description}")
    return description
