"""How far a long piece of work is, for who waits for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TypeVar

from envsuite.core.errors import MissingExtra

T = TypeVar("T")


def shown(pieces: Iterator[T], what: str, total: int) -> Iterator[T]:
    """The same pieces, with a bar on standard error where that is a terminal and the work takes longer than a second.

    Args:
        pieces: What is done, one after the other.
        what: What the bar says.
        total: How many they are.

    Raises:
        MissingExtra: There is a terminal, and the package that draws bars is not installed.
    """
    if not sys.stderr.isatty():
        return pieces
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise MissingExtra('ALFWorld-v0 needs the package tqdm: pip install "envsuite[alfworld]"') from error
    bar: Iterator[T] = iter(tqdm(pieces, what, total, file=sys.stderr, delay=1))
    return bar
