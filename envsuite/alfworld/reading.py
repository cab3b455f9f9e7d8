"""What a game's text says, as facts."""

from __future__ import annotations

import re
from dataclasses import dataclass

INTRODUCTION = "-= Welcome to TextWorld, ALFRED! =-"
"""How the first text of every game begins."""
NOTHING_HAPPENS = "Nothing happens."
"""What a game says to a command that it does not take."""

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
    """The facts of one text."""

    first: bool
    """The text is the first of a game."""
    refused: bool
    """The game did not take the command."""
    room: tuple[str, ...]
    """Receptacles of the room, if all are listed."""
    inside: tuple[tuple[str, tuple[str, ...]], ...]
    """Receptacles that can be looked into, each with what is in or on it."""
    closed: tuple[str, ...]
    """Receptacles that are closed."""
    taken: tuple[str, str] | None
    """Object that was picked up, and where from."""
    placed: tuple[str, str] | None
    """Object that was put down, and where."""
    treated: tuple[str, str] | None
    """``"clean"``, ``"heat"`` or ``"cool"``, and the object to which that was done."""
    carried: str | None
    """Object in the hand, ``""`` for an empty one, ``None`` if the text says nothing of it."""


def kind(name: str) -> str:
    """The type of a thing: ``"soapbottle 2"`` is a ``"soapbottle"``."""
    return name.partition(" ")[0]


def read(text: str) -> Reading:
    """The facts that ``text`` states; what it does not understand, it leaves out."""
    carried, room, treated = _CARRIED.search(text), _ROOM.search(text), _TREATED.search(text)
    return Reading(
        first=text.startswith(INTRODUCTION),
        refused=text.strip() == NOTHING_HAPPENS,
        room=_things(room[1]) if room else (),
        inside=tuple((found[1] or found[2], _things(found[3])) for found in _INSIDE.finditer(text)),
        closed=tuple(found[1] or found[2] for found in _CLOSED.finditer(text)),
        taken=_pair(_TAKEN, text),
        placed=_pair(_PLACED, text),
        treated=(treated[1], treated[2]) if treated else None,
        carried=(carried[1] or "") if carried else None,
    )


def _things(listed: str) -> tuple[str, ...]:
    return tuple(_LISTED.findall(listed))


def _pair(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    found = pattern.search(text)
    return (found[1], found[2]) if found else None
