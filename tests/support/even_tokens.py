"""A reward in which a random model's episodes differ; ``python even_tokens.py ARGUMENTS…`` is a run that knows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from trainers.credit.shapers import SHAPERS, Shaper
from trainers.steps import StepTable


@SHAPERS.register("even_tokens")
@dataclass(frozen=True)
class EvenTokens(Shaper):
    """Adds the share of tokens with even ids."""

    def __call__(self, steps: StepTable) -> StepTable:
        """The steps with that reward."""
        even = np.bincount(steps.response.row_of, steps.response.values % 2 == 0, len(steps))
        return steps.with_reward(steps.reward + even / np.maximum(steps.response.lengths, 1))


if __name__ == "__main__":
    from trainers.train import main

    sys.exit(main(sys.argv[1:]))
