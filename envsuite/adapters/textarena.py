"""TextArena's games for one player (package textarena), with the texts of the game as observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from envsuite.adapters.base import Adapted, OwnRandom, classes, imported, words_missing
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.errors import UsageError

HORIZON = 200
"""Games end by themselves."""
SAY = Tool.of_string("say", "Says something in the game, which reads moves in square brackets.", "text", "What to say.")


class TextArena(Adapted):
    """A game; its reward is that of the game's end, and a positive one solves the task.

    Games draw from Python's global random numbers; here from those of the task's seed.
    """

    package = "textarena"

    def _prepare(self) -> tuple[Tool, ...]:
        self._arena = imported("textarena", self.package)
        self._game: Any = None
        return (SAY,)

    def _open(self, seed: int) -> tuple[str, str]:
        self._random = OwnRandom(seed)
        with self._random.drawing():
            try:
                self._game = self._arena.make(f"{self.name}-raw")
                self._game.reset(num_players=1, seed=seed)
            except (ValueError, AssertionError) as error:
                raise UsageError(f"textarena/{self.name} is not a game for one player: {error}") from error
            except LookupError as error:
                raise words_missing(self.takes.env_id, error) from error
            goal, *texts = self._heard()
        return goal, "\n".join(texts)

    def _heard(self) -> list[str]:
        """Returns what the game has said since it was last asked."""
        _, said = self._game.get_observation()
        return [str(text) for speaker, text, *_ in said if speaker < 0]

    def _call(self, call: ToolCall) -> Outcome:
        with self._random.drawing():
            done, _ = self._game.step(call.arguments["text"])
            if not done:
                return Outcome("\n".join(self._heard()))
            rewards, about = self._game.close()
        reward = float(rewards[0])
        text = str(about[0].get("reason", "")) if about else ""
        return Outcome(text, reward=reward, done=True, success=reward > 0, score=min(max(reward, 0.0), 1.0))

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("say", {"text": f"[{int(rng.integers(10))}]"})


def names() -> list[str]:
    """Returns the games that the package has."""
    there = imported("textarena.envs.registration", TextArena.package).ENV_REGISTRY
    return [name.removesuffix("-raw") for name in there if name.endswith("-raw")]


__getattr__ = classes(TextArena, names)
