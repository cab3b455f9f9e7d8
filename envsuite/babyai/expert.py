"""The bot of ``minigrid`` as an expert, which goes on from wherever other actions have led."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

from envsuite.babyai.env import BabyAI
from envsuite.babyai.tasks import ENV_ID, parse_task_id
from envsuite.babyai.world import COMMANDS, BabyAIWorld
from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall

SEARCHES = 100
"""Searches for a path after which the bot has no plan for a step: it may plan forever, and seldom needs ten."""
FAILURES = (AssertionError, AttributeError, IndexError, TypeError, DisappearedBoxError)
"""Errors by which the bot says, or shows, that it has no plan."""


class BabyAIExpert:
    """Asks the bot of minigrid in a world of its own, where it makes every step of the episode.

    So its advice depends on the task and on the commands so far alone, also after a restored snapshot. Where the bot
    has no plan a new one is asked, which knows nothing of what was seen; for this what is carried is put down first.
    """

    def __init__(self) -> None:
        self._task = ""
        self._world: BabyAIWorld
        self._bot: Any = None
        self._last: str | None = None
        self._advice: str | None = None

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a BabyAI-v0 in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, has no running episode, or is where the bot has no plan.
        """
        inner = unwrap_episode(env, ENV_ID, BabyAI)
        task, commands = inner.episode["task_id"], inner.world.played
        if task != self._task or self._world.played != commands[: len(self._world.played)]:
            self._task, self._world = task, BabyAIWorld(*parse_task_id(task))
            self._bot, self._last, self._advice = None, None, None
        for command in commands[len(self._world.played) :]:
            self._advise()
            self._world.do(command)
            self._last, self._advice = command, None
        if not (advice := self._advise()):
            raise UsageError("minigrid's bot has no plan from here; reset() or restore()")
        return (ToolCall("act", {"command": advice}),)

    def _advise(self) -> str:
        """Returns the command that follows; empty if there is none."""
        if self._advice is None:
            possible = self._world.possible()
            advice = "" if self._bot is None else _ask_bot(self._bot, self._last)
            if advice not in possible and self._world.carrying is None:
                self._bot = _bot(self._world)
                advice = _ask_bot(self._bot, None)
            if advice == "done":  # which is the case in front of the goal at first: any command completes the mission
                advice = "pick up" if "pick up" in possible else "drop"
            elif advice not in possible:
                self._bot = None  # its plan is half changed
                advice = "" if self._world.carrying is None else "drop" if "drop" in possible else "turn right"
            self._advice = advice
        return self._advice


def _bot(world: BabyAIWorld) -> Any:
    bot: Any = cast(Any, BabyAIBot)(world.inner)
    search = bot._breadth_first_search

    def limited_search(*args: Any, **kwargs: Any) -> Any:
        assert bot.bfs_counter < SEARCHES
        return search(*args, **kwargs)

    bot._breadth_first_search = limited_search
    return bot


def _ask_bot(bot: Any, last: str | None) -> str:
    """Returns the command that the bot advises after the last one, or ``done``; empty if it has no plan."""
    bot.bfs_counter = 0
    try:
        advice = int(bot.replan(None if last is None else COMMANDS.index(last)))
    except FAILURES:
        return ""
    return (*COMMANDS, "done")[advice]
