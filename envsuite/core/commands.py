"""The commands of ``envsuite``: what each is, and how other packages add theirs."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "envsuite.commands"
"""Entry points by which other packages add commands; each names a mapping of names to :class:`Command`."""


@dataclass(frozen=True)
class Command:
    """A command: its line in lists, and where its code is, which is imported when it runs."""

    help: str
    """Its line in the list of commands."""
    entry: str
    """``"module"``, with ``add_arguments(parser)``, ``run(arguments)``, which returns the exit status, and perhaps
    ``EXAMPLES``; or ``"module:function"``, which takes the words after the command's name and returns the status."""
    description: str = ""
    """Text at the head of the help of a ``"module"``; without it, :attr:`help`."""
