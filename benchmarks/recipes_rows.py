"""What ``benchmarks.recipes`` trains: configs/textcraft.yaml at half its batch, with each recipe's method section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainers.credit.recipes import recipe, recipes

ROOT = Path(__file__).resolve().parents[1]
CRAFTING = ROOT / "configs" / "textcraft.yaml"
LAST = ("hgpo+scpo", "bipace+scpo", "gigpo+spear")
"""Compositions, which are trained when all else is done."""
TASKS = 8
"""Per iteration; configs/textcraft.yaml has 16."""
PAPER_ITERATIONS, PAPER_TASKS = 200, 16
"""Over how many iterations SPEAR's reward for tool calls fades away, and the groups of each: what it gives in
iterations, or in episodes of so many, is scaled from here to the size of the run."""
REFILLS = 2
"""Most further rounds of rollout for DAPO, whose recipe has ten: it bounds what an iteration costs."""


@dataclass(frozen=True)
class Row:
    """A method that is trained."""

    name: str
    """As tables and figures have it."""
    folder: str
    """Of its runs."""
    recipe: str
    method: Mapping[str, Any] = field(default_factory=dict)
    """What is laid over the recipe."""


def rows(iterations: int) -> list[Row]:
    """Every recipe that there is a file of and that plays, configs/textcraft.yaml's own method, and :data:`LAST`.

    Args:
        iterations: Of a run; what papers give for runs of another length is scaled to it.
    """
    quick: Mapping[str, Any] = yaml.safe_load(CRAFTING.read_text(encoding="utf-8"))
    own = Row(f"{quick['recipe']}, as in configs/textcraft.yaml", "textcraft", quick["recipe"], quick["method"])
    named = [recipe(name).name for name, entry in recipes().items() if entry.pool is None]
    return [*(_row(name, iterations) for name in named), own, *(_row(name, iterations) for name in LAST)]


def _row(name: str, iterations: int) -> Row:
    method: dict[str, Any] = {"shapers": {"invalid_action_penalty": {"coef": 0.0}}}
    written = recipe(name).method
    if "spear" in written.get("shapers", {}):
        method["shapers"]["spear"], method["replay"] = scaled_spear(written, iterations, TASKS)
    if "zero_variance" in written.get("filters", {}):
        method["filters"] = {"zero_variance": {"refill_rounds": REFILLS}}
    return Row(name, name, name, method)


def scaled_spear(written: Mapping[str, Any], iterations: int, tasks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns SPEAR's shaper and replay for short runs.

    Args:
        written: The section ``method`` of its recipe.
        iterations: Of the run.
        tasks: Groups of an iteration.
    """
    share, replay = iterations / PAPER_ITERATIONS, written["replay"]
    size = round(share * tasks / PAPER_TASKS * replay["size"])
    shaper = {"decay": round(share * written["shapers"]["spear"]["decay"])}
    return shaper, {"size": max(1, size), "warmup": round(share * replay["warmup"])}


def settings(row: Row, iterations: int) -> dict[str, Any]:
    """A run of ``row`` as a configuration file has it: configs/textcraft.yaml, its method section replaced.

    Success on held-out tasks is measured afterwards, once, and not by the run. Smaller micro-batches change no result;
    with one thread they take a fifth less time.
    """
    quick: dict[str, Any] = yaml.safe_load(CRAFTING.read_text(encoding="utf-8"))
    return {
        **quick,
        "recipe": row.recipe,
        "method": dict(row.method),
        "iterations": iterations,
        "rollout": {**quick["rollout"], "tasks": TASKS},
        "evaluation": {**quick["evaluation"], "envs": []},
        "optim": {**quick["optim"], "tokens_per_microbatch": 2048},
        "checkpoint_every": 2,
        "keep_checkpoints": 1,
        "episodes_every": 0,
        "report": False,
    }


def evaluation_settings() -> dict[str, Any]:
    """What final weights are measured with: as configs/textcraft.yaml measures."""
    quick: dict[str, Any] = yaml.safe_load(CRAFTING.read_text(encoding="utf-8"))
    return {name: quick[name] for name in ("model", "prompt", "rollout", "evaluation")}
