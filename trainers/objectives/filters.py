"""Filters: which step rows are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainers.estimators.shared import episode_codes, episode_returns, first_rows, group_codes, group_statistics
from trainers.registry import Registry
from trainers.steps import StepTable


class Filter(Protocol):
    """Which rows to keep: its settings are its fields."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True where the row is kept, shape (N,)."""
        ...


FILTERS: Registry[Filter] = Registry("filter")


@FILTERS.register("zero_variance")
@dataclass(frozen=True)
class ZeroVariance:
    """Drop the groups whose episodes all have the same return (DAPO, section 3.2): they have nothing to compare."""

    def __call__(self, steps: StepTable) -> NDArray[np.bool_]:
        """True for the rows of groups with different returns."""
        stats = group_statistics(
            episode_returns(steps), group_codes(steps.group_id), samples=first_rows(episode_codes(steps))
        )
        return np.asarray(stats.std > 0.0, np.bool_)
