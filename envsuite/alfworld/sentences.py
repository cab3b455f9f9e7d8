"""Parses the goal of a task from its sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsuite.core.errors import UsageError

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The verb of a treatment, and the type of the receptacle that it needs."""

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
"""Family, verb of the treatment, and sentence of each form; types are single words, as ``soapbottle``."""

_PATTERNS = [(family, verb, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[a-z]+)", form))) for family, verb, form in FORMS]
_PREFIX = "Your task is to: "


@dataclass(frozen=True)
class SentenceGoal:
    """The goal of a task."""

    family: str
    """One of the six families, as ``"pick_two_obj_and_place"``."""
    item: str
    """Type of the object, as ``"soapbottle"``."""
    target: str = ""
    """Type of the receptacle that it is put in; empty if it is to be examined under a lamp."""
    verb: str = ""
    """``"clean"``, ``"heat"`` or ``"cool"`` if it must be treated first."""
    count: int = 1
    """Number of objects to put in one receptacle."""
    lamp: str = ""
    """Type of the lamp to examine it under, as ``"desklamp"``; empty if it is to be put somewhere."""

    @property
    def appliance(self) -> str:
        """Type of the receptacle that the treatment needs; empty without one."""
        return APPLIANCES.get(self.verb, "")

    @staticmethod
    def parse(task: str) -> SentenceGoal:
        """Parses a task's sentence, with or without "Your task is to: " before it.

        Raises:
            UsageError: The sentence has none of the forms that games use.
        """
        sentence = task.strip().removeprefix(_PREFIX).removesuffix(".")
        for family, verb, pattern in _PATTERNS:
            if (match := pattern.fullmatch(sentence)) is not None:
                count = 2 if family == "pick_two_obj_and_place" else 1
                return SentenceGoal(family=family, verb=verb, count=count, **match.groupdict())
        forms = "\n".join(f"  {form}" for _, _, form in FORMS)
        raise UsageError(f"the task {task!r} has none of the forms that this expert knows:\n{forms}")
