"""Experts that the tokens of a mixture went to: arrays that the steps of a prompt share, as parts of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envsuite.playing.step import Parts


def unknown(dtype: np.dtype[Any]) -> int:
    """The number that stands for an expert that is not known."""
    return int(np.iinfo(dtype).max)


def cut(parts: Parts, begin: int, end: int | None = None) -> Parts:
    """Returns the experts of the tokens from ``begin`` to ``end``, as views."""
    pieces, place = [], 0
    for part in parts:
        piece = part[max(begin - place, 0) : None if end is None else max(end - place, 0)]
        place += len(part)
        if len(piece):
            pieces.append(piece)
    return tuple(pieces)


def fill_experts(sequences: Sequence[Parts], lengths: Sequence[int]) -> list[Parts]:
    """Returns ``sequences``, each with unknown experts where it has none, if any has some."""
    like = next((parts[0] for parts in sequences if parts), None)
    if like is None:
        return list(sequences)
    nobody = np.array(unknown(like.dtype), like.dtype)
    return [parts or (np.broadcast_to(nobody, (length, *like.shape[1:])),)
            for parts, length in zip(sequences, lengths, strict=True)]  # fmt: skip
