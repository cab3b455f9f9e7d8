"""Comparison within groups: the settings that all group-relative methods share, and their computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError, PydanticKnownError

from trainers.credit.estimators.base import Estimator
from trainers.credit.estimators.groups import (
    ROUNDING,
    Floats,
    Ints,
    episode_codes,
    first_rows,
    group_codes,
    group_diagnostics,
    group_statistics,
)
from trainers.credit.estimators.returns import row_score
from trainers.settings import NotNegative, check_fields
from trainers.steps import StepTable
from trainers.steps.columns import ROW_SCORE

Normalise = Literal["std", "mean"]
Weigh = Literal["episode", "step"]
Singleton = Literal["zero", "raw"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "verl": {"singleton": "raw"},
    "verl-agent": {"weigh": "step", "singleton": "raw"},
    "steppo": {"singleton": "raw"},
    "trl": {"epsilon": 1e-4},
}
"""Where the authors' code differs from the papers, by its name; the rest is the default of each method."""


@dataclass(frozen=True)
class StateComparison:
    """A = (x - mean) / (std + ε) within groups; 0 where all values of a group are equal."""

    normalise: Normalise = "std"
    """``std`` divides by the group's standard deviation; ``mean`` does not."""
    weigh: Weigh = "episode"
    """The samples of the statistics over episodes: each episode once (papers), or each step row (verl-agent)."""
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """Taken from the standard deviation's denominator; the papers leave it open, verl, verl-agent and TRL have 1."""
    epsilon: NotNegative = 1e-6
    """Added to the standard deviation; the papers have none, verl has 1e-6, TRL 1e-4."""
    singleton: Singleton = "zero"
    """The advantage of an episode alone in its group: 0, or its raw return (verl, verl-agent)."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_preset(cls, preset: str, **overrides: Any) -> StateComparison:
        """The preset of that name, with other settings on top."""
        return cls(**{**PRESETS[preset], **overrides})

    def within(
        self, values: Floats, group: Ints, *, samples: Ints | None = None, singleton: Singleton = "zero"
    ) -> Floats:
        """(value - mean of its group) / (std of its group + ε), shape (N,).

        Args:
            values: Shape (N,).
            group: Codes of shape (N,).
            samples: Rows that the statistics are taken over; all by default.
            singleton: The result for a group of one sample: 0, or its raw value (over 1 + ε, as verl does).
        """
        stats = group_statistics(values, group, ddof=self.ddof, samples=samples)
        deviation = values - stats.mean
        # HGPO asks which rows are on the mean; rounding must not decide it.
        deviation[abs(deviation) <= ROUNDING * np.maximum(1.0, abs(values))] = 0.0
        divides, alone = self.normalise == "std", stats.size == 1
        scale = stats.std + self.epsilon if divides else np.ones(len(values))
        # A zero standard deviation without epsilon: every value sits on the mean, and 0 / 1 says so.
        out: Floats = deviation / np.where(scale == 0.0, 1.0, scale)
        if singleton == "raw":
            return np.where(alone, values / (1.0 + self.epsilon) if divides else values, out)
        return np.where(alone, 0.0, out)

    def over(self, units: Units) -> Floats:
        """The returns of ``units`` relative to their groups, one number per unit."""
        return self.within(units.returns, units.group, samples=units.samples, singleton=self.singleton)

    def episodes(self, steps: StepTable) -> tuple[Floats, dict[str, float]]:
        """Each row's return of the episode relative to its group, shape (N,), and diagnostics of the groups."""
        units = units_of(steps, self.weigh)
        return units.rows(self.over(units)), units.diagnostics()


def laid_over(default: StateComparison, *reads: str) -> BeforeValidator:
    """The check of a setting that is a mapping, or the name of a preset, over the method's own default.

    Args:
        default: The method's own.
        reads: Fields that the method reads, if not all. In a preset others are left out; given otherwise, one that
            differs from the default is refused.
    """

    def read(setting: object) -> object:
        if isinstance(setting, str):
            if setting not in PRESETS:
                raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, PRESETS))})
            setting = {name: value for name, value in PRESETS[setting].items() if not reads or name in reads}
        if isinstance(setting, Mapping):
            setting = {**vars(default), **setting}
        options = vars(setting) if isinstance(setting, StateComparison) else setting
        if reads and isinstance(options, Mapping):
            unread = [name for name, own in vars(default).items() if name not in reads and options[name] != own]
            if unread:
                names = {"unread": ", ".join(unread), "reads": ", ".join(reads)}
                raise PydanticCustomError("unread", "without {unread}: read here are only {reads}", names)
        return setting

    return BeforeValidator(read)


STANDARD = StateComparison()
"""Values minus the mean of their group, over its standard deviation."""
CENTRED = StateComparison(normalise="mean")
"""Values minus the mean of their group."""

Compared = Annotated[StateComparison, laid_over(STANDARD)]
"""The setting of a method that reads all of a comparison."""
Centred = Annotated[StateComparison, laid_over(CENTRED, "weigh", "singleton")]
"""The setting of a method that never divides by the deviation of a group."""
ComparedSteps = Annotated[StateComparison, laid_over(STANDARD, "normalise", "ddof", "epsilon")]
"""The setting of a term over steps: each row is a sample, and a row alone in its group gets 0."""


class Comparing(Estimator):
    """A method that compares the members of a group."""

    compare: StateComparison

    @property
    def credits_lone_episodes(self) -> bool:
        """Whether the setting ``singleton`` gives an episode alone in its group its raw return."""
        return self.compare.singleton == "raw"


@dataclass(frozen=True)
class Units:
    """The samples of a comparison of episodes: one unit per episode, or one per row where rows differ."""

    returns: Floats
    """R(τ) of each unit, shape (M,)."""
    group: Ints
    """Code of its group, shape (M,)."""
    samples: Ints | None
    """Units that group statistics count; None: all."""
    once: Ints
    """One unit of each episode."""
    episode: Ints
    """Episode of each row, shape (N,)."""

    def rows(self, values: Floats) -> Floats:
        """One value per row from one per unit."""
        return values if len(values) == len(self.episode) else values[self.episode]

    def diagnostics(self) -> dict[str, float]:
        """Diagnostics of the groups of episodes (:func:`group_diagnostics`)."""
        return group_diagnostics(self.returns[self.once], self.group[self.once], "group")


def units_of(steps: StepTable, weigh: Weigh) -> Units:
    """The units of ``steps``; group statistics count each episode once, or (``"step"``) every step row."""
    episode = episode_codes(steps)
    once = first_rows(episode)
    returns = np.bincount(episode, steps.reward).astype(np.float64)
    if weigh == "episode" and ROW_SCORE not in steps.extra:
        return Units(returns, group_codes(steps.group_id[once]), None, np.arange(len(once)), episode)
    samples = once if weigh == "episode" else None
    return Units(returns[episode] + row_score(steps), group_codes(steps.group_id), samples, once, episode)
