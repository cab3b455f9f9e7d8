"""An expert that plays by the package's own policy, from wherever other commands have led."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.textworld.env import TextWorld
from envsuite.textworld.package import ENV_ID

READ = "examine cookbook"


class TextWorldExpert:
    """Plays the first command of the policy, and reads the recipe where it comes past the cookbook."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a TextWorld in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, has no running episode, or a game without a known way.
        """
        game = unwrap_episode(env, ENV_ID, TextWorld).game
        if READ in game.commands and READ not in game.played:
            return (ToolCall("act", {"command": READ}),)
        for command in game.advise():
            return (ToolCall("act", {"command": command}),)
        raise UsageError("textworld knows no way to win this game from here; reset() or restore()")
