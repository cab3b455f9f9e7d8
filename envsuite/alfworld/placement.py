"""Prior probabilities of where objects are in an ALFRED house, for those who search them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files


def _read() -> dict[str, dict[str, float]]:
    """Reads ``placement.txt``."""
    probabilities = {}
    for line in (files("envsuite.alfworld") / "placement.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            kind, _, row = line.partition(": ")
            probabilities[kind] = {place: int(percent) / 100 for place, percent in map(str.split, row.split(", "))}
    return probabilities


PROBABILITIES: Mapping[str, Mapping[str, float]] = _read()
"""Type of an object -> type of a receptacle -> probability that one such receptacle holds such an object."""
OPENABLE: Mapping[str, float] = {"cabinet": 0.8, "drawer": 0.85, "fridge": 1.0, "microwave": 1.0, "safe": 0.65}
"""Type of a receptacle -> probability that it can be opened, and so is closed in the initial state."""
RECEPTACLES = frozenset(PROBABILITIES["*"])
"""Types of receptacles."""
MIN_PROBABILITY = 0.004
"""Lower bound: no receptacle is excluded."""


def probability(item: str, receptacle: str) -> float:
    """Returns the probability that a receptacle of type ``receptacle`` holds an object of type ``item``."""
    usual = PROBABILITIES["*"].get(receptacle, 0.0)
    # No such object was seen in such a receptacle: perhaps by chance, so a quarter of the mean over all types.
    return max(PROBABILITIES[item].get(receptacle, usual / 4) if item in PROBABILITIES else usual, MIN_PROBABILITY)
