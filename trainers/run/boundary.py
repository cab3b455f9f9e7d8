"""The end of an iteration, to which a run goes back where memory runs out in the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainers.policy.stateful import Stateful

_CHANGED = ("sampler", "method", "random", "counters")
"""Parts that an iteration changes before its first optimiser step, and whose states are small."""


class Boundary:
    """Knows whether a run's state is that of the end of an iteration, or can be made so.

    Args:
        parts: The run's parts, by name.
        begun: Returns the number of optimiser steps that were begun.
        alone: Whether the run has one process: others would wait in an exchange of another kind.
    """

    def __init__(self, parts: Mapping[str, Stateful], begun: Callable[[], int], alone: bool) -> None:
        self._parts, self._begun, self._alone = parts, begun, alone
        self.commit()

    def commit(self) -> None:
        """Marks the end of an iteration."""
        self._states: dict[str, Mapping[str, Any]] | None = {}
        self._steps = self._begun()

    def begin(self) -> None:
        """Marks the begin of an iteration; the way back is kept but where episodes are replayed or wait for updates."""
        can_return = self._alone and not {"replay", "pool"} & self._parts.keys()
        self._states = {name: self._parts[name].state() for name in _CHANGED} if can_return else None

    def drop(self) -> None:
        """Marks that optimisers take steps: there is no way back."""
        self._states = None

    def undo(self) -> bool:
        """Restores the end of the last iteration; returns whether it could, so that a checkpoint can be written."""
        if not self._alone or self._states is None or self._begun() != self._steps:
            return False
        for name, state in self._states.items():
            self._parts[name].load(state)
        return True
