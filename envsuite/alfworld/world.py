"""The native engine: plays ALFWorld's files without planner, interpreter or worker process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from envsuite.alfworld.compiled import CompiledGame
from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.game_file import REMEDY, read_game
from envsuite.alfworld.pddl import MalformedPDDL
from envsuite.alfworld.rendering import render
from envsuite.core.errors import DataError, UsageError
from envsuite.data.files import file_errors

VERSION = "1"
"""Increased with every change of what a game answers."""
NOTHING = "Nothing happens."
MAX_BYTES = 8_000_000
"""Size of a game file; ALFWorld's largest has 140,000 bytes."""


class NativeGame:
    """A game in play: its state, the player's location and the last turn."""

    __slots__ = ("_game", "_location", "_state", "_turn")

    def __init__(self, game: CompiledGame) -> None:
        self._game: CompiledGame | None = game
        self._turn: GameTurn | None = None
        self._state = 0
        self._location = game.location(game.initial_location)

    def reset(self) -> GameTurn:
        """Returns to the initial state."""
        game = self._open()
        self._state, self._location = game.initial_state, game.location(game.initial_location)
        self._turn = game.start
        return self._turn

    def step(self, command: str) -> GameTurn:
        """Applies the operator that ``command`` stands for; ignores blanks around it.

        Raises:
            UsageError: Before the first :meth:`reset`.
            DataError: The grammar has no text for the transition, or no command for an action that is applicable then.
                The state stays as it was.
        """
        game = self._open()
        last = self._turn
        if last is None:
            raise UsageError("step before reset: call reset() once before the first step")
        state = self._state
        for operator in self._location.operators(command.strip()):
            if state & operator.mask == operator.value:
                try:
                    transition = self._location.transition(operator)
                    state = transition.apply(state)
                    location = self._location if transition.location is None else game.location(transition.location)
                    turn = GameTurn(render(transition.feedback, state), location.commands(state), game.won(state), True)
                except MalformedPDDL as error:
                    raise DataError(f"a game can't be played on after {command!r}: {error}. {REMEDY}") from error
                self._state, self._location, self._turn = state, location, turn
                return turn
        self._turn = GameTurn(NOTHING, last.commands, last.won, False)
        return self._turn

    def snapshot(self) -> object:
        """Returns the state as plain data that can be pickled, for :meth:`restore` of any game of the same file.

        Raises:
            UsageError: Before the first :meth:`reset`.
        """
        game = self._open()
        if self._turn is None:
            raise UsageError("snapshot before reset: call reset() once before the first snapshot")
        return {
            "game": game.digest,
            "version": VERSION,
            "state": self._state,
            "feedback": self._turn.feedback,
            "valid": self._turn.valid,
        }

    def restore(self, token: object) -> GameTurn:
        """Restores a snapshot; returns the turn that was current when it was taken.

        Raises:
            UsageError: It is not a snapshot of this game by this version of the engine.
        """
        game = self._open()
        if not isinstance(token, Mapping) or (token.get("game"), token.get("version")) != (game.digest, VERSION):
            raise UsageError("restore: not a snapshot of this game by this version of the native engine")
        state = token["state"]
        self._state, self._location = state, game.location(game.location_of(state))
        self._turn = GameTurn(token["feedback"], self._location.commands(state), game.won(state), token["valid"])
        return self._turn

    def close(self) -> None:
        """Releases the game; every other method then raises."""
        self._game = None

    def _open(self) -> CompiledGame:
        if self._game is None:
            raise UsageError("the game is closed: open it again with the engine")
        return self._game


class NativeEngine:
    """Opens games, and keeps those opened last compiled, for all threads.

    Args:
        kept: Number of compiled games that are kept.
    """

    name = "native"
    version = f"native-{VERSION}"

    def __init__(self, kept: int = 64) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[str, int, int], _Slot] = OrderedDict()

    def open(self, path: Path) -> NativeGame:
        """Opens a ``game.tw-pddl`` file.

        Raises:
            DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
        """
        with file_errors(path, remedy=REMEDY):
            stat = path.stat()
        if stat.st_size > MAX_BYTES:
            raise DataError(f"{path}: has {stat.st_size:,} bytes, more than any game ({MAX_BYTES:,}). {REMEDY}")
        key = (str(path), stat.st_mtime_ns, stat.st_size)
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self.kept:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.game is None:
                slot.game = compile_game(path)
            return NativeGame(slot.game)


class _Slot:
    """Holds a compiled game, so that only one thread compiles it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.game: CompiledGame | None = None


def compile_game(path: Path) -> CompiledGame:
    """Compiles the game of a file.

    Raises:
        DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
    """
    file = read_game(path)
    try:
        return CompiledGame(file.domain, file.problem, file.grammar)
    except MalformedPDDL as error:
        raise DataError(f"{path}: cannot be played: {error}. {REMEDY}") from error
