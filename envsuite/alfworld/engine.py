"""The interface of the engines that play ALFWorld's games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class GameTurn:
    """A game's answer to a reset or a command."""

    feedback: str
    """The game's text, exactly."""
    commands: tuple[str, ...]
    """Admissible commands, sorted."""
    won: bool
    """Whether the goal is reached; the score is 1 then, and the game accepts further commands."""
    valid: bool
    """Whether the command was admissible; if not, the state did not change."""


class ALFWorldGame(Protocol):
    """A game in play."""

    def reset(self) -> GameTurn:
        """Returns to the initial state."""

    def step(self, command: str) -> GameTurn:
        """Executes ``command``; ignores blanks around it.

        Raises:
            UsageError: Before the first :meth:`reset`.
        """

    def snapshot(self) -> object:
        """Returns the state as plain data that can be pickled, for :meth:`restore` of any game of the same file."""

    def restore(self, token: object) -> GameTurn:
        """Restores a snapshot; returns the turn that was current when it was taken."""

    def close(self) -> None:
        """Releases the game's resources; it cannot be played afterwards."""


class GameEngine(Protocol):
    """Opens games."""

    name: str
    """``"native"`` or ``"textworld"``."""
    version: str
    """Versions of the engine and of the packages that it uses; part of every ``info``."""

    def open(self, path: Path) -> ALFWorldGame:
        """Opens a ``game.tw-pddl`` file.

        Raises:
            DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
        """
