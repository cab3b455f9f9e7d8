"""Recorded cases of TRL's losses, with the options that reproduce them."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.golden_data import NotCovered
from benchmarks.golden_dispatch import Case, Outcome, handles
from benchmarks.golden_losses import loss_outcome, named_advantage
from trainers.policy.loss.config import ObjectiveConfig

TRL_LOSSES: dict[str, ObjectiveConfig] = {
    "grpo": ObjectiveConfig(aggregation="seq-mean-token-mean", count_empty=True),
    "bnpo": ObjectiveConfig(aggregation="token-mean"),
    "dapo": ObjectiveConfig(aggregation="token-mean"),
    "dr_grpo": ObjectiveConfig(aggregation="seq-mean-token-sum-norm", horizon=1, count_empty=True),
    "luspo": ObjectiveConfig(aggregation="seq-mean-token-sum", count_empty=True),
    "cispo": ObjectiveConfig(loss="cispo", aggregation="token-mean"),
}


@handles("trl", " ".join(f"trl_{name}_loss" for name in TRL_LOSSES), "GRPOTrainer._compute_loss")
def _(case: Case) -> Outcome:
    rows = case.rows
    name = case.take("loss_type")
    if name not in TRL_LOSSES:
        raise NotCovered(f"loss_type={name!r} is not known to the runner")
    low, high = case.number("epsilon_low"), case.number("epsilon_high")
    level = case.one_of("importance_sampling_level", {"token": "token", "sequence": "step"})
    beta = case.number("beta")
    horizon = int(case.take("max_completion_length"))
    case.one_of("num_items_in_batch", {"mask.sum()": None})
    config = replace(
        TRL_LOSSES[name],
        ratio=level,
        # TRL's cispo caps the ratio at epsilon_high itself, and nothing holds it from below.
        clip_low=None if name == "cispo" else low,
        clip_high=high - 1.0 if name == "cispo" else high,
        log_ratio_min=None,
        log_ratio_max=None,
        kl="k3" if beta else "none",
        kl_coef=beta,
    )
    if name == "dr_grpo":
        config = replace(config, horizon=horizon)
    advantage = named_advantage(case, rows, "advantage_seq")
    return loss_outcome(rows, advantage, config)


@handles("trl", "trl_rloo_loss", "RLOOTrainer._compute_loss")
def _(case: Case) -> Outcome:
    rows = case.rows
    config = ObjectiveConfig(
        ratio="product",
        clip_low=case.number("epsilon_low"),
        clip_high=case.number("epsilon_high"),
        log_ratio_min=None,
        log_ratio_max=None,
        count_empty=True,
    )
    advantage = named_advantage(case, rows, "advantage_seq")
    outcome = loss_outcome(rows, advantage, config)
    if rows.mask.any(axis=1).all():
        return outcome
    # Such a row has no gradient, only a constant in the loss.
    values = {key: value for key, value in outcome.values.items() if key != "loss"}
    return replace(outcome, values=values, skipped=(("loss", "the original adds -A for each row without tokens"),))
