"""Encoders: texts as unit vectors, so that the product of two vectors is the cosine of their angle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.data.arrays import Arrays, ArrayWriter

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
        """Name in tables and infos, e.g. ``"lsa"``."""

    @property
    def dimensions(self) -> int:
        """Length of a vector; of an encoder that is fitted, known afterwards."""

    def fit(self, texts: Texts) -> None:
        """Fits the encoder to a corpus; does nothing where it was trained before.

        Raises:
            DataError: The texts do not suffice.
        """

    def encode(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Returns a unit vector for each text, or zeros where it has nothing that the encoder knows. Shape: [n, d]."""

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Adds arrays to a block, whose names begin with ``encoder``.

        Returns:
            Plain JSON with the field ``kind``, from which :func:`open_encoder` finds the encoder again.
        """


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the vectors scaled to length 1; zeros stay zeros. Shape: [n, d]."""
    exact = np.asarray(vectors, dtype=np.float64)
    lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = np.divide(exact, lengths, out=np.zeros_like(exact), where=lengths > 0)
    return scaled.astype(np.float32)


def encoder(name: str) -> Encoder:
    """Returns the encoder for a name that a user typed.

    Args:
        name: ``"lsa"``, ``"lsa:256"`` with another number of dimensions, or the folder of a sentence-transformers
            model.

    Raises:
        DataError: It is none of these.
        MissingExtra: It is a model, and sentence-transformers is not installed.
    """
    from envsuite.retrieval.lsa import DIMENSIONS, Lsa
    from envsuite.retrieval.sentence import SentenceEncoder

    kind, _, size = name.partition(":")
    if name == "lsa" or (kind == "lsa" and size.isdecimal() and 0 < int(size) <= 4096):
        return Lsa(int(size) if size else DIMENSIONS)
    if Path(name).is_dir():
        return SentenceEncoder(Path(name))
    raise DataError(f"no encoder {name!r}: give lsa, lsa:DIMENSIONS or the folder of a sentence-transformers model")


def open_encoder(arrays: Arrays, facts: dict[str, Any]) -> Encoder:
    """Returns the encoder that was written with a block of vectors.

    Raises:
        DataError: The program has no such encoder, or its model is gone.
        MissingExtra: It needs a package that is not installed.
    """
    from envsuite.retrieval.lsa import StoredLsa
    from envsuite.retrieval.sentence import SentenceEncoder

    if facts["kind"] == "lsa":
        return StoredLsa(arrays, facts)
    if facts["kind"] == "sentence":
        return SentenceEncoder(Path(facts["model"]), facts["query"], facts["passage"], facts["name"], facts["dtype"])
    raise DataError(f"vectors of an encoder of kind {facts['kind']!r} need it: Vectors(path, offset, encoder)")
