"""Settings of alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from envsuite.core.errors import unknown
from trainers.run.features.alarms.rules import RULES
from trainers.settings import AtLeastOne, Text

AlarmAction = Literal["warn", "pause", "return", "ignore"]


@dataclass(frozen=True)
class AlarmRuleConfig:
    """Changes of an alarm's rule."""

    bound: float | None = None
    """Its bound; by default that of the table."""
    patience: AtLeastOne | None = None
    """Iterations, one after the other, that its sign must last."""
    action: AlarmAction | None = None
    """Answer to the alarm; by default alarms.action."""


@dataclass(frozen=True)
class AlarmConfig:
    """Signs of a collapse that are watched (docs/alarms.md)."""

    action: AlarmAction = "warn"
    """``pause``: the run also ends, with a checkpoint and status 3; ``return``: it also goes back to its best
    checkpoint of before the sign, and goes on from there; ``ignore``: the sign is not watched."""
    rules: dict[str, AlarmRuleConfig] = field(default_factory=dict)
    """Changes of rules, by their names."""
    webhook: Text | None = None
    """Address that each alarm is sent to as JSON, or the name of an environment variable that holds it: the settings
    are in the report and in trackers, where a secret address should not be."""

    def __post_init__(self) -> None:
        for name in self.rules:
            if name not in RULES:
                raise unknown("alarm", name, RULES)

    def action_of(self, name: str) -> AlarmAction:
        """Returns what is done about an alarm."""
        own = self.rules.get(name)
        return self.action if own is None or own.action is None else own.action

    @property
    def goes_back(self) -> bool:
        """Whether some alarm takes the run back."""
        return any(self.action_of(name) == "return" for name in RULES)
