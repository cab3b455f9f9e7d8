"""The reference engine: the packages ``textworld`` and ``alfworld``, in worker processes.

The packages are not thread-safe, take 30-200 ms a step, and their planner can exit the interpreter; so only workers
import them, never the program.
"""

from __future__ import annotations

import weakref
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.game_file import read_game
from envsuite.alfworld.pool import ReferencePool, ReferenceWorker
from envsuite.core.errors import DataError, UsageError, WorkerLost, require_extra


class Token(TypedDict):
    """The state of a game as plain data: how to reach it again."""

    game: str
    """``"<task folder>/<trial folder>"``."""
    commands: tuple[str, ...]
    """The admissible commands so far."""
    feedback: str
    valid: bool


@cache
def default_pool() -> ReferencePool:
    """Returns the pool that all engines of this process share: at most one worker per core."""
    return ReferencePool()


class TextWorldEngine:
    """Opens games on ``textworld``.

    Args:
        pool: The worker processes; by default those of :func:`default_pool`.

    Raises:
        MissingExtra: The packages are not installed.
    """

    name = "textworld"

    def __init__(self, pool: ReferencePool | None = None) -> None:
        self.version = _versions()
        self._pool = pool

    @property
    def pool(self) -> ReferencePool:
        """The worker processes."""
        return default_pool() if self._pool is None else self._pool

    def open(self, path: Path) -> TextWorldGame:
        """Opens a ``game.tw-pddl`` file; a worker loads it at the first reset.

        Raises:
            DataError: The file is missing, truncated, or not such a game.
        """
        read_game(path)
        return TextWorldGame(path, self.pool)


class TextWorldGame:
    """A game in play on a worker process.

    Args:
        path: The ``game.tw-pddl`` file.
        pool: The worker processes.
    """

    def __init__(self, path: Path, pool: ReferencePool) -> None:
        self.path = path
        self._pool = pool
        self._worker: ReferenceWorker | None = None
        self._seat = -1
        self._release: weakref.finalize[[int], TextWorldGame] | None = None
        self._turn: GameTurn | None = None
        self._played: list[str] = []
        self._closed = False

    def reset(self) -> GameTurn:
        """Returns to the initial state, in another process where the last one has died.

        Raises:
            DataError: ``textworld`` cannot load the file.
            WorkerLost: The worker process died or took longer than the deadline.
            UsageError: The game is closed.
        """
        if self._closed:
            raise UsageError(f"{self.path}: reset of a closed game; open it again")
        self._turn = None
        if self._worker is not None and not self._worker.alive:
            self._leave()
        if self._worker is None:
            self._worker, self._seat = self._pool.seat()
            self._release = weakref.finalize(self, self._worker.release, self._seat)
            self._release.atexit = False
        self._turn = self._call("reset", str(self.path), valid=True)
        self._played = []
        return self._turn

    def step(self, command: str) -> GameTurn:
        """Executes ``command``.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the game was lost or closed.
            WorkerLost: The worker process died or took longer than the deadline; the episode is lost.
        """
        before = self._current_turn("step")
        self._turn = None
        command = command.strip()
        valid = command in before.commands
        self._turn = self._call("step", command, valid)
        if valid:
            self._played.append(command)
        return self._turn

    def snapshot(self) -> Token:
        """Returns the commands so far.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the game was lost or closed.
        """
        turn = self._current_turn("snapshot")
        return Token(game=self._id, commands=tuple(self._played), feedback=turn.feedback, valid=turn.valid)

    def restore(self, token: object) -> GameTurn:
        """Resets, and plays the commands of ``token`` again; takes as long as they took.

        Raises:
            UsageError: ``token`` is not a snapshot of a game of this file.
            DataError: One of its commands is not admissible: the file has changed since.
            WorkerLost: As for :meth:`reset`.
        """
        if not isinstance(token, dict) or token.keys() != Token.__annotations__.keys() or token["game"] != self._id:
            raise UsageError(f"{self.path}: restore takes what snapshot() of a game of this file returned")
        turn = self.reset()
        for command in token["commands"]:
            turn = self.step(command)
            if not turn.valid:
                raise DataError(f"{self.path}: {command!r} was admissible and is no longer; the file has changed since")
        self._turn = GameTurn(token["feedback"], turn.commands, turn.won, token["valid"])
        return self._turn

    def close(self) -> None:
        """Releases the worker for other games."""
        self._closed = True
        self._turn = None
        self._leave()

    @property
    def _id(self) -> str:
        return "/".join(self.path.parts[-3:-1])

    def _leave(self) -> None:
        if self._release is not None:
            self._release()
        self._worker = None

    def _current_turn(self, call: str) -> GameTurn:
        if self._turn is None:
            raise UsageError(f"{self.path}: {call} of a game that is not in play; call reset() first")
        return self._turn

    def _call(self, name: str, argument: str, valid: bool) -> GameTurn:
        assert self._worker is not None
        try:
            kind, content = self._worker.call(name, self._seat, argument, self._pool.deadline)
        except WorkerLost as lost:
            self._leave()
            raise WorkerLost(
                f"{self.path}: the process that played this game is lost: {lost}. The episode is lost with it; "
                "reset() starts it anew in another process"
            ) from None
        except BaseException:
            self._leave()
            raise
        if kind == "turn":
            feedback, commands, won = content
            return GameTurn(feedback, commands, won, valid)
        self._leave()
        if kind == "data":
            raise DataError(
                f"{self.path}: textworld cannot load this game ({content}). Fetch it again "
                "(`envsuite data fetch alfworld`), or remove its folder"
            )
        raise WorkerLost(f"{self.path}: textworld failed at {argument!r} ({content}). reset() starts the game anew")


@cache
def _versions() -> str:
    with require_extra("ALFWorld-v0 with engine='textworld' needs textworld and alfworld", "alfworld-reference"):
        return ", ".join(f"{package} {version(package)}" for package in ("textworld", "alfworld"))
