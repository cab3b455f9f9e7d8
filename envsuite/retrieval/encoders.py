"""Encoders: texts as unit vectors, so that the product of two vectors is the cosine of their angle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from envsuite.data.arrays import ArrayWriter

Role = Literal["query", "passage"]
"""Side of the search that a text is on; some models are trained with another prefix for each."""


class Texts(Protocol):
    """Texts that can be read more than once, such as a list."""

    def __len__(self) -> int:
        """Returns their number."""

    def __iter__(self) -> Iterator[str]:
        """Yields them, in the same order each time."""


class Encoder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """Name in tables and infos, e.g. ``"all-MiniLM-L6-v2"``."""

    @property
    def dimensions(self) -> int:
        """Length of a vector."""

    def encode(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Returns a unit vector for each text, or zeros where it has nothing that the encoder knows. Shape: [n, d]."""

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Adds arrays to a block, whose names begin with ``encoder``.

        Returns:
            Plain JSON with the field ``kind``, from which :func:`~envsuite.retrieval.vectors.open_encoder`
            makes the encoder again.
        """


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the vectors scaled to length 1; zeros stay zeros. Shape: [n, d]."""
    exact = np.asarray(vectors, dtype=np.float64)
    lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    unit_vectors: NDArray[np.float64] = np.divide(exact, lengths, out=np.zeros_like(exact), where=lengths > 0)
    return unit_vectors.astype(np.float32)
