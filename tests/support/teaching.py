"""Episodes of the players that small models imitate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from envsuite.core import Move, ToolCall
from envsuite.core.players import Player
from envsuite.core.practice import Teacher


@dataclass(frozen=True)
class Turn:
    """A move, and what came of it."""

    thought: str
    call: ToolCall
    slip: bool
    text: str
    """The observation that follows."""
    reward: float
    done: bool
    info: dict[str, Any]

    @property
    def argument(self) -> str:
        (argument,) = self.call.arguments.values()
        return str(argument)


@dataclass(frozen=True)
class Acting:
    """A player that acts without a word, as a teacher."""

    player: Player

    def turns(self, env: Any, rng: random.Random) -> Iterator[Move]:
        while True:
            yield Move("", self.player.act(env))


def played(env: Any, task_id: str, player: Teacher, steps: int = 100, seed: str | None = None) -> list[Turn]:
    """The turns of a player in a task, at most so many."""
    env.reset(options={"task_id": task_id})
    turns: list[Turn] = []
    for move in itertools.islice(player.turns(env, random.Random(seed or task_id)), steps):
        observation, reward, done, _, info = env.step(move.action)
        turns.append(Turn(move.thought, move.action[0], move.slip, observation["text"], float(reward), done, info))
        if done:
            break
    return turns
