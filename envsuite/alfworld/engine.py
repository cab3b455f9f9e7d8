"""What plays ALFWorld's games: the contract of the engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Turn:
    """What a game says after a reset or a command."""

    feedback: str
    """The game's text, exactly."""
    commands: tuple[str, ...]
    """Admissible commands, sorted."""
    won: bool
    """The goal is reached now; the score is 1, and the game goes on for whoever types on."""
    valid: bool
    """The command was one of the admissible ones; if not, nothing happened."""


class Game(Protocol):
    """One game being played."""

    def reset(self) -> Turn:
        """Start anew."""

    def step(self, command: str) -> Turn:
        """Do what ``command`` says; blanks around it do not count.

        Raises:
            UsageError: Before the first :meth:`reset`.
        """

    def snapshot(self) -> object:
        """The state of play as plain data that can be pickled, for :meth:`restore` of any game of the same file."""

    def restore(self, token: object) -> Turn:
        """Continue from ``token``; returns the turn that was current when it was taken."""

    def close(self) -> None:
        """Give back what the game holds; it can be played no more."""


class Engine(Protocol):
    """Opens games."""

    name: str
    """``"native"`` or ``"textworld"``."""
    version: str
    """Of the engine and what it stands on; part of every ``info``."""

    def open(self, path: Path) -> Game:
        """A game of a ``game.tw-pddl`` file.

        Raises:
            DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
        """
