"""Recipes: named compositions of method settings, as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from envsuite.core.errors import unknown


@dataclass(frozen=True)
class Recipe:
    """One file of this folder."""

    name: str
    description: str
    """One line."""
    paper: str
    method: dict[str, Any]
    """Settings of the ``method`` section."""


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name, sorted."""
    found = {}
    for file in sorted(files(__name__).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            name = file.name.removesuffix(".yaml")
            found[name] = Recipe(name, **yaml.safe_load(file.read_text(encoding="utf-8")))
    return found


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UnknownName: There is none; the message lists what exists.
    """
    if name not in recipes():
        raise unknown("recipe", name, recipes())
    return recipes()[name]
