"""Settings of the credit-assignment method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.base import Milestones, States
from trainers.credit.spear.replay import ReplayConfig
from trainers.policy.loss import ObjectiveConfig
from trainers.settings import AtLeastOne, ConfigError, Count, Positive, Text, checked
from trainers.steps.columns import GREEDY_RETURN, MC_VALUE, MILESTONE

Place = Literal["device", "offload", "cpu"]


@dataclass(frozen=True)
class CriticConfig:
    """The critic, which supplies the values that methods such as ``ppo``, ``steppo``, ``vetta`` and ``hiper`` read."""

    kind: Literal["head", "model", "truncated"] = "head"
    """``head``: two layers on the policy's last hidden state, which is read once and not trained through, so that the
    critic costs one forward pass. ``model``: a language model of its own, trained as a whole. ``truncated``: the same
    with the first two of its layers only (VETTA). Each has an output for every value that the method reads."""
    lr: Positive = 1e-5
    """Learning rate (StepPO, table 5: ten times the policy's; for kind model)."""
    epochs: AtLeastOne = 1
    """Passes over the steps of an iteration."""
    minibatches: AtLeastOne = 1
    """Optimiser steps per pass: the episodes of all processes are cut into so many parts of equally many steps."""
    clip: Positive | None = 0.5
    """How far a value may move from what it was at sampling before moving pays no more (verl: 0.5); null is off."""
    warmup: Count = 0
    """Iterations at the start in which the critic alone is trained."""

    @property
    def layers(self) -> int | None:
        """Number of layers that are kept of the model; ``None``: all of them."""
        return 2 if self.kind == "truncated" else None


@dataclass(frozen=True)
class MethodConfig:
    """The credit-assignment method; a recipe fills this section, and every key of it can be overridden."""

    estimator: Text = "grpo"
    """Advantage estimator."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the estimator: the fields of its class."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The clipped objective."""
    shapers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Reward shapers by name, with their settings, applied in this order."""
    filters: list[str] | dict[str, dict[str, Any]] = field(default_factory=list)
    """Filters that leave rows out of the update: their names, or each with its settings."""
    replay: ReplayConfig | None = None
    """Self-imitation (SPEAR); null is off."""
    critic: CriticConfig | None = None
    """The critic, where the method needs one (ppo, steppo, vetta, hiper)."""
    reference: Place = "device"
    """Where the weights of the reference policy, and of a teacher, are kept, if the method compares with one:
    ``device``, beside the policy; ``offload``, in the host's memory, and on the device while it scores; ``cpu``, where
    it scores, too."""

    def __post_init__(self) -> None:
        if self.replay is not None and (self.replay.rules == "rounds") != self.imitates:
            raise ConfigError("method.replay.rules: rft takes rounds, other methods paper or code")
        spear, scale = self.shapers.get("spear"), self.shapers.get("scale", {"factor": 1.0})
        if spear is not None and spear.get("outcome", "sign") == "sign" and scale.get("factor", 10.0) != 1.0:
            raise ConfigError(
                "method.shapers: spear pays 1 or -1 for the outcome, which scale would add to; "
                "set scale: {factor: 1.0}, or spear: {outcome: environment}"
            )

    def make_estimator(self) -> Estimator:
        """Makes the estimator with its options.

        Raises:
            UnknownName: It, or an option, does not exist.
        """
        return checked(ESTIMATORS[self.estimator], self.options, f"option of estimator {self.estimator}")

    @property
    def imitates(self) -> bool:
        """Whether episodes are imitated, not compared."""
        return self.estimator == "rft"

    @property
    def plays_greedily(self) -> bool:
        """Whether one more episode per task is played, greedily, which is not trained on."""
        return GREEDY_RETURN in self.make_estimator().needs

    @property
    def continuations(self) -> tuple[int, States] | None:
        """Episodes for each state of a sampled step, and which steps share one, where the method reads values."""
        estimator = self.make_estimator()
        return estimator.continued if MC_VALUE in estimator.needs else None

    @property
    def milestones(self) -> Milestones | None:
        """The milestones that the environments of the rollout see, where the method reads them."""
        estimator = self.make_estimator()
        return estimator.milestone_kind if MILESTONE in estimator.needs else None

    @property
    def needs_reference(self) -> bool:
        """Whether the loss or a shaper compares the policy with the reference."""
        return self.objective.kl != "none" or "kl_penalty" in self.shapers

    @property
    def local_teacher(self) -> str | None:
        """The model that scores the sampled tokens in the trainer, where the method reads one; a server's is not."""
        teacher = self.make_estimator().teacher
        return None if teacher is None or teacher.startswith(("http://", "https://")) else teacher

    def holds_frozen(self, adapted: bool) -> bool:
        """Whether a frozen model lies beside the policy: a teacher, or a reference unless the policy is ``adapted``."""
        return (self.needs_reference and not adapted) or self.local_teacher is not None

    @property
    def filter_settings(self) -> dict[str, dict[str, Any]]:
        """The filters by name, each with its settings."""
        return {name: {} for name in self.filters} if isinstance(self.filters, list) else self.filters

    @property
    def refill_rounds(self) -> int:
        """Most further rounds of rollout in an iteration, for groups that the filter zero_variance leaves out."""
        rounds: int = self.filter_settings.get("zero_variance", {}).get("refill_rounds", 0)
        return rounds
