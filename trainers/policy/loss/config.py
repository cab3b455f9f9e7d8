"""Settings of the policy objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from envsuite.core.errors import UsageError
from trainers.settings import AtLeastOne, Fraction, NotNegative, check_fields

Loss = Literal["ppo", "cispo", "gmpo", "gpg", "clip_cov", "kl_cov"]
RatioLevel = Literal["token", "step", "sequence", "product"]
Aggregation = Literal[
    "token-mean", "token-sum", "token-sum-norm", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]  # fmt: skip
Average = Literal["steps", "episodes"]
Cap = Annotated[float, Field(ge=1)]
KL = Literal["none", "k1", "abs", "k2", "k3", "k3+"]
BFLOAT16_ROUNDOFF = 2.0**-8
"""Half the distance from 1 to the next number in bfloat16."""


@dataclass(frozen=True)
class CorrectionConfig:
    """Importance weights that correct for the difference between the trainer's and the engine's probabilities.

    The weight is trainer's probability / engine's probability, both under the weights that sampled. It multiplies the
    policy term of the loss, as a constant; the divergence from the reference and the entropy bonus are not weighed.
    """

    level: Literal["token", "sequence"] = "token"
    """``token``: each token has its own weight. ``sequence``: all tokens of a step row have the product of theirs."""
    cap: Cap = 2.0
    """Greatest weight (verl's default)."""
    floor: Fraction | None = None
    """Null: a weight above ``cap`` is ``cap`` (truncated importance sampling, Yao et al. 2025). A number: a token whose
    weight is above ``cap`` or below this loses its loss, but stays in the aggregation's denominator (IcePop, Ling team
    2025: 0.5, with a cap of 5)."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """The objective that is minimised, given advantages.

    A *sequence* is one step row: the response tokens of one interaction step.
    """

    loss: Loss = "ppo"
    """``ppo``: clipped surrogate (Schulman et al. 2017, Eq. 7). ``cispo``: clipped ratio as a constant weight of the
    log-probability (MiniMax-M1, 2025). ``gmpo``: geometric mean of clipped token ratios (GMPO, Zhao et al. 2025).
    ``gpg``: log-probability times advantage, no ratio. ``clip_cov``, ``kl_cov``: tokens whose advantage and
    log-probability covary most are left out, or penalised (Cui et al. 2025)."""
    ratio: RatioLevel = "token"
    """Level of the importance ratio. ``token``: each token its own. ``step``: geometric mean over the tokens of the
    step (StepPO, Eq. 7). ``sequence``: the same value, whose gradient reaches each token through its own
    log-probability (GSPO-token, Zheng et al. 2025), which differs where advantages differ within a step. ``product``:
    product over the tokens (TRL's RLOO)."""
    clip_low: Fraction | None = 0.2
    """The ratio is clipped below 1 - clip_low; null does not clip below."""
    clip_high: NotNegative | None = 0.2
    """The ratio is clipped above 1 + clip_high (DAPO: 0.28); null does not clip above."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c > 1 bounds the loss of a negative advantage by c·|A| (Ye et al. 2020); null is off."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """How token losses become one number: mean or sum over all tokens, or mean over sequences of the sum, of the mean,
    or of the sum divided by ``horizon`` (Dr.GRPO); ``token-sum-norm`` divides the sum over all tokens by it, which
    grows with the batch (verl-agent, SPEAR, Agent-R1)."""
    horizon: AtLeastOne | None = None
    """Length by which the aggregations ``-norm`` divide: the longest response that can be sampled."""
    average: Average = "steps"
    """Mean over sequences: all step rows alike, or first within each episode and then over episodes, so that long
    episodes weigh no more than short ones (StepPO, Eq. 8)."""
    kl: KL = "none"
    """Estimator of the divergence from the reference policy: ``k1``, ``abs``, ``k2``, ``k3`` (Schulman 2020), or
    ``k3+``: the value of k3 with the gradient of k2."""
    kl_coef: NotNegative = 0.0
    """Weight of that divergence in the loss."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus: this times the policy's entropy at the response tokens, aggregated as the token
    losses are, is subtracted from the loss (verl-agent: 0.001)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dual_clip is not None and self.loss != "ppo":
            raise UsageError(f"objective: dual_clip belongs to loss 'ppo', not {self.loss!r}; leave it out")
        if self.ratio != "token" and self.loss not in ("ppo", "cispo"):
            raise UsageError(f"objective: loss {self.loss!r} is defined on token ratios; leave out {self.ratio!r}")
        if self.aggregation.endswith("-norm") and self.horizon is None:
            raise UsageError(
                f"objective: aggregation {self.aggregation!r} divides by horizon; set it to the longest response, e.g. "
                "horizon: 512"
            )
        if self.average == "episodes" and self.aggregation.startswith("token-"):
            raise UsageError(f"objective: average 'episodes' needs a seq-mean aggregation, not {self.aggregation!r}")
        if self.kl == "none" and self.kl_coef > 0.0:
            raise UsageError(f"objective: kl_coef is {self.kl_coef} but kl is 'none'; choose an estimator, e.g. kl: k3")

    @property
    def clips_within_rounding(self) -> bool:
        """Whether ratios of whole steps are clipped where rounding to bfloat16 alone may move them."""
        ends = [end for end in (self.clip_low, self.clip_high) if end is not None]
        return self.ratio != "token" and bool(ends) and min(ends) < BFLOAT16_ROUNDOFF


@dataclass(frozen=True)
class Objective(ObjectiveConfig):
    """The objective with what no setting says: a run has these defaults, other implementations have other values."""

    log_ratio_min: float | None = -20.0
    """The log-ratio is cut off below this before exp, against overflow."""
    log_ratio_max: float | None = 20.0
    """The log-ratio is cut off above this before exp, against overflow."""
    cov_fraction: float = 0.0002
    """Share of the tokens that ``clip_cov`` or ``kl_cov`` picks."""
    cov_low: float = 1.0
    """``clip_cov`` picks among the tokens whose covariance is above this ..."""
    cov_high: float = 5.0
    """... and below this."""
    cov_kl_coef: float = 1.0
    """Penalty of ``kl_cov`` on the tokens it picks, per unit of |log-ratio|."""
    count_empty: bool = False
    """Step rows without response tokens count as sequences (TRL; verl-agent's seq-mean-token-sum)."""
    kl_log_ratio_clamp: float | None = None
    """k3 cuts the log-ratio off at ± this (verl 0.9.1: 20)."""
    kl_clamp: float | None = None
    """k3 is cut off at ± this (verl: 10)."""

    @classmethod
    def of(cls, config: ObjectiveConfig) -> Self:
        """The objective of a run with these settings."""
        return cls(**vars(config))
