"""Reads what an agent sees: the query, the papers that are shown, and what was searched."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUERY = re.compile(r"^Query: (.*)", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"^Papers \(\d+\), best first:\n((?:.+\n?)+)", re.MULTILINE)
_PAPER = re.compile(r"(\S+)(?: \(\d+\))? (.*?)(?: \| .*?)?( \[expanded\])?")


@dataclass(frozen=True)
class Shown:
    """A paper of the list."""

    key: str
    title: str
    expanded: bool


def query_of(task: str) -> str:
    """Returns the query in an instruction, or all of it."""
    found = _QUERY.search(task)
    return found[1] if found else task


def papers_of(text: str) -> list[Shown]:
    """Returns the papers that an observation shows, in their order."""
    found = _LIST.search(text)
    lines = found[1].splitlines() if found else []
    read = [_PAPER.fullmatch(line) for line in lines if not line.startswith("… and ")]
    return [Shown(one[1], one[2], bool(one[3])) for one in read if one]


def is_searched(query: str, text: str) -> bool:
    """Returns whether an observation says that a query was searched, in any case of its letters."""
    return f'search "{query.lower()}"' in text.lower()
