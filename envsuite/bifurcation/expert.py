"""An expert that takes the right doors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import gymnasium

from envsuite.bifurcation.env import ENV_ID, Bifurcation
from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, Move, ToolCall


class BifurcationExpert:
    """Takes the right door of each fork, and elsewhere any: one that follows from what has happened."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a Bifurcation in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_episode(env, ENV_ID, Bifurcation)
        right = None if inner.state.astray else inner.walk.right(inner.state.place)
        door = inner.chance % len(inner.commands) if right is None else right
        return (ToolCall("take", {"command": inner.commands[door]}),)


class BifurcationWalker:
    """Plays as the expert does, for imitation."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        while True:
            yield Move("", BifurcationExpert().act(env))
