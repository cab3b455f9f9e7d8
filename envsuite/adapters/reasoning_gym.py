"""Reasoning Gym's tasks (package reasoning-gym): one question an episode, whose answer the package scores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envsuite.adapters.base import Adapted, SeedOptions, classes, imported
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.errors import UsageError
from envsuite.core.options import SEED, option

HORIZON = 1
ANSWER = Tool.of_string("answer", "Answers the question, which ends the episode.", "text", "The answer alone.")

BY_HASH = ("isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note")
"""Data sets whose questions depend on the seed of Python's hashes (``python -m benchmarks.adapters reasoning_gym``)."""


@dataclass(frozen=True, kw_only=True)
class ReasoningOptions(SeedOptions):
    """Options of a data set of questions."""

    seed: int = option(0, "seed of the data set", **SEED)
    settings: Mapping[str, Any] | None = option(None, "settings of the data set, e.g. {min_terms: 3}")


class ReasoningGym(Adapted):
    """A question of a data set; the reward is its score, and 1 solves the task."""

    package = "reasoning-gym"
    takes = ReasoningOptions

    def _prepare(self) -> tuple[Tool, ...]:
        if self.name in BY_HASH and not os.environ.get("PYTHONHASHSEED", "").isdecimal():
            raise UsageError(
                f"the questions of reasoning_gym/{self.name} are others in every process; set PYTHONHASHSEED=0 first"
            )
        given, package = self.options, imported("reasoning_gym", self.package)
        made = {**(given.settings or {}), "size": given.train + given.test, "seed": given.seed}
        self._questions = package.create_dataset(self.name, **made)
        return (ANSWER,)

    def _open(self, seed: int) -> tuple[str, str]:
        self._entry = self._questions[seed]
        return self._entry["question"], ""

    def _call(self, call: ToolCall) -> Outcome:
        score = float(self._questions.score_answer(call.arguments["text"], self._entry))
        solved = score >= 1
        text = "The answer is right." if solved else "The answer is wrong."
        return Outcome(text, reward=score, done=True, success=solved, score=min(max(score, 0.0), 1.0))

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("answer", {"text": str(int(rng.integers(100)))})


def names() -> list[str]:
    """Returns the data sets that the package has."""
    return [*imported("reasoning_gym.factory", ReasoningGym.package).DATASETS]


__getattr__ = classes(ReasoningGym, names)
