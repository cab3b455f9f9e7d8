"""The cells of the map: a world, how well its base model plays, and how it is trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from envsuite.core.errors import unknown

ROOT = Path(__file__).resolve().parents[2]
BASES = ROOT / "runs" / "credit" / "bases"
PROMPT: Mapping[str, Any] = {
    "codec": "tags", "think": False, "instructions": False, "commands": False, "memory": "window(0)",
    "template": str(ROOT / "configs" / "bifurcation.jinja"),
}  # fmt: skip
HEADS = ((0, 0, 14), (0, 1, 15), (0, 2, 16), (0, 3, 17))
"""Where the first layer looks back to at first: at the words that tell a place's kind."""
SIZES: Mapping[str, Mapping[str, int]] = {
    "small": {"layers": 2, "width": 64, "feed_forward": 128},
    "large": {"layers": 6, "width": 160, "feed_forward": 448},
}
RATES = (2.0e-4, 4.0e-4, 8.0e-4, 1.6e-3)
"""Learning rates that each arm's tuning tries, with both values of its setting."""
HELD_OUT = 16
"""Tasks of the split ``test`` that a policy is measured on before and after."""


@dataclass(frozen=True)
class Cell:
    """A world and the success of its base model, which are dials of their own."""

    env: ClassVar[str] = "Bifurcation-v0"
    prompt: ClassVar[Mapping[str, Any]] = PROMPT
    exact: ClassVar[bool] = True
    """Whether the values of its states are known."""

    name: str
    horizon: int
    decisions: int
    start: float
    """Success of the base model that imitation aims at."""
    dials: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the environment."""
    tuned: str = ""
    """Name of the cell whose tuning it takes; empty: its own."""
    size: str = "small"
    base_seed: int = 0
    """Seed of its base model's training."""
    slack: int = 2
    """Steps that an episode may have beyond the places."""
    tasks: int = 4
    group: int = 8
    iterations: int = 12

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {"horizon": self.horizon, "decisions": self.decisions, **self.dials}

    @property
    def tuning(self) -> str:
        """Name of the cell whose tuning it takes."""
        return self.tuned or self.name

    @property
    def steps(self) -> int:
        """Most steps of an episode."""
        return self.horizon + self.slack

    @property
    def errs(self) -> float:
        """Share of mistakes of the player that the base model imitates: each fork is passed as often as any other."""
        return float(1.0 - self.start ** (1.0 / self.decisions))

    def imitation(self) -> dict[str, Any]:
        """Returns the settings of the base model's training."""
        shape: dict[str, Any] = {"heads": 4, "key_heads": 4, "head_width": 16, "context": 128}
        shape["look_back"] = [*map(list, HEADS)]
        stage: dict[str, Any] = {"steps": 400, "max_steps": self.steps, "lr": 5.0e-3, "lr_end": 3.0e-4}
        stage["games"] = [{"kwargs": self.kwargs, "errs": round(self.errs, 6)}]
        return {
            "seed": self.base_seed, "env": self.env,
            "architecture": {**shape, **SIZES[self.size]}, "prompt": dict(self.prompt),
            "batch": 64, "stages": [stage],
        }  # fmt: skip

    @property
    def base(self) -> Path:
        """Folder of the base model, named by the settings of its training."""
        text = json.dumps({**self.imitation(), "prompt": ""}, sort_keys=True)
        return BASES / hashlib.sha256(text.encode()).hexdigest()[:12]

    def panel(self, seed: int) -> list[str]:
        """Returns the tasks of all iterations of a run."""
        return [f"train-{(seed * self.tasks + n) % 400}" for n in range(self.tasks)]

    def held_out(self) -> list[str]:
        """Returns the tasks of the split ``test`` that a policy is measured on before and after."""
        return [f"test-{n}" for n in range(HELD_OUT)]


@dataclass(frozen=True)
class Level(Cell):
    """A level of BabyAI-v0: a world that is not ours; success is sampled, and nobody knows the values."""

    env = "BabyAI-v0"
    prompt: ClassVar[Mapping[str, Any]] = {**PROMPT, "template": str(ROOT / "configs" / "babyai.jinja")}
    exact = False

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return dict(self.dials)

    def imitation(self) -> dict[str, Any]:
        """Returns the settings of the base model's training, on worlds that are in no split of the run's."""
        shape = {"layers": 4, "width": 64, "heads": 4, "key_heads": 4, "head_width": 16, "feed_forward": 160}
        worlds = {"kwargs": {**self.kwargs, "source": "generated", "worlds": 100_000}}
        first = {"steps": 600, "max_steps": 14, "lr": 4.0e-3, "games": [{**worlds, "player": {"stray": 0.25}}]}
        erring = {"steps": 60, "max_steps": 20, "lr": 1.0e-3, "games": [{**worlds, "errs": 0.15}]}
        stages = [{**stage, "lr_end": 3.0e-4} for stage in (first, erring)]
        return {
            "seed": self.base_seed, "env": self.env,
            "architecture": {**shape, "context": 192}, "prompt": dict(self.prompt),
            "batch": 64, "epochs": 4, "stages": stages,
        }  # fmt: skip

    def panel(self, seed: int) -> list[str]:
        """Returns the tasks of all iterations of a run."""
        return [f"{self.dials['level']}/{(seed * self.tasks + n) % 1000}" for n in range(self.tasks)]

    def held_out(self) -> list[str]:
        """Returns the tasks of the split ``test`` that a policy is measured on before and after."""
        return [f"{self.dials['level']}/{1100 + n}" for n in range(HELD_OUT)]


def _named(horizon: int, decisions: int, start: float, **more: Any) -> Cell:
    name = f"h{horizon}-k{decisions}-p{round(100 * start)}"
    return Cell(name, horizon, decisions, start, **more)


BABYAI = Level("babyai", 20, 2, 0.15, {"level": "PutNextLocalS5N3"}, slack=0)
"""Among three objects: which to take, and next to which to put it; its tuning has other tasks than stage 2."""
TUNING = {cell.name: cell for cell in (_named(8, 3, 0.3), _named(16, 3, 0.3), _named(32, 3, 0.3), BABYAI)}
TUNING["h8-k3-p30-large"] = replace(TUNING["h8-k3-p30"], name="h8-k3-p30-large", size="large")
"""One for each horizon, which no other stage has, the world that is not ours, and the larger model."""
MAP = {
    cell.name: cell
    for cell in (
        _named(horizon, decisions, start, tuned=f"h{horizon}-k3-p30")
        for horizon in (8, 16, 32)
        for decisions in (2, 5)
        for start in (0.15, 0.4)
    )
}
"""The coarse map."""


def cell_of(name: str) -> Cell:
    """Returns a cell by its name; ``NAME:OPTION=VALUE,…`` changes dials, or fields, of one.

    Raises:
        UnknownName: There is none of the name.
    """
    name, _, changes = name.partition(":")
    known = {**TUNING, **MAP}
    if name not in known:
        raise unknown("cell", name, known)
    cell = replace(known[name], tuned=known[name].tuning)
    for change in filter(None, changes.split(",")):
        key, _, text = change.partition("=")
        value = json.loads(text)
        if key in {one.name for one in fields(cell)}:
            cell = replace(cell, **{key: value})
        else:
            cell = replace(cell, dials={**cell.dials, key: value})
    if cell.size != known[name].size and cell.tuned == known[name].tuning:
        cell = replace(cell, tuned=f"{cell.tuned}-{cell.size}")
    return replace(cell, name=f"{name}:{changes}") if changes else known[name]
