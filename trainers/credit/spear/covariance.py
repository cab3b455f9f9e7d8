"""Covariance clipping for self-imitation (SPEAR, Eq. 14-16): tokens that would spend the entropy fastest are masked.

The covariance of a token is (log π - mean log π) · (Ã - mean Ã). Eq. 16 takes the means over "the G trajectories"; of a
group only its best episodes are in the replay buffer, often a single one, whose covariance would then be 0. So they are
taken over all tokens that are imitated, as Clip-Cov does (Cui et al. 2025).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.groups import Floats, Ints


def mean_of_top(values: Floats, share: float, count: int | None = None) -> float:
    """Mean of the greatest ``share`` of ``count`` values (of as many as there are by default), at least of one."""
    top = max(1, int(share * (len(values) if count is None else count)))
    return float(np.sort(values)[-top:].mean()) if len(values) else 0.0


def clipped_tokens(
    covariance: Floats, episode: Ints, low: float, high: float, share: float, draws: Floats
) -> NDArray[np.bool_]:
    """Which tokens are masked: of each episode, a random few of those whose covariance lies in [low, high].

    Args:
        covariance: Shape (T,).
        episode: Code of each token's episode, shape (T,).
        low: ω_lb.
        high: ω_ub.
        share: λ: at most this share of an episode's tokens is masked (rounded, at least one token).
        draws: Random number of each token, shape (T,); the tokens with the smallest are masked.
    """
    masked = np.zeros(len(covariance), np.bool_)
    if share == 0.0 or not len(covariance):
        return masked
    budget = np.maximum(1, np.rint(share * np.bincount(episode))).astype(np.int64)
    inside = np.flatnonzero((covariance >= low) & (covariance <= high))
    drawn = inside[np.argsort(draws[inside], kind="stable")]
    drawn = drawn[np.argsort(episode[drawn], kind="stable")]
    sizes = np.bincount(episode[drawn], minlength=len(budget))
    place = np.arange(len(drawn)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    masked[drawn[place < budget[episode[drawn]]]] = True
    return masked
