"""Reads what an agent sees: the query, the papers that are shown, and what was searched."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUERY = re.compile(r"^Query: (.*)", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"^Papers \(\d+\), best first:\n((?:.+\n?)+)", re.MULTILINE)
_PAPER = re.compile(r"(\S+)(?: \(\d+\))? (.*?)(?: \| .*?)?( \[expanded\])?")


@dataclass(frozen=True)
class PaperLine:
    """A paper of the list."""

    key: str
    title: str
    expanded: bool


def query_of(task: str) -> str:
    """Returns the query in an instruction, or all of it."""
    match = _QUERY.search(task)
    return match[1] if match else task


def papers_of(text: str) -> list[PaperLine]:
    """Returns the papers that an observation shows, in their order."""
    listing = _LIST.search(text)
    lines = listing[1].splitlines() if listing else []
    matches = [_PAPER.fullmatch(line) for line in lines if not line.startswith("… and ")]
    return [PaperLine(match[1], match[2], bool(match[3])) for match in matches if match]


def is_searched(query: str, text: str) -> bool:
    """Returns whether an observation says that a query was searched, in any case of its letters."""
    return f'search "{query.lower()}"' in text.lower()
