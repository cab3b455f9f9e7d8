"""A baseline that matches words of the goal, the listed recipes and the answers; it does not count."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from envsuite.core.env import Observation
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action, ToolCall
from envsuite.textcraft.tasks import ENV_ID
from envsuite.textcraft.world import EMPTY

_LISTED = re.compile(r"^(craft \d+ (.+) using (.+))$", re.MULTILINE)
_GOAL = re.compile(r"Goal: craft (.+)\.")
_PART = re.compile(r"(\d+) ([^,]+)")
_WORD = re.compile(r"[a-z]+")


class TextCraftLexical:
    """Crafts by the listed recipe whose output shares most words with what is wanted, and gets its ingredients.

    An ingredient that cannot be gotten is wanted next, by the same rule. It uses the observation only, takes the
    amounts that one craft names, and keeps no count of what it has: so it fails where a goal needs an intermediate item
    more than once, or where words mislead.
    """

    def __init__(self) -> None:
        self._plan: list[str] = []
        self._last = ""
        self._refused: set[str] = set()

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a TextCraft in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        return self.answer(unwrap_env(env, ENV_ID).observation)

    def answer(self, observation: Observation) -> Action:
        """Returns the action for an observation."""
        task, text = observation["task"], observation["text"]
        if text.startswith(EMPTY) or not self._plan:
            goal = _GOAL.search(task)
            self._refused = set() if text.startswith(EMPTY) else self._refused
            self._plan = self._steps(task, goal[1] if goal else "")
        elif text.startswith("Could not find ") and self._last.startswith("get "):
            item = self._last.split(" ", 2)[2]
            self._plan = [*self._steps(task, item), *self._plan]
        elif text.startswith("Could not"):
            self._refused.add(self._last)
            goal = _GOAL.search(task)
            self._plan = self._steps(task, goal[1] if goal else "")
        self._last = self._plan.pop(0) if self._plan else "inventory"
        return (ToolCall("env_step", {"command": self._last}),)

    def _steps(self, task: str, item: str) -> list[str]:
        """Returns the commands for one craft of ``item``: its ingredients, then the recipe."""
        words = set(_WORD.findall(item))
        ways = [match.groups() for match in _LISTED.finditer(task) if match[1] not in self._refused]
        if not ways:
            return []
        command, _, parts = max(ways, key=lambda way: _overlap(words, set(_WORD.findall(way[1]))))
        return [*(f"get {count} {part}" for count, part in _PART.findall(parts)), command]


def _overlap(first: set[str], second: set[str]) -> float:
    """Returns the share of words that two sets have in common."""
    return len(first & second) / max(1, len(first | second))
