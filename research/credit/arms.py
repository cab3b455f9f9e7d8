"""The arms: methods, each with the two values of one setting that its paper tunes; and the settings of a run."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recipes_rows import scaled_spear
from envsuite.core.errors import UsageError, unknown
from research.credit.cells import ROOT, Cell
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.recipes import recipe
from trainers.settings import checked
from trainers.settings.words import read_file

OBJECTIVE: Mapping[str, Any] = {
    "ratio": "token", "aggregation": "seq-mean-token-mean", "average": "steps", "clip_low": 0.2, "clip_high": 0.2,
    "kl": "none", "kl_coef": 0.0, "entropy_coef": 0.0,
}  # fmt: skip
"""The objective of all arms."""
STEPS: Mapping[str, Any] = {"minibatches": 8, "warmup": 24}
"""Eight optimiser steps an iteration, of which the first 24 warm up. With one large step of AdamW for
each, policies collapse at the rates at which they learn fastest."""
REFERENCE, CEILING, CONTROL = "grpo", "exact", "permuted"


@dataclass(frozen=True)
class Arm:
    """A method, and what its tuning tries."""

    recipe: str
    options: tuple[Mapping[str, Any], Mapping[str, Any]]
    """Two of the section ``method``, laid over the recipe's."""
    estimator: str = ""
    """One of this package's, in the place of the recipe's."""


def _of(name: str, first: Mapping[str, Any], second: Mapping[str, Any], **more: Any) -> Arm:
    return Arm(name, ({"options": first}, {"options": second}), **more)


_GIGPO = [{"of": "gigpo", "options": {"step_weight": weight, "gamma": 0.95}} for weight in (1.0, 3.0)]
ARMS: Mapping[str, Arm] = {
    REFERENCE: _of("grpo", {"compare": {"normalise": "std"}}, {"compare": {"normalise": "mean"}}),
    CEILING: _of("grpo", {"scale": "none"}, {"scale": "batch"}, estimator="exact"),
    "gigpo": _of("gigpo", {"step_weight": 1.0}, {"step_weight": 3.0}),
    CONTROL: _of("grpo", *_GIGPO, estimator="permuted"),
    "g2po": _of("g2po", {"step_weight": 1.0}, {"step_weight": 3.0}),
    "steppo": _of("steppo", {"lam": 1.0}, {"lam": 0.95}),
    "reinforce": _of("reinforce_pp", {"gamma": 1.0}, {"gamma": 0.99}),
    "hgpo": _of("hgpo", {"alpha": 1.0}, {"alpha": 0.0}),
    "scpo": Arm("gigpo+scpo", ({"shapers": {"scpo": {"alpha": 0.5}}}, {"shapers": {"scpo": {"alpha": 1.0}}})),
    "spear": Arm("grpo+spear", ({"replay": {"mask": 0.02}}, {"replay": {"mask": 0.0}})),
    "rft": _of("rft", {"weight": "one"}, {"weight": "score"}),
}
GUARDS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "k3-0.01": {"objective": {"kl": "k3", "kl_coef": 0.01}},
    "return": {"alarms": {"rules": {"invalid_actions": {"action": "return"}}}},
}
"""What is done against a collapse: a penalty of the objective, or an alarm that takes the run back to its best
checkpoint, of which each iteration writes one."""
MAPPED = (REFERENCE, CEILING, "gigpo", CONTROL, "g2po", "steppo")
"""The arms of the coarse map."""
SAMPLED = (REFERENCE, "gigpo", "g2po")
"""The arms of a world whose values nobody knows."""
CLAIMED = ("reinforce", "hgpo", "scpo", "spear")
"""The arms that stage 2 alone has, tuned for the horizons at which it has them."""


def arm_of(name: str) -> Arm:
    """Returns an arm by its name, or reads one from a YAML file: ``estimator``, ``options`` (two), and a ``recipe``.

    Raises:
        UnknownName: There is none of the name.
        ConfigError: The file describes no arm.
    """
    if name.endswith(".yaml"):
        return checked(Arm, {"recipe": REFERENCE, **read_file(name)})
    if name not in ARMS:
        raise unknown("arm", name, ARMS)
    return ARMS[name]


