"""Plays games on ``textworld`` in a worker process: reads calls and writes answers, in order."""

from __future__ import annotations

import functools
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

from envsuite.core.processes import frame, receive

READY = "ready"
Answer = tuple[str, Any]
"""``("turn", (feedback, commands, won))``, ``("data", why it cannot be loaded)`` or ``("bug", the error)``."""
Edition = tuple[str, int, int]
"""Identifies a version of a game file: path, time of change (ns), size."""


def serve(channel: socket.socket) -> None:
    """Answers calls until the other end is closed."""
    player = ReferencePlayer()
    channel.sendall(frame([pickle.dumps(READY)]))
    while True:
        for old_games, name, game, argument in receive(channel):
            for old_game in old_games:
                player.drop(old_game)
            channel.sendall(frame([pickle.dumps(player.answer(name, game, argument))]))


class ReferencePlayer:
    """Plays many games on ``textworld`` interpreters; each plays one at a time and is reused."""

    def __init__(self) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv

        _remember_parses()

        def interpreter() -> Any:
            infos = textworld.EnvInfos(feedback=True, admissible_commands=True, won=True, score=True)
            return AlfredDemangler(PddlEnv(infos), shuffle=False)

        self._interpreter = interpreter
        self._playing: dict[int, tuple[Edition, Any]] = {}
        self._idle: list[tuple[Edition, Any]] = []

    def answer(self, name: str, game: int, argument: str) -> Answer:
        """Resets ``game`` from the file ``argument``, or steps it with the command ``argument``."""
        try:
            if name == "reset":
                return self._reset(game, argument)
            state, _, _ = self._playing[game][1].step(argument)
        except Exception as error:  # an error of the reference in one game must not end the others
            self._playing.pop(game, None)
            return "bug", f"{type(error).__name__}: {error}"
        return _turn(state)

    def drop(self, game: int) -> None:
        """Returns the interpreter of ``game`` for reuse."""
        if game in self._playing:
            self._idle.append(self._playing.pop(game))

    def _reset(self, game: int, path: str) -> Answer:
        if game not in self._playing:
            try:
                self._playing[game] = self._load(path)
            except (Exception, SystemExit) as error:  # the planner's parser exits where it cannot read
                return "data", f"{type(error).__name__}: {error}"
        return _turn(self._playing[game][1].reset())

    def _load(self, path: str) -> tuple[Edition, Any]:
        """Returns an interpreter with the game loaded; prefers one that has it, as loading takes as long as a reset."""
        about = os.stat(path)
        edition = (path, about.st_mtime_ns, about.st_size)
        for index, (idle_edition, _) in enumerate(self._idle):
            if idle_edition == edition:
                return self._idle.pop(index)
        world = self._idle.pop(0)[1] if self._idle else self._interpreter()
        world.load(path)
        return edition, world


class ParseCache:
    """A ``textworld`` parser that caches each text, instead of parsing it at every use.

    A game has some hundred texts, the same at every step, and parsing them is two thirds of what a step takes.

    Args:
        parse: The function that parses a text by the rule of that name.
    """

    def __init__(self, parse: Callable[..., Any]) -> None:
        @functools.lru_cache(4096)
        def parse_pickled(text: str, rule_name: str) -> bytes:
            return pickle.dumps(parse(text, rule_name=rule_name))

        self._parsed = parse_pickled

    def __call__(self, text: str, rule_name: str, trace: bool = False) -> Any:
        """Returns the parsed text as a fresh copy, since ``textworld`` writes into it."""
        return pickle.loads(self._parsed(text, rule_name))  # bytes of this process, never from a disk or a client


def _remember_parses() -> None:
    from textworld import logic
    from textworld.envs.pddl import textgen

    for module in (textgen, logic):
        if not isinstance(module._parse_and_convert, ParseCache):
            module._parse_and_convert = ParseCache(module._parse_and_convert)


def _turn(state: Any) -> Answer:
    return "turn", (str(state.feedback), tuple(map(str, state.admissible_commands)), bool(state["won"]))
