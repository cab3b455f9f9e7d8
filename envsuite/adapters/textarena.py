"""TextArena's games for one player (package textarena), with the texts of the game as observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from envsuite.adapters.base import AdaptedWorld, ConfinedEnv, classes, import_extra, words_missing
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.errors import UsageError

HORIZON = 200
"""Games end by themselves."""
SAY = Tool.of_string("say", "Says something in the game, which reads moves in square brackets.", "text", "What to say.")


class TextArenaGame(AdaptedWorld):
    """A game of textarena."""

    def prepare(self) -> None:
        """Loads the package."""
        self._arena = import_extra("textarena", TextArena.package)
        self.readable = tuple(map(str, import_extra("nltk", TextArena.package).data.path))

    def begin(self, task_id: str) -> tuple[str, str]:
        """Starts a game."""
        try:
            self._game = self._arena.make(f"{self.name}-raw")
            self._game.reset(num_players=1, seed=int(task_id.removeprefix("seed-")))
        except (ValueError, AssertionError) as error:
            raise UsageError(f"textarena/{self.name} is not a game for one player: {error}") from error
        except (LookupError, OSError) as error:
            raise words_missing(f"textarena/{self.name}", error) from error
        goal, *texts = self._messages()
        return goal, "\n".join(texts)

    def _messages(self) -> list[str]:
        """Returns what the game has said since it was last asked."""
        _, messages = self._game.get_observation()
        return [str(text) for speaker, text, *_ in messages if speaker == self._arena.GAME_ID]  # some tell it elsewhere

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        """Says something in the game."""
        ends, _ = self._game.step(arguments["text"])
        if not ends:
            return Outcome("\n".join(self._messages())), False
        rewards, about = self._game.close()
        reward = float(rewards[0])
        text = str(about[0].get("reason", "")) if about else ""
        return Outcome(text, reward=reward, done=True, success=reward > 0, score=reward), False


class TextArena(ConfinedEnv):
    """A game; its reward is that of the game's end, and a positive one solves the task."""

    package = "textarena"
    world = TextArenaGame
    tools = (SAY,)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("say", {"text": f"[{int(rng.integers(10))}]"})


def names() -> list[str]:
    """Returns the games that the package has."""
    registry = import_extra("textarena.envs.registration", TextArena.package).ENV_REGISTRY
    return [name.removesuffix("-raw") for name in registry if name.endswith("-raw")]


__getattr__ = classes(TextArena, names)
