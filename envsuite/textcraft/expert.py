"""An expert that solves every task."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.planning import Choices, choices, plan
from envsuite.textcraft.tasks import ENV_ID

__all__ = ["Choices", "TextCraftExpert", "choices", "plan"]


class TextCraftExpert:
    """Plays TextCraft from its state; solves every task of every split."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a TextCraft in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        world = unwrap_episode(env, ENV_ID, TextCraft).world
        return (ToolCall("env_step", {"command": plan(world.book, world.goal, world.inventory)[0]}),)
