"""The result of one check of the installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "absent", "warning", "broken"]
"""``absent``: not there, and nothing is wrong with that. ``warning``: it works, but something may fail later."""


@dataclass(frozen=True)
class InstallationCheck:
    """One thing that was looked at."""

    section: str
    name: str
    status: Status
    found: str
    """Version, number or reason that was found, in one line."""
    remedy: str = ""
    """How to mend it, by a command where one does; empty where nothing has to be mended."""
    required: bool = False
    """Whether the quick start needs it."""

    @property
    def stops_quickstart(self) -> bool:
        """Whether the quick start cannot run because of it."""
        return self.required and self.status in ("absent", "broken")
