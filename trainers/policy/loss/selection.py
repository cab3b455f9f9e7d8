"""Tokens that ``clip_cov`` leaves out and ``kl_cov`` penalises, chosen over a whole optimiser batch.

Entropy falls with the covariance of log-probability and advantage (Cui et al. 2025). Both losses pick tokens by it:
the covariance is centred over the tokens of all processes and the picks are the best of all processes, so that neither
the number of processes nor the size of a micro-batch changes the choice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainers.policy.loss.config import Objective

Floats = NDArray[np.float64]
SELECTING = ("clip_cov", "kl_cov")
"""Losses that need a selection."""


def token_sums(logprob: Floats, advantage: Floats) -> Floats:
    """Returns the number of tokens and their sums, shape (3,); those of several processes add up."""
    return np.array([len(logprob), logprob.sum(), advantage.sum()])


def covariances(logprob: Floats, advantage: Floats, sums: Floats | None = None) -> Floats:
    """Covariance of each token, shape (T,).

    Args:
        logprob: Shape (T,).
        advantage: Shape (T,).
        sums: Those of the whole batch (:func:`token_sums`), where these are one process's share of it.
    """
    count, *totals = token_sums(logprob, advantage) if sums is None else sums
    means = np.array(totals) / max(count, 1)
    return np.asarray((logprob - means[0]) * (advantage - means[1]), np.float64)


def selected_tokens(
    new: Floats,
    old: Floats,
    advantage: Floats,
    draw: Floats,
    config: Objective,
    every: Callable[[NDArray[np.float64]], list[NDArray[np.float64]]] = lambda value: [value],
) -> NDArray[np.bool_]:
    """Selects the tokens of this process that the loss picks; every process must call this.

    ``clip_cov``: of the tokens that the clip leaves alone and whose covariance lies strictly between ``cov_low`` and
    ``cov_high``, those of the lowest ``draw``. ``kl_cov``: those of the highest covariance. Both pick at most
    ``cov_fraction`` of all tokens, rounded down, and at least one.

    Args:
        new: Log-probability under the policy before the optimiser step, shape (T,).
        old: Log-probability that the ratio compares with, shape (T,).
        advantage: Shape (T,).
        draw: Random numbers, shape (T,); they also decide between equal covariances.
        config: The loss and its settings.
        every: Gives the values of all processes; by default there is one.
    """
    sums = np.sum(every(token_sums(new, advantage)), axis=0)
    covariance = covariances(new, advantage, sums)
    if config.loss == "kl_cov":
        candidates, rank = np.arange(len(new)), -covariance
    else:
        candidates, rank = np.flatnonzero(eligible(covariance, new - old, advantage, config)), np.zeros(len(new))
    count = max(int(config.cov_fraction * sums[0]), 1)
    order = candidates[np.lexsort((draw[candidates], rank[candidates]))][:count]
    best = np.concatenate(every(np.stack([rank[order], draw[order]], axis=1)))
    best = best[np.lexsort((best[:, 1], best[:, 0]))][:count]
    mask = np.zeros(len(new), np.bool_)
    if len(best):
        last_rank, last_draw = best[-1]
        ahead = (rank[order] < last_rank) | ((rank[order] == last_rank) & (draw[order] <= last_draw))
        mask[order[ahead]] = True
    return mask


def eligible(covariance: Floats, log_ratio: Floats, advantage: Floats, config: Objective) -> NDArray[np.bool_]:
    """Tokens among which ``clip_cov`` picks, each argument and the result of shape (T,)."""
    inside = (covariance > config.cov_low) & (covariance < config.cov_high)
    low = -np.inf if config.log_ratio_min is None else config.log_ratio_min
    high = np.inf if config.log_ratio_max is None else config.log_ratio_max
    ratio = np.exp(np.clip(log_ratio, low, high))
    least = -np.inf if config.clip_low is None else 1.0 - config.clip_low
    most = np.inf if config.clip_high is None else 1.0 + config.clip_high
    is_clipped = -advantage * np.clip(ratio, least, most) > -advantage * ratio
    return np.asarray(inside & ~is_clipped)
