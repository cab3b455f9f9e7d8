"""Parses the text of a turn into facts."""

from __future__ import annotations

import re
from dataclasses import dataclass

INTRODUCTION = "-= Welcome to TextWorld, ALFRED! =-"
"""The beginning of every game's first text."""
NOTHING_HAPPENS = "Nothing happens."
"""The answer to a command that is not admissible."""

_THING = r"[a-z]+(?: \d+)?"
_LIST = r"(nothing|an? [a-z][^.]*)"
_INSIDE = re.compile(rf"(?:On the ({_THING})|The ({_THING}) is open\. In it), you see {_LIST}\.")
_CLOSED = re.compile(rf"(?:The ({_THING}) is closed|You close the ({_THING}))\.")
_TAKEN = re.compile(rf"You pick up the ({_THING}) from the ({_THING})\.")
_PLACED = re.compile(rf"You move the ({_THING}) to the ({_THING})\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the ({_THING}) using the ({_THING})\.")
_CARRIED = re.compile(rf"You are carrying: an? ({_THING})\.|You are not carrying anything\.")
_ROOM = re.compile(rf"Looking quickly around you, you see {_LIST}\.")
_LISTED = re.compile(rf"\ban? ({_THING})")


@dataclass(frozen=True)
class Reading:
    """The facts in one text."""

    first: bool
    """Whether the text is the first of a game."""
    refused: bool
    """Whether the command was refused."""
    room: tuple[str, ...]
    """Receptacles of the room, if all are listed."""
    inside: tuple[tuple[str, tuple[str, ...]], ...]
    """Receptacles whose contents are listed, each with these."""
    closed: tuple[str, ...]
    """Receptacles that are closed."""
    taken: tuple[str, str] | None
    """The object that was taken, and from where."""
    placed: tuple[str, str] | None
    """The object that was put down, and where."""
    treated: tuple[str, str] | None
    """``"clean"``, ``"heat"`` or ``"cool"``, and the object that was treated."""
    carried: str | None
    """The object that is held, ``""`` for none, ``None`` if the text does not tell."""


def kind(name: str) -> str:
    """Returns the type of an object: ``"soapbottle"`` for ``"soapbottle 2"``."""
    return name.partition(" ")[0]


def read(text: str) -> Reading:
    """Returns the facts in ``text``; ignores what it cannot parse."""
    inventory, room, treatment = _CARRIED.search(text), _ROOM.search(text), _TREATED.search(text)
    return Reading(
        first=text.startswith(INTRODUCTION),
        refused=text.strip() == NOTHING_HAPPENS,
        room=_names_in(room[1]) if room else (),
        inside=tuple((match[1] or match[2], _names_in(match[3])) for match in _INSIDE.finditer(text)),
        closed=tuple(match[1] or match[2] for match in _CLOSED.finditer(text)),
        taken=_pair(_TAKEN, text),
        placed=_pair(_PLACED, text),
        treated=(treatment[1], treatment[2]) if treatment else None,
        carried=(inventory[1] or "") if inventory else None,
    )


def _names_in(text: str) -> tuple[str, ...]:
    return tuple(_LISTED.findall(text))


def _pair(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    match = pattern.search(text)
    return (match[1], match[2]) if match else None
