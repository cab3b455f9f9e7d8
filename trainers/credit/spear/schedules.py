"""Weights that change over the iterations of a run (SPEAR, Eq. 12 and 21)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def cosine_rise(iteration: ArrayLike, length: int) -> NDArray[np.float64]:
    """From 0 at iteration 0 to 1 at ``length`` and ever after: (1 - cos(π t / length)) / 2."""
    return np.asarray(0.5 * (1.0 - np.cos(np.pi * _share(iteration, length))), np.float64)


def cosine_fall(iteration: ArrayLike, length: int) -> NDArray[np.float64]:
    """From 1 at iteration 0 to 0 at ``length`` and ever after: (cos(π t / length) + 1) / 2."""
    return np.asarray(0.5 * (np.cos(np.pi * _share(iteration, length)) + 1.0), np.float64)


def _share(iteration: ArrayLike, length: int) -> NDArray[np.float64]:
    iterations = np.asarray(iteration, np.float64)
    return np.minimum(iterations / length, 1.0) if length > 0 else np.ones_like(iterations)
