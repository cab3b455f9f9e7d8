"""GEM's games and data sets (package gem-llm), in which agents say texts.

GEM writes ``game:Sudoku-v0-easy``; here the id is ``gem/game.Sudoku-v0-easy``, as for ``gymnasium.make`` a colon ends
the name of a module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envsuite.adapters.base import Adapted, OwnRandom, SeedOptions, classes, imported, reason, words_missing
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.errors import UsageError
from envsuite.core.options import option

HORIZON = 200
"""Games end by themselves."""
SAY = Tool.of_string("say", "Says something, which the game reads.", "text", "What to say.")


@dataclass(frozen=True, kw_only=True)
class GemOptions(SeedOptions):
    """Options of an environment of GEM."""

    settings: Mapping[str, Any] | None = option(None, "further arguments of gem.make, e.g. {max_turns: 5}")


class Gem(Adapted):
    """A game or a question; rewards are GEM's, and a last one of 1 or more solves the task.

    GEM draws from Python's and NumPy's global random numbers; here from those of the task's seed.
    """

    package = "gem-llm"
    takes = GemOptions

    def _prepare(self) -> tuple[Tool, ...]:
        self._gem = imported("gem", self.package)
        self._game = self._made(0)
        return (SAY,)

    def _made(self, seed: int) -> Any:
        self._random = OwnRandom(seed)
        with self._random.drawing():
            try:
                return self._gem.make(self.name.replace(".", ":", 1), **(self.options.settings or {}))
            except LookupError as error:
                raise words_missing(self.takes.env_id, error) from error
            except Exception as error:
                raise UsageError(f"gem/{self.name} cannot be made: {reason(error)}") from error

    def _open(self, seed: int) -> tuple[str, str]:
        self._game = self._made(seed)
        self._total = 0.0
        with self._random.drawing():
            goal, info = self._game.reset(seed=seed)
        return str(goal), str(info.get("suffix", ""))

    def _call(self, call: ToolCall) -> Outcome:
        with self._random.drawing():
            seen, reward, terminated, truncated, info = self._game.step(call.arguments["text"])
        ended, value = bool(terminated or truncated), float(reward)
        self._cut = bool(truncated) and not terminated
        self._total += value
        text = str(seen) if ended else "\n".join(filter(None, (str(seen), str(info.get("suffix", "")))))
        solved = ended and value >= 1
        return Outcome(text, reward=value, done=ended, success=solved, score=min(max(self._total, 0.0), 1.0))

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("say", {"text": rf"\boxed{{{int(rng.integers(10))}}}"})


def names() -> list[str]:
    """Returns the games and data sets that the package has."""
    there = imported("gem.envs.registration", Gem.package).ENV_REGISTRY
    return [name.replace(":", ".", 1) for name in there]


__getattr__ = classes(Gem, names)
