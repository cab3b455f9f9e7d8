"""A query with its gold papers, and functions that score papers against a query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Scorer = Callable[[str, Sequence[tuple[str, str]]], Sequence[float]]
"""Called with a query and the titles and abstracts of papers; returns their scores in [0, 1]."""


@dataclass(frozen=True, slots=True)
class CorpusQuery:
    """A query on a corpus."""

    task_id: str
    text: str
    gold: frozenset[int]
    """Numbers of the papers to find."""
    date: int
    """Day after which papers are not shown, as YYYYMMDD; 0 where all are."""
    stop: int
    """Papers with smaller numbers are shown."""
