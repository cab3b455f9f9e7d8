"""Where data lives."""

from __future__ import annotations

import os
from pathlib import Path


def data_root() -> Path:
    """Where the benchmarks' own files are looked for, a folder for each environment.

    The folder that the variable ``ENVSUITE_DATA`` names; without it ``~/.cache/envsuite``.
    """
    root = os.environ.get("ENVSUITE_DATA")
    return Path(root) if root else Path.home() / ".cache" / "envsuite"


def cache_root() -> Path:
    """Where what can be made again is kept (indices, compiled games, generated games): ``cache`` in the data root."""
    return data_root() / "cache"
