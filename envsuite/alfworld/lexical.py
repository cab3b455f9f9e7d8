"""A baseline that compares the words of the task and of the admissible commands."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from envsuite.alfworld.prompts import GOAL
from envsuite.alfworld.tasks import ENV_ID
from envsuite.core.env import Observation
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action, ToolCall

_WORD = re.compile(r"[a-z]+")
_SMALL = frozenset("a an and at find from go in it look on put some the them to two under with".split())
_ORDER = ("take", "go", "open")
"""Verbs that are preferred among commands with equally many words of the task, the first one most."""
_SEEING = ("go", "look", "examine", "inventory", "help", "open", "close")
"""Verbs that move no object."""


class ALFWorldLexical:
    """Gives the command, of those not yet given, that shares most words with the task.

    It uses the observation only. When it has moved an object, commands that it gave before may be given again, but for
    the one just given: what was in vain with empty hands may not be with full ones.
    """

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, an ALFWorld in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        return self.answer(unwrap_env(env, ENV_ID).observation)

    def answer(self, observation: Observation) -> Action:
        """Returns the action for an observation."""
        task = set(_WORD.findall(observation["task"].removeprefix(GOAL))) - _SMALL
        if GOAL in observation["text"]:
            self._given = {}

        def rank(command: str) -> tuple[int, int, int]:
            verb, *_ = words = _WORD.findall(command)
            place = _ORDER.index(verb) if verb in _ORDER else len(_ORDER)
            return self._given.get(command, 0), -len(task & set(words)), place

        command = min(observation["commands"], key=rank)
        if command.partition(" ")[0] not in _SEEING:
            self._given = {}
        self._given[command] = self._given.get(command, 0) + 1
        return (ToolCall("env_step", {"command": command}),)
