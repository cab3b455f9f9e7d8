"""What a task asks for, read from its sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsuite.core.errors import UsageError

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The verb of a treatment, and the type of receptacle that serves for it."""

FORMS: tuple[tuple[str, str, str], ...] = (
    ("pick_and_place_simple", "", "put a {item} in {target}"),
    ("pick_and_place_simple", "", "put some {item} on {target}"),
    ("look_at_obj_in_light", "", "look at {item} under the {lamp}"),
    ("look_at_obj_in_light", "", "examine the {item} with the {lamp}"),
    ("pick_clean_then_place_in_recep", "clean", "put a clean {item} in {target}"),
    ("pick_clean_then_place_in_recep", "clean", "clean some {item} and put it in {target}"),
    ("pick_heat_then_place_in_recep", "heat", "put a hot {item} in {target}"),
    ("pick_heat_then_place_in_recep", "heat", "heat some {item} and put it in {target}"),
    ("pick_cool_then_place_in_recep", "cool", "put a cool {item} in {target}"),
    ("pick_cool_then_place_in_recep", "cool", "cool some {item} and put it in {target}"),
    ("pick_two_obj_and_place", "", "put two {item} in {target}"),
    ("pick_two_obj_and_place", "", "find two {item} and put them in {target}"),
)
"""Family, verb of the treatment, and sentence of every kind of task; types are single words, as ``soapbottle``."""

_PATTERNS = tuple(
    (family, verb, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[a-z]+)", form))) for family, verb, form in FORMS
)
_PREFIX = "Your task is to: "


@dataclass(frozen=True)
class Goal:
    """What has to be so for a task to be won."""

    family: str
    """One of ALFRED's six, as ``"pick_two_obj_and_place"``."""
    item: str
    """Type of the object, as ``"soapbottle"``."""
    target: str = ""
    """Type of the receptacle that it belongs into; empty if it is to be looked at."""
    verb: str = ""
    """``"clean"``, ``"heat"`` or ``"cool"`` if that must be done to it first."""
    count: int = 1
    """How many objects belong into one and the same receptacle."""
    lamp: str = ""
    """Type of the lamp under which to look at it, as ``"desklamp"``; empty if it is to be put somewhere."""

    @property
    def appliance(self) -> str:
        """Type of the receptacle in which to clean, heat or cool; empty if nothing of the kind is asked."""
        return APPLIANCES.get(self.verb, "")

    @staticmethod
    def parse(task: str) -> Goal:
        """The goal that a task's sentence states, with or without "Your task is to: " before it.

        Raises:
            UsageError: The sentence is not one of those that the games are made with.
        """
        sentence = task.strip().removeprefix(_PREFIX).removesuffix(".")
        for family, verb, pattern in _PATTERNS:
            if (match := pattern.fullmatch(sentence)) is not None:
                count = 2 if family == "pick_two_obj_and_place" else 1
                return Goal(family=family, verb=verb, count=count, **match.groupdict())
        known = "\n".join(f"  {form}" for _, _, form in FORMS)
        raise UsageError(f"the task {task!r} has none of the forms that this expert knows:\n{known}")
