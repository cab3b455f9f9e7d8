"""The rules of the alarms: which sign of a metric, compared with what, and what to do about it.

Bounds with a reference were fitted on healthy runs (docs/alarms.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class AlarmRule:
    """A sign of a collapse: a metric beyond a bound in several iterations, one after the other."""

    metric: str
    """One of :data:`trainers.report.metrics.METRICS`."""
    beyond: Literal["above", "below"]
    bound: float
    means: str
    """Meaning of the sign; a sentence."""
    do: str
    """Advice; a sentence."""
    reference: Literal["", "start", "most", "least"] = ""
    """``start``: the bound is relative to the median of the run's first values; ``most``, ``least``: to the greatest
    or least value so far."""
    times: bool = True
    """Whether the reference is multiplied by the bound; else the bound is added."""
    patience: int = 3
    """Number of iterations (of an evaluation's metrics: evaluations), one after the other."""
    floor: float | None = None
    """Value that must be passed, too, whatever the reference."""
    against: str = ""
    """Metric that the reference is of; by default the same."""
    minus: str = ""
    """Metric that is subtracted."""
    per: str = ""
    """Metric that is divided by."""
    rising: str = ""
    """Metric that must be above its own start, too."""
    unless: str = ""
    """Metric of iterations that are passed over where it is other than 0."""

    def value(self, values: Mapping[str, Any]) -> float | None:
        """Returns the value that is compared; ``None`` where the metrics have none."""
        parts = [values.get(name) for name in (self.metric, self.minus, self.per) if name]
        if any(part is None for part in parts) or values.get(self.unless):
            return None
        value = float(values[self.metric]) - (float(values[self.minus]) if self.minus else 0.0)
        return value / max(float(values[self.per]), 1.0) if self.per else value

    def limit(self, reference: float | None) -> float | None:
        """Returns the value that must be passed; ``None`` where it would be a multiple of 0.

        Args:
            reference: The value that the bound is relative to; ``None`` where there is none.
        """
        if reference == 0.0 and self.times:
            return None
        limit = self.bound if reference is None else reference * self.bound if self.times else reference + self.bound
        if self.floor is None:
            return limit
        return max(limit, self.floor) if self.beyond == "above" else min(limit, self.floor)

    @property
    def sign(self) -> str:
        """The sign in words, for tables and messages."""
        less, per = f" less {self.minus}" if self.minus else "", f" per {self.per}" if self.per else ""
        against = f"the {self.reference} of {self.against or 'it'}" if self.reference else ""
        if not against:
            than = f"{self.bound:g}"
        elif self.times:
            than = against if self.bound == 1.0 else f"{self.bound:g} times {against}"
        else:
            than = f"{against} {'+' if self.bound >= 0 else '-'} {abs(self.bound):g}"
        floor = "" if self.floor is None else f" and {self.floor:g}"
        rising = f", while {self.rising} is above its start" if self.rising else ""
        unless = f", where {self.unless} is 0" if self.unless else ""
        return f"{self.metric}{less}{per} {self.beyond} {than}{floor}{rising}{unless}"


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES = {name: AlarmRule(**fields) for name, fields in _TABLE.items()}
"""Every rule, by its name."""
