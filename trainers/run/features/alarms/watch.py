"""Alarms: watch the metrics of a run for signs of a collapse.

A sign is compared with absolute bounds, or with the run's own first values, and must last. An alarm is raised once,
and again only after its sign has been absent as long as it has to last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trainers.report.events import RunEvent
from trainers.run.features.alarms.rules import RULES, AlarmRule
from trainers.run.features.alarms.settings import AlarmConfig

START = 3
"""Number of first values whose median is the start of a metric; before there are so many, of those before."""


@dataclass
class _Sign:
    """State of a rule; JSON values."""

    lasts: int = 0
    """Number of last values, one after the other, with the sign."""
    since: int = 0
    """Iteration of the first of them."""
    absent: int = 0
    """Number of last values without it, while the alarm stands."""
    stands: bool = False


@dataclass
class _Reference:
    """Values of a metric that later ones are compared with; JSON values."""

    first: list[float]
    most: float
    least: float | None
    """The least value other than 0, which iterations without a signal have."""
    last: float

    def with_value(self, value: float) -> _Reference:
        least = min(candidate for candidate in (self.least, value) if candidate) if self.least or value else None
        return _Reference([*self.first, value][:START], max(self.most, value), least, value)


class Alarms:
    """Takes the metrics of each iteration, and returns the alarms that they raise.

    Args:
        config: Settings; they have been checked.
    """

    def __init__(self, config: AlarmConfig) -> None:
        self._config, self.rules = config, rules_of(config)
        self.returns = 0
        """How often an alarm took the run back."""
        self.unanswered: dict[str, int] = {}
        """Alarms that nothing was done about yet: the iteration since which the sign of each lasts."""
        self._signs = {name: _Sign() for name in self.rules}
        self._references: dict[str, _Reference] = {}

    def __call__(self, iteration: int, values: Mapping[str, Any]) -> list[RunEvent]:
        """Enters metrics, and returns events of the kind ``alarm``; what is missing or not finite is passed over.

        Args:
            iteration: Number of the iteration.
            values: Metrics by their names.
        """
        values = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        events = []
        for name, rule in self.rules.items():
            value, limit = rule.value(values), self._limit(rule)
            if value is None or limit is None:
                continue
            sign = self._signs[name]
            beyond = value > limit if rule.beyond == "above" else value < limit
            if beyond and (not rule.rising or self._rises(rule.rising, values)):
                sign.since = sign.since if sign.lasts else iteration
                sign.lasts, sign.absent = sign.lasts + 1, 0
            else:
                sign.lasts, sign.absent = 0, sign.absent + 1
                sign.stands = sign.stands and sign.absent < rule.patience
            if sign.lasts >= rule.patience and not sign.stands:
                sign.stands = True
                self.unanswered[name] = sign.since
                facts = {"alarm": name, "metric": rule.metric, "value": value, "limit": limit, "since": sign.since}
                events.append(RunEvent("alarm", iteration, _message(name, rule, value, limit), facts))
        for metric in self._followed_metrics & values.keys():
            value = float(values[metric])
            reference = self._references.get(metric, _Reference([], value, None, value))
            self._references[metric] = reference.with_value(value)
        return events

    @property
    def standing(self) -> list[str]:
        """Names of the alarms that were raised and whose sign has not gone."""
        return [name for name, sign in self._signs.items() if sign.stands]

    @property
    def since(self) -> float:
        """Iteration in which the oldest of the present signs began whose alarm takes the run back, raised or not.

        Infinite where there is none.
        """
        back = (sign for name, sign in self._signs.items() if self._config.action_of(name) == "return")
        return min((sign.since for sign in back if sign.lasts), default=math.inf)

    @property
    def _followed_metrics(self) -> set[str]:
        names = {rule.against or rule.metric for rule in self.rules.values() if rule.reference}
        return names | {rule.rising for rule in self.rules.values() if rule.rising}

    def _limit(self, rule: AlarmRule) -> float | None:
        """Returns the value that a rule's metric must pass; ``None`` while there is nothing to compare with."""
        if not rule.reference:
            return rule.limit(None)
        reference = self._references.get(rule.against or rule.metric)
        if reference is None:
            return None
        base = {"start": median(reference.first), "most": reference.most, "least": reference.least}[rule.reference]
        return None if base is None else rule.limit(base)

    def _rises(self, metric: str, values: Mapping[str, Any]) -> bool:
        """Whether a metric, which an evaluation's line has not, is above its start."""
        reference = self._references.get(metric)
        return reference is not None and values.get(metric, reference.last) > median(reference.first)

    def forget_signs(self) -> None:
        """Forgets the signs, as the run has gone back to weights without them."""
        self.returns += 1
        self.unanswered = {}
        self._signs = {name: _Sign() for name in self.rules}

    def state(self) -> dict[str, Any]:
        """Returns all that was seen, as JSON values."""
        return {
            "returns": self.returns,
            "unanswered": dict(self.unanswered),
            "signs": {name: vars(sign).copy() for name, sign in self._signs.items()},
            "references": {name: vars(reference).copy() for name, reference in self._references.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`; rules that are not watched any more are left out."""
        self.returns = int(state["returns"])
        self.unanswered = {name: since for name, since in state["unanswered"].items() if name in self.rules}
        self._signs = {name: _Sign(**state["signs"].get(name, {})) for name in self.rules}
        self._references = {name: _Reference(**fields) for name, fields in state["references"].items()}


def rules_of(config: AlarmConfig) -> dict[str, AlarmRule]:
    """Returns the rules that are watched, with the settings' bounds."""
    rules = {name: rule for name, rule in RULES.items() if config.action_of(name) != "ignore"}
    for name in rules.keys() & config.rules.keys():
        own = config.rules[name]
        limit = rules[name].bound if own.bound is None else own.bound
        rules[name] = replace(rules[name], bound=limit, patience=own.patience or rules[name].patience)
    return rules


def _message(name: str, rule: AlarmRule, value: float, limit: float) -> str:
    times = f" {rule.patience} times in a row" if rule.patience > 1 else ""
    return f"alarm {name}: {rule.sign}{times} ({value:.3g}, bound {limit:.3g}). {rule.means} {rule.do}"


def best_iteration(checkpoints: Iterable[int], lines: Iterable[Mapping[str, Any]], before: float) -> int | None:
    """Returns the checkpoint with the greatest held-out success; where none was evaluated, success in training.

    Args:
        checkpoints: Iterations with a checkpoint.
        lines: Lines of the metrics file. Success in training is the mean of the three iterations up to a checkpoint.
        before: Later checkpoints, and that of this iteration, are left out.

    Returns:
        The iteration, the later of equals; ``None`` where there is no checkpoint.
    """
    held_out: dict[int, float] = {}
    training: dict[int, float] = {}
    for line in lines:
        for name, successes in (("eval/success", held_out), ("train/success", training)):
            if line.get(name) is not None:
                successes[line["iteration"]] = float(line[name])
    candidates = [iteration for iteration in checkpoints if iteration < before]
    if scores := [(held_out[iteration], iteration) for iteration in candidates if iteration in held_out]:
        return max(scores)[1]
    means = []
    for iteration in candidates:
        last = [training[i] for i in range(iteration - 2, iteration + 1) if i in training]
        means.append((sum(last) / len(last) if last else 0.0, iteration))
    return max(means, default=(0.0, None))[1]
