"""Reasoning Gym's tasks (package reasoning-gym): one question an episode, whose answer the package scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envsuite.adapters.base import AdaptedWorld, ConfinedEnv, ConfinedOptions, classes, import_extra
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.boundary import reason
from envsuite.core.errors import UsageError
from envsuite.core.options import SEED, option

HORIZON = 1
ANSWER = Tool.of_string("answer", "Answers the question, which ends the episode.", "text", "The answer alone.")
WRONG = "The answer is wrong."
_RIGHT = "the right answer"
"""Name of a call that gives the data set's own answer."""


@dataclass(frozen=True, kw_only=True)
class ReasoningOptions(ConfinedOptions):
    """Options of a data set of questions."""

    seed: int = option(0, "seed of the data set", **SEED)
    settings: Mapping[str, Any] | None = option(None, "settings of the data set, e.g. {min_terms: 3}")


class GymQuestions(AdaptedWorld):
    """A data set of reasoning-gym."""

    def prepare(self) -> None:
        """Makes the data set."""
        options, package = self.options, import_extra("reasoning_gym", ReasoningGym.package)
        settings = {**(options.settings or {}), "size": options.train + options.test, "seed": options.seed}
        try:
            self._questions = package.create_dataset(self.name, **settings)
        except Exception as error:
            raise UsageError(f"reasoning_gym/{self.name} cannot be made: {reason(error)}") from error

    def begin(self, task_id: str) -> tuple[str, str]:
        """Asks a question."""
        self._entry = self._questions[int(task_id.removeprefix("seed-"))]
        return self._entry["question"], ""

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        """Scores an answer."""
        answer = self._entry["answer"] if name == _RIGHT else arguments["text"]
        score = float(self._questions.score_answer(answer, self._entry))
        text = "The answer is right." if score >= 1 else WRONG
        return Outcome(text, reward=score, done=True, success=score >= 1, score=score), False


class ReasoningGym(ConfinedEnv):
    """A question of a data set; the reward is its score, and 1 solves the task.

    An answer over which its scorer fails is worth 0.
    """

    package = "reasoning-gym"
    takes = ReasoningOptions
    world = GymQuestions
    tools = (ANSWER,)

    def _failure(self, problem: str) -> Outcome:
        """Returns a wrong answer.

        Raises:
            WorkerLost: The scorer fails over the right answer, too.
        """
        self._replay(self._played, [{"tool": _RIGHT, "arguments": {}}])[0].close()
        return Outcome(WRONG, done=True)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("answer", {"text": str(int(rng.integers(100)))})


def names() -> list[str]:
    """Returns the data sets that the package has."""
    return [*import_extra("reasoning_gym.factory", ReasoningGym.package).DATASETS]


__getattr__ = classes(ReasoningGym, names)
