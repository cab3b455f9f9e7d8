"""Where an environment lies on the map of the experiment on credit assignment, and what was measured there.

The map is ``map.json`` here, written by ``python -m research.credit lookup``; ``docs/credit.md`` tells how it was made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

ORACLE = "exact"
"""Credit that no method knows, the most that credit assignment could add."""
FAR = 1.5
"""Distance beyond which an environment is off the map."""
RARE = 0.01
"""Success, and failure, that nothing is told below."""
AXES: Mapping[str, Callable[[float], float]] = {
    "median_length": math.log2,
    "success": lambda share: math.log((share + RARE) / (1.0 - share + RARE)),
    "effective_decisions": lambda count: math.log2(max(count, 1.0)),
}
"""Measures of a diagnosis that tell where it lies, on scales on which a doubling, or one unit of logit, is 1."""


@dataclass(frozen=True)
class Spot:
    """A cell of the map."""

    name: str
    measures: Mapping[str, float | None]
    """Those of :data:`AXES`, of its base model; ``None`` where they could not be told."""
    gain: Mapping[str, Sequence[float]]
    """Points of area above GRPO's by method: mean, and ends of the 95 % interval."""


@dataclass(frozen=True)
class Map:
    """The cells, and whether the choice of the nearest one's best method holds elsewhere."""

    spots: Sequence[Spot]
    usual: str
    """The method that is best on average."""
    suggests: bool
    """Whether the nearest cell's best method beat :attr:`usual` on cells that were held out."""
    tested: str
    """How that was found, in a sentence."""


def load() -> Map:
    """Returns the map of the package."""
    content: dict[str, Any] = json.loads((files(__package__) / "map.json").read_text(encoding="utf-8"))
    return Map(**{**content, "spots": [Spot(**spot) for spot in content["spots"]]})


def distance(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> float:
    """Returns the root mean square of the differences on axes that both have; infinity without length or success."""
    squares = []
    for name, scale in AXES.items():
        here, there = first.get(name), second.get(name)
        if here is not None and there is not None:
            squares.append((scale(here) - scale(there)) ** 2)
        elif name != "effective_decisions":
            return math.inf
    return math.sqrt(sum(squares) / len(squares))


def nearest(spots: Sequence[Spot], measures: Mapping[str, float | None]) -> Spot | None:
    """Returns the cell that measures are nearest to; ``None`` where all are far."""
    best = min(spots, key=lambda spot: distance(spot.measures, measures), default=None)
    return best if best is not None and distance(best.measures, measures) <= FAR else None


def best_of(spot: Spot) -> str:
    """Returns the method with the greatest gain of those above 0 beyond chance; ``grpo`` where there is none."""
    gains = {arm: gain[0] for arm, gain in spot.gain.items() if arm != ORACLE and gain[1] > 0.0}
    return max({"grpo": 0.0, **gains}.items(), key=lambda pair: pair[1])[0]


def describe_nearest(atlas: Map, measures: Mapping[str, float | None]) -> list[str]:
    """Returns lines for a reader: the nearest cell, what was measured there, and a suggestion or why there is none."""
    if not atlas.spots:
        return []
    spot = nearest(atlas.spots, measures)
    if spot is None:
        return ["map: no cell is near, so it says nothing of this environment (docs/credit.md)"]
    gains = ", ".join(f"{arm} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for arm, (mean, low, high) in spot.gain.items())
    advice = f"suggested: {best_of(spot)}" if atlas.suggests else f"no method is suggested: {atlas.tested}"
    return [f"map: nearest is {spot.name}; points of area above GRPO there: {gains}", advice]
