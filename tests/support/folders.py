"""Where the repository is, and what tests of several folders share."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
"""Modules that tests of several folders import, and programs that they start."""
ROOT = SUPPORT.parents[1]
