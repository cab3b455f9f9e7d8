"""An expert that explores as an agent must, and solves every task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium

from envsuite.alfworld.placement import probability
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.alfworld.tasks import ENV_ID
from envsuite.core.env import Observation, ToolEnv
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action, ToolCall

__all__ = ["ALFWorldExpert", "Seeker", "SentenceGoal", "probability"]


class ALFWorldExpert:
    """Plays ALFWorld from observations alone: task, texts and admissible commands, never the files.

    It remembers what it has seen in each environment's episode, so ask it before every step. Asked for the first time
    in the middle of an episode, it starts its search there.

    Args:
        seeker: Makes the player of an episode; another :class:`Seeker` may search in another order.
    """

    def __init__(self, seeker: Callable[[SentenceGoal], Seeker] = Seeker) -> None:
        self._seeker = seeker
        self._episodes: WeakKeyDictionary[ToolEnv, tuple[Seeker, Observation]] = WeakKeyDictionary()

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, an ALFWorld in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, has no episode, has a task whose sentence is unknown to the
                expert, or the expert has searched everything in vain.
        """
        inner = unwrap_env(env, ENV_ID)
        observation = inner.observation
        seeker, last_observation = self._episodes.get(inner, (None, None))
        if seeker is None or last_observation is not observation:
            goal = SentenceGoal.parse(observation["task"])
            if seeker is None or seeker.goal != goal:
                seeker = self._seeker(goal)
            seeker.observe(observation["text"], observation["commands"])
            self._episodes[inner] = seeker, observation
        return (ToolCall("env_step", {"command": seeker.act()}),)
