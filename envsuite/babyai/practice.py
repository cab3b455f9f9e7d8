"""The teacher to imitate on BabyAI, and the words that it takes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.babyai import text
from envsuite.babyai.env import BabyAI
from envsuite.babyai.expert import BabyAIExpert
from envsuite.babyai.tasks import ENV_ID
from envsuite.babyai.world import COMMANDS
from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher, Practice
from envsuite.core.tools import Action, Move, ToolCall
from envsuite.prompting.phrases import phrases


@dataclass(frozen=True)
class BabyAIWalker(FallibleTeacher):
    """Makes the expert's moves, and others now and then; goes anywhere once the expert has no plan."""

    stray: float = 0.0
    """Probability that a move is any that changes something, instead of the expert's: a slip, which is context for
    imitation and not its target."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        babyai, expert = unwrap_local_env(env, ENV_ID, BabyAI), BabyAIExpert()
        while True:
            action: Action = ()
            if rng.random() >= self.stray:
                with suppress(UsageError):
                    action = expert.act(env)
            slip = not action
            yield Move("", action or (ToolCall("act", {"command": rng.choice(babyai.world.possible())}),), slip)


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(BabyAIWalker, texts, fresh="world_seed")


def texts() -> list[str]:
    """Returns the texts of BabyAI: all words of its missions and views, and every kind of sentence."""
    objects = [text.describe_object(kind, colour, 0) for kind in (4, 5, 6, 7) for colour in range(len(text.COLOURS))]
    mission = (
        "go to the ball in front of you, then pick up an object behind you and open the door on your left after you"
    )
    lines = [text.task(mission), "put the key next to the box on your right", text.DONE, text.FAILED, *objects]
    lines += [*text.DOORS, *text.FACING, *COMMANDS, " ".join(map(str, range(100)))]
    lines.append("You see nothing, it is a box with a key in it. Done so far: 1 step steps ahead and left right")
    for view in ("agent", "full"):
        env = BabyAI(view=view)
        lines.append(env.reset(seed=0)[0]["text"])
        lines += [env.step((ToolCall("act", {"command": command}),))[0]["text"] for command in COMMANDS[3:]]
    return [*lines, *phrases(BabyAI.tools), "Invalid action"]
