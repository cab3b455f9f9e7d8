"""Locations of data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

WRITABLE = "Make room there, or set ENVSUITE_DATA to a folder that can be written"
"""Remedy where data cannot be written."""
_PART = r"\w.@%+=~\-"
_END = r"(?!\.*[\w@%+=~\-])"  # of a name, which a full stop may follow
_ABSOLUTE = re.compile(rf"(?<![\w.…~$:/>)\]}}-])/([{_PART}]+)(?:/[{_PART}]*)*")


def data_root() -> Path:
    """Returns the folder of the official data, which has a folder for each environment.

    It is the value of the variable ``ENVSUITE_DATA``, or ``~/.cache/envsuite``.
    """
    root = os.environ.get("ENVSUITE_DATA")
    return Path(root) if root else Path.home() / ".cache" / "envsuite"


def cache_root() -> Path:
    """Returns the folder of derived files (indices, compiled and generated games): ``cache`` in the data root."""
    return data_root() / "cache"


def without_paths(text: str, paths: Iterable[str] = ()) -> str:
    """Returns ``text``, a message for somebody on another machine, without the absolute paths of this one.

    Paths in the data root are told relative to ``$ENVSUITE_DATA``, others by their last part.

    Args:
        text: The message.
        paths: Paths that the reader has named; they stay as they are, and what is below them.
    """
    pattern = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True) if path.startswith("/"))
    pieces = re.split(rf"((?:{pattern}){_END}(?:/[{_PART}/]*)?)", text) if pattern else [text]
    root = re.compile(rf"{re.escape(str(data_root()))}{_END}")
    for index in range(0, len(pieces), 2):
        pieces[index] = _ABSOLUTE.sub(_last_part, root.sub("$ENVSUITE_DATA", pieces[index]))
    return "".join(pieces)


def _last_part(match: re.Match[str]) -> str:
    path = match.group()
    return f"…/{path.rstrip('/').rpartition('/')[2]}" if os.path.lexists(f"/{match.group(1)}") else path
