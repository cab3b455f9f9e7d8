"""The engine of our own: plays ALFWorld's files without planner, interpreter or worker process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from envsuite.alfworld.compiled import Compiled
from envsuite.alfworld.engine import Turn
from envsuite.alfworld.formulas import Malformed
from envsuite.alfworld.game_file import REMEDY, read_game
from envsuite.alfworld.texts import speak
from envsuite.core.errors import DataError, UsageError

VERSION = "1"
"""Counts changes after which a game may answer otherwise."""
NOTHING = "Nothing happens."
MAX_BYTES = 8_000_000
"""Size of a game file; ALFWorld's largest has 140,000 bytes."""


class NativeGame:
    """One game being played: a state, a place and the last turn."""

    __slots__ = ("_game", "_place", "_state", "_turn")

    def __init__(self, game: Compiled) -> None:
        self._game: Compiled | None = game
        self._turn: Turn | None = None
        self._state = 0
        self._place = game.place(game.start_place)

    def reset(self) -> Turn:
        """Start anew."""
        game = self._open()
        self._state, self._place = game.start_state, game.place(game.start_place)
        self._turn = game.start
        return self._turn

    def step(self, command: str) -> Turn:
        """Do what ``command`` says; blanks around it do not count.

        Raises:
            UsageError: Before the first :meth:`reset`.
            DataError: The game can't be played on: its grammar has nothing to say to what happened, or no spelling for
                what can be typed then. The game stays where it was.
        """
        game = self._open()
        last = self._turn
        if last is None:
            raise UsageError("step before reset: call reset() once before the first step")
        state = self._state
        for way in self._place.ways(command.strip()):
            if state & way.test == way.need:
                try:
                    move = self._place.move(way)
                    state = move.apply(state)
                    place = self._place if move.place is None else game.place(move.place)
                    turn = Turn(speak(move.text, state), place.commands(state), game.won(state), True)
                except Malformed as error:
                    raise DataError(f"a game can't be played on after {command!r}: {error}. {REMEDY}") from error
                self._state, self._place, self._turn = state, place, turn
                return turn
        self._turn = Turn(NOTHING, last.commands, last.won, False)
        return self._turn

    def snapshot(self) -> object:
        """The state of play as plain data that can be pickled, for :meth:`restore` of any game of the same file.

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

    def restore(self, token: object) -> Turn:
        """Continue from ``token``; returns the turn that was current when it was taken.

        Raises:
            UsageError: It is not a snapshot of this game by this version of the engine.
        """
        game = self._open()
        if not isinstance(token, Mapping) or (token.get("game"), token.get("version")) != (game.digest, VERSION):
            raise UsageError("restore: not a snapshot of this game by this version of the native engine")
        state = token["state"]
        self._state, self._place = state, game.place(game.place_of(state))
        self._turn = Turn(token["feedback"], self._place.commands(state), game.won(state), token["valid"])
        return self._turn

    def close(self) -> None:
        """Give back what the game holds; it can be played no more."""
        self._game = None

    def _open(self) -> Compiled:
        if self._game is None:
            raise UsageError("the game is closed: open it again with the engine")
        return self._game


class NativeEngine:
    """Opens games; those opened last stay compiled, for all threads.

    Args:
        kept: How many.
    """

    name = "native"
    version = f"native-{VERSION}"

    def __init__(self, kept: int = 64) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[str, int, int], _Slot] = OrderedDict()

    def open(self, path: Path) -> NativeGame:
        """A game of a ``game.tw-pddl`` file.

        Raises:
            DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}). {REMEDY}") from error
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
    """A place for a compiled game, so that only one thread compiles it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.game: Compiled | None = None


def compile_game(path: Path) -> Compiled:
    """The game of a file, ready to be played.

    Raises:
        DataError: The file is missing, truncated, or not such a game; the message names file and remedy.
    """
    file = read_game(path)
    try:
        return Compiled(file.domain, file.problem, file.grammar)
    except Malformed as error:
        raise DataError(f"{path}: cannot be played: {error}. {REMEDY}") from error
