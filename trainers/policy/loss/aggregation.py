"""Aggregation of token losses into one number, as one weight per token.

The weights are computed once for the whole optimiser batch; the loss is then a plain weighted sum, so that cutting the
batch into micro-batches or spreading it over ranks changes neither the loss nor its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from trainers.policy.loss.config import Objective

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BatchTotals:
    """Sizes of a whole optimiser batch, summed over all ranks."""

    tokens: int
    """Response tokens."""
    sequences: int
    """Step rows that count; see ``Objective.count_empty``."""
    episodes: int = 0
    """Episodes that have a step row that counts; needed for ``average="episodes"``."""

    @classmethod
    def of(cls, lengths: Ints, config: Objective, episode: Ints | None = None) -> BatchTotals:
        """Totals of the step rows of one rank; several ranks sum theirs, as no episode is on two of them.

        Args:
            lengths: Response tokens of each step row, shape (R,).
            config: Says which rows count.
            episode: Episode of each row, shape (R,).
        """
        is_counted = lengths >= 0 if config.count_empty else lengths > 0
        episodes = 0 if episode is None else len(np.unique(episode[is_counted]))
        return cls(int(lengths.sum()), int(is_counted.sum()), episodes)


def token_weights(
    lengths: Ints, config: Objective, *, totals: BatchTotals | None = None, episode: Ints | None = None
) -> Floats:
    """Weight of each response token: the loss is the weighted sum of the token losses.

    Args:
        lengths: Response tokens of each step row, shape (R,).
        config: Aggregation and its options.
        totals: Sizes of the whole optimiser batch, where these rows are one rank's share; of these rows by default.
        episode: Episode of each row, shape (R,); needed for ``average="episodes"``, and all its rows must be here.

    Returns:
        Shape (sum of lengths,), in row order. Under data parallelism that averages gradients over ranks, multiply
        by the number of ranks.

    Raises:
        UsageError: ``average="episodes"`` without ``episode``.
    """
    lengths = np.asarray(lengths, np.int64)
    if totals is None:
        totals = BatchTotals.of(lengths, config, episode)
    if config.aggregation == "token-mean":
        per_row = np.full(len(lengths), 1.0 / max(totals.tokens, 1))
    elif config.aggregation in ("token-sum", "token-sum-norm"):
        per_row = np.ones(len(lengths))
    else:
        per_row = _sequence_weights(lengths, config, totals, episode)
        if config.aggregation == "seq-mean-token-mean":
            per_row = per_row / np.maximum(lengths, 1)
    if config.aggregation.endswith("-norm"):
        assert config.horizon is not None
        per_row = per_row / config.horizon
    return np.repeat(per_row, lengths)


def _sequence_weights(lengths: Ints, config: Objective, totals: BatchTotals, episode: Ints | None) -> Floats:
    if config.average == "steps":
        return np.full(len(lengths), 1.0 / max(totals.sequences, 1))
    if episode is None:
        raise UsageError("objective: average 'episodes' needs the episode of each step row")
    _, code = np.unique(episode, return_inverse=True)
    steps = np.bincount(code, lengths >= 0 if config.count_empty else lengths > 0)
    return np.asarray(1.0 / (np.maximum(steps, 1)[code] * max(totals.episodes, 1)), np.float64)
