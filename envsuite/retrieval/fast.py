"""The inner loop of a search, compiled. Needs numba (extra ``fast``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compiled when first called, without Python's lock; kept on disk where some folder can be written."""
    compiled: Callable[..., None]
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        compiled = njit(nogil=True)(function)
    return compiled


@_compiled
def add(
    scores: NDArray[np.float64],
    documents: NDArray[np.uint32],
    pairs: NDArray[Any],
    table: NDArray[np.float64],
    first: int,
) -> None:
    """Add to the score of each document what its pair contributes."""
    for i in range(len(documents)):
        scores[documents[i] - first] += table[pairs[i]]
