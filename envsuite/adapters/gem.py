"""GEM's games and data sets (package gem-llm), in which agents say texts.

GEM writes ``game:Sudoku-v0-easy``; here the id is ``gem/game.Sudoku-v0-easy``, as for ``gymnasium.make`` a colon ends
the name of a module.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envsuite.adapters.base import AdaptedWorld, ConfinedEnv, ConfinedOptions, classes, import_extra, words_missing
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.boundary import reason
from envsuite.core.errors import UsageError
from envsuite.core.options import option

HORIZON = 200
"""Games end by themselves."""
SAY = Tool.of_string("say", "Says something, which the game reads.", "text", "What to say.")
_RUNS_PROGRAMS = ("gem.envs.code_env", "gem.envs.mcpmark", "gem.envs.terminal")
"""Modules whose environments run programs, or call tools, besides reading texts."""


@dataclass(frozen=True, kw_only=True)
class GemOptions(ConfinedOptions):
    """Options of an environment of GEM."""

    settings: Mapping[str, Any] | None = option(None, "further arguments of gem.make, e.g. {max_turns: 5}")


class GEMGame(AdaptedWorld):
    """A game or a question of GEM."""

    def prepare(self) -> None:
        """Makes the game, whose copies play."""
        gem, settings = import_extra("gem", Gem.package), {**(self.options.settings or {})}
        entry = import_extra("gem.envs.registration", Gem.package).ENV_REGISTRY[self.name.replace(".", ":", 1)]
        if self.options.confined and str(entry.entry_point).startswith(_RUNS_PROGRAMS):
            raise UsageError(f"gem/{self.name} runs programs that the model wrote, which a confined process may not")
        if str(entry.entry_point).startswith("gem.envs.math_"):
            settings.setdefault("use_mp", False)  # answers would be scored in a process that is not confined
        random.seed(0)
        np.random.seed(0)
        try:
            self._game = gem.make(entry.id, **settings)
        except (LookupError, OSError) as error:
            raise words_missing(f"gem/{self.name}", error) from error
        except Exception as error:
            raise UsageError(f"gem/{self.name} cannot be made: {reason(error)}") from error

    def begin(self, task_id: str) -> tuple[str, str]:
        """Starts a game."""
        self._total = 0.0
        goal, info = self._game.reset(seed=int(task_id.removeprefix("seed-")))
        return str(goal), str(info.get("suffix", ""))

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        """Says something in the game."""
        observation, reward, terminated, truncated, info = self._game.step(arguments["text"])
        over, value = bool(terminated or truncated), float(reward)
        self._total += value
        text = str(observation) if over else "\n".join(filter(None, (str(observation), str(info.get("suffix", "")))))
        outcome = Outcome(text, reward=value, done=over, success=over and value >= 1, score=self._total)
        return outcome, bool(truncated) and not terminated


class Gem(ConfinedEnv):
    """A game or a question; rewards are GEM's, and a last one of 1 or more solves the task."""

    package = "gem-llm"
    takes = GemOptions
    world = GEMGame
    tools = (SAY,)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("say", {"text": rf"\boxed{{{int(rng.integers(10))}}}"})


def names() -> list[str]:
    """Returns the games and data sets that the package has."""
    registry = import_extra("gem.envs.registration", Gem.package).ENV_REGISTRY
    return [name.replace(":", ".", 1) for name in registry]


__getattr__ = classes(Gem, names)