def source(name: str) -> Path:
    """Returns the file of an arm's estimator.

    Raises:
        UsageError: The arm is no method that others could have.
    """
    arm = arm_of(name)
    if name in (CEILING, CONTROL):
        raise UsageError(f"{name} is no method: it is there to be compared with")
    return Path(inspect.getfile(ESTIMATORS[arm.estimator or recipe(arm.recipe).method["estimator"]]))


@dataclass(frozen=True)
class Trial:
    """A run."""

    stage: str
    cell: Cell
    arm: str
    seed: int
    rate: float
    option: int
    """Which of the arm's two settings."""
    guard: str = ""
    """One of :data:`GUARDS`."""

    @property
    def key(self) -> str:
        """Its identity among the results."""
        run = f"{self.stage} {self.cell.name} {self.arm} seed {self.seed} rate {self.rate:g} option {self.option}"
        run += f" guard {self.guard}" * bool(self.guard)
        return f"{run} settings {self.digest}"

    @property
    def digest(self) -> str:
        """First digits of the SHA-256 of its settings, and of the file of a method that is not ours."""
        config = {**settings(self, ""), "model": ""}  # whose name `done` has
        own = source(self.arm).read_bytes() if self.arm not in ARMS else b""
        text = json.dumps(config, sort_keys=True).replace(str(ROOT), "")
        return hashlib.sha256(text.encode() + own).hexdigest()[:8]

    @property
    def done(self) -> tuple[str, str]:
        """The same of its result, once it has one."""
        return self.key, self.cell.base.name


def settings(trial: Trial, output: str) -> dict[str, Any]:
    """Returns the configuration of a run; tasks and random draws follow from cell and seed alone.

    Args:
        trial: The run.
        output: Folder of its files.
    """
    cell, arm = trial.cell, arm_of(trial.arm)
    world = {"id": cell.env, "split": "train", "max_episode_steps": cell.steps}
    world["kwargs"] = {**cell.kwargs, "tasks": cell.panel(trial.seed)}
    sampling = {"temperature": 1.0, "max_tokens": 5}
    other = {**world, "split": "test", "kwargs": {**cell.kwargs, "tasks": cell.held_out()}}
    measured = {"envs": [] if cell.exact else [other], "repeats": 2, "sampling": sampling}
    guard = dict(GUARDS[trial.guard])
    objective = {**OBJECTIVE, **guard.pop("objective", {})}
    return {
        "name": "run", "output": output, "seed": trial.seed, "iterations": cell.iterations, "recipe": arm.recipe,
        "model": {"path": str(cell.base)},
        "envs": [world], "prompt": dict(cell.prompt),
        "rollout": {
            "tasks": cell.tasks, "group_size": cell.group, "slots": cell.tasks * cell.group,
            "sampling": sampling, "engine_options": {"cache_tokens": 65536},
        },
        "method": _method(arm, trial.option, cell, objective), **guard,
        "optim": {"lr": trial.rate, "schedule": "constant", **STEPS, "tokens_per_microbatch": 8192},
        "evaluation": measured, "checkpoint_every": 1000, "episodes_every": 0, "report": False,
    }  # fmt: skip


def _method(arm: Arm, option: int, cell: Cell, objective: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section ``method``: one objective, no penalty, lengths scaled to the run's."""
    written, chosen = recipe(arm.recipe).method, arm.options[option]
    shapers = {"invalid_action_penalty": {"coef": 0.0}, "scale": {"factor": 1.0}}
    found: dict[str, Any] = {"objective": objective, "shapers": {**shapers, **chosen.get("shapers", {})}}
    if arm.estimator:
        found["estimator"] = arm.estimator
    if "options" in chosen:
        found["options"] = chosen["options"]
    if "replay" in chosen:
        found["shapers"]["spear"], replay = scaled_spear(written, cell.iterations, cell.tasks)
        found["replay"] = {**replay, **chosen["replay"]}
    return found
