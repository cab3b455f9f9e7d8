"""The rules of the alarms: which sign of a metric, compared with what, and what to do about it.

Bounds with a reference were fitted on healthy runs (docs/alarms.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


RULES: dict[str, AlarmRule] = {
    "long_responses": AlarmRule(
        "train/response_length", "above", 3.0, reference="start",
        means="Responses grow: the reward pays for length, or no end is sampled any more.",
        do="Read episodes; limit rollout.sampling.max_tokens, or look for what the reward pays.",
    ),
    "short_responses": AlarmRule(
        "train/response_length", "below", 0.3, reference="start",
        means="Responses shrink: thoughts or arguments are given up.",
        do="Read episodes; a penalty of length or a wrong end token pays for it.",
    ),
    "cut_responses": AlarmRule(
        "train/response_cut", "above", 0.3, reference="start", times=False,
        means="Responses run into the token limit.",
        do="Lower optim.lr where valid actions fall, too; else raise rollout.sampling.max_tokens.",
    ),
    "low_entropy": AlarmRule(
        "train/entropy", "below", 0.1, reference="start", floor=0.02,
        means="The policy has become deterministic: groups stop differing, and nothing more is learnt.",
        do="Lower optim.lr, or set method.objective.entropy_coef.",
    ),
    "high_entropy": AlarmRule(
        "train/entropy", "above", 4.0, reference="start", floor=0.3,
        means="The policy dissolves into noise.",
        do="Lower optim.lr or entropy_coef; go back to an earlier checkpoint.",
    ),
    "invalid_actions": AlarmRule(
        "train/valid_actions", "below", -0.3, reference="start", times=False,
        means="The policy forgets the format of actions, or the world refuses them.",
        do="See invalid/… for the stage that refuses; lower optim.lr, or go back.",
    ),
    "no_valid_actions": AlarmRule(
        "train/valid_actions", "below", 0.05, patience=2,
        means="Hardly an action is valid: the prompt's template or codec is not that of the model.",
        do="Compare `envsuite show-prompt` with what the model was trained on.",
    ),
    "repeated_actions": AlarmRule(
        "train/repeated_actions", "above", 0.4, reference="start", times=False,
        means="Episodes repeat their actions: they are stuck in a loop.",
        do="Read episodes; penalties alone teach actions that are safe and do nothing.",
    ),
    "one_action": AlarmRule(
        "train/top_action", "above", 0.4, reference="start", times=False,
        means="One action takes over.",
        do="Read episodes; penalties alone teach actions that are safe and do nothing.",
    ),
    "one_token": AlarmRule(
        "train/top_token", "above", 0.3, reference="start", times=False,
        means="One token takes over the responses.",
        do="Lower optim.lr; go back to an earlier checkpoint.",
    ),
    "no_signal": AlarmRule(
        "train/zero_variance_groups", "above", 0.95, minus="train/success", patience=6,
        means="All episodes of almost every task fail alike: there is nothing to learn from.",
        do="Take easier tasks, larger groups, or a graded reward.",
    ),
    "lost_success": AlarmRule(
        "train/success", "below", 0.25, reference="most", patience=4,
        means="What was solved is not solved any more.",
        do="Go back to the best checkpoint; lower optim.lr.",
    ),
    "training_reward": AlarmRule(
        "train/success", "below", 0.5, reference="start", patience=4, rising="train/shaped_return",
        means="The training reward rises while success falls: it pays for something else.",
        do="See shape/… and method.shapers; read the episodes with the greatest return.",
    ),
    "held_out": AlarmRule(
        "eval/high", "below", 1.0, reference="most", against="eval/low", patience=1, rising="train/return",
        means="The training reward rises while held-out success falls: it is gamed, or tasks are learnt by heart.",
        do="Go back to the best checkpoint; read episodes; take more training tasks.",
    ),
    "ratio": AlarmRule(
        "train/ratio_max", "above", 100.0, patience=2,
        means="The policy moves far from the one that sampled.",
        do="Lower optim.lr, optim.epochs or optim.minibatches, or rollout.staleness.",
    ),
    "divergence": AlarmRule(
        "train/approx_kl", "above", 0.1, patience=2,
        means="An update moves the policy far from the one that sampled.",
        do="Lower optim.lr, optim.epochs or optim.minibatches, or rollout.staleness.",
    ),
    "gradient": AlarmRule(
        "train/grad_norm", "above", 10.0, reference="start", patience=2,
        means="Gradients explode.",
        do="Lower optim.lr; see whether rewards or lengths have changed their scale.",
    ),
    "engine": AlarmRule(
        "train/logprob_gap", "above", 30.0, reference="least", floor=0.001, patience=2, unless="train/staleness",
        means="The engine samples from other weights than the trainer has, or computes otherwise.",
        do="See that weights arrive (train/version_min), number formats and templates; set optim.correction.",
    ),
    "infrastructure": AlarmRule(
        "train/failed", "above", 0.1, per="train/episodes", patience=2,
        means="Episodes are lost: environments or the engine fail.",
        do="See the reasons in run.log and the episode files; rollout.deadline and rollout.attempts.",
    ),
}  # fmt: skip
"""Every rule, by its name."""


def documentation() -> str:
    """Returns the table of the rules in ``docs/alarms.md``."""
    rows = [f"| `{name}` | {rule.sign} | {rule.patience} | {rule.means} | {rule.do} |" for name, rule in RULES.items()]
    return "\n".join(["| alarm | sign | in a row | means | do |", "|---|---|---:|---|---|", *rows])
