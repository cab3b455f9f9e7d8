"""The teacher to imitate on ALFWorld, and the words that it takes."""

from __future__ import annotations

from envsuite.alfworld import vocabulary
from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.placement import PROBABILITIES
from envsuite.alfworld.player import ALFWorldPlanner
from envsuite.alfworld.reading import INTRODUCTION, NOTHING_HAPPENS
from envsuite.alfworld.sentences import FORMS
from envsuite.core.practice import Practice
from envsuite.prompting.phrases import phrases


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(ALFWorldPlanner, texts)


def texts() -> list[str]:
    """Returns the texts of ALFWorld: all types of objects, and every kind of sentence."""
    kinds = {kind.lower() for row in (vocabulary.CONTAINS, *vocabulary.CONTAINS.values()) for kind in row}
    kinds |= {*PROBABILITIES, *(k for row in PROBABILITIES.values() for k in row), *map(str.lower, vocabulary.FIXED)}
    return [
        " ".join(sorted(kinds - {"*"})),
        *(form for _, _, form in FORMS),
        INTRODUCTION,
        NOTHING_HAPPENS,
        *_HOUSE.splitlines(),
        *phrases(ALFWorld.tools, "tags"),
        "Invalid action",
    ]


_HOUSE = """
Your task is to: find two x and put them in y. Commands: close x 1 | use x 1 | help
You are in the middle of a room. Looking quickly around you, you see a x 1, and a y 1. Next to it, you see nothing.
You are facing the x 1. You arrive at x 1. On the x 1, you see nothing. The x 1 is closed. The x 1 is open. In it, you
You open the x 1. You close the x 1. You pick up the x 1 from the y 1. You move the x 1 to the y 1.
You are carrying: a x 1. You are not carrying anything. You turn on the x 1. You turn off the x 1. any switch
You heat the x 1 using the y 1. You cool the x 1 using the y 1. You clean the x 1 using the y 1. You sliced the x 1.
There's nothing special about x 1. This is a normal x 1. This is a hot, cold, cool and clean sliced x 1. This x 1 is off
go to, take, examine, look, inventory, slice x 1 with y 1. x 1: clean in y 1, put in y 1. use x in y
find x and y: A x 1, B y 1, C x 2, D y 2, E x 3, F y 3. x none. B
Available commands: look around your current location; check your current inventory; move to a receptacle (object)
open a receptacle; close; take an object from a receptacle; place an object in or on a receptacle; (something)
examine a receptacle or an object; use; heat an object using a receptacle; slice an object using a sharp object
"""
