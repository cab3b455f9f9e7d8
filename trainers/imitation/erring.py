"""A player that errs at every step alike: demonstrations for a base model whose mistakes are not a way of playing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import gymnasium
import numpy as np

from envsuite.core import Action, Move, Observation, ToolEnv, UsageError
from envsuite.core.practice import Teacher
from envsuite.core.spaces import ToolCalls

TRIES = 24
"""Random calls that are tried for one mistake, by default."""


class ErringTeacher:
    """Makes another player's moves, and in place of some of them a random one that is possible.

    Every move is a target of imitation. A player with two ways of playing, of which one is right, leaves a model that
    has to choose between them once; this one leaves a model that is right and wrong in every episode, many times.
    The episode ends where the player's move is not possible.

    Args:
        player: Makes the right moves, and goes on from where a mistake led; environments must support snapshots.
        share: Probability that a move is a random one. First its kind (the first word of the command, or its tool) is
            drawn, then one of this kind.
        tries: Random calls that are tried for one mistake; where none is possible, the move is the player's.

    Raises:
        UsageError: The share is no probability.
    """

    def __init__(self, player: Teacher, share: float, tries: int = TRIES) -> None:
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"errs={share} is not a probability; give a number from 0 to 1")
        self.player = player
        self.share = share
        self.tries = tries

    def turns(self, env: gymnasium.Env[Observation, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        world = env.unwrapped
        assert isinstance(world, ToolEnv)
        for move in self.player.turns(env, rng):
            if not _possible(world, move.action):
                return
            if rng.random() < self.share:
                yield Move("", _mistake(world, move.action, rng, self.tries))
            else:
                yield move._replace(slip=False)


def _mistake(env: ToolEnv, right: Action, rng: random.Random, tries: int) -> Action:
    """Returns a random action that is possible and not ``right``; ``right`` if none was found."""
    generator, space = np.random.default_rng(rng.getrandbits(32)), env.action_space
    assert isinstance(space, ToolCalls) and space.propose is not None
    kinds: dict[str, list[Action]] = {}
    for _ in range(tries):
        action = (space.propose(generator),)
        actions = kinds.setdefault(_kind(action), [])
        if action != right and action not in actions and _possible(env, action):
            actions.append(action)
    choices = [actions for _, actions in sorted(kinds.items()) if actions]
    return rng.choice(rng.choice(choices)) if choices else right


def _kind(action: Action) -> str:
    """Returns the first word of a command; the tool's name where arguments are no commands."""
    (call,) = action
    words = [str(value).split(" ")[0] for key, value in call.arguments.items() if key == "command"]
    return " ".join([call.name, *words])


def _possible(env: ToolEnv, action: Action) -> bool:
    """Whether the environment would execute ``action`` now."""
    token = env.snapshot()
    valid = bool(env.step(action)[-1]["valid"])
    env.restore(token)
    return valid
