"""The compiled inner loop of a search. Needs numba (extra ``fast``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def _compile(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles the function on its first call, without the GIL; caches the result on disk where possible."""
    kernel: Callable[..., None]
    try:
        kernel = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        kernel = njit(nogil=True)(function)
    return kernel


@_compile
def add(scores: Doubles, documents: NDArray[np.uint32], pairs: NDArray[Any], table: Doubles, first: int) -> None:
    """Adds the contribution of each posting's pair to the score of its document."""
    for i in range(len(documents)):
        scores[documents[i] - first] += table[pairs[i]]
