"""Recorded cases of policy losses, divergence estimators and aggregations, those of TRL last."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.golden_data import Json, NotCovered, TokenRows, step_table
from benchmarks.golden_dispatch import Case, Outcome, handles
from trainers.policy.loss.aggregation import BatchTotals, token_weights
from trainers.policy.loss.config import Objective
from trainers.policy.loss.policy_loss import PolicyLoss, kl_estimate, policy_loss
from trainers.policy.loss.selection import covariances, eligible, selected_tokens
from trainers.policy.loss.token_losses import LOSSES, LossTokens
from trainers.policy.loss.value_loss import value_loss

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
ONE_ROW_EMPTY = "the original is 0/0 = NaN where a row has no tokens; such rows are left out here"


def aggregated(peer: str, mode: Any, rows: TokenRows, config: Objective, horizon: int | None = None) -> Objective:
    """``config`` with the aggregation ``mode`` as the peer computes it."""
    if mode not in MODES:
        raise NotCovered(f"mode={mode!r} is not known to the runner")
    if mode == "seq-mean-token-sum-norm" and peer in ("verl-agent", "spear", "agent-r1"):
        mode = "token-sum-norm"  # theirs does not divide by the number of sequences
    forks = peer in ("verl-agent", "spear")
    if forks and mode == "seq-mean-token-mean" and not rows.mask.any(axis=1).all():
        raise NotCovered(ONE_ROW_EMPTY)
    return replace(
        config,
        aggregation=mode,
        horizon=(rows.width if horizon is None else horizon) if mode.endswith("-norm") else None,
        count_empty=forks and mode == "seq-mean-token-sum",
    )


def totals_of(case: Case, rows: TokenRows, config: Objective) -> BatchTotals:
    """Sizes of the batch that the case divides by; verl can be told those of all ranks."""
    own = BatchTotals.of(rows.lengths, config)
    tokens, sequences = case.take("batch_num_tokens"), case.take("global_batch_size")
    return BatchTotals(
        own.tokens if tokens is None else int(tokens), own.sequences if sequences is None else int(sequences)
    )


def weights(rows: TokenRows, config: Objective, **options: Any) -> torch.Tensor:
    """One weight per flat token, in the case's dtype."""
    return torch.tensor(token_weights(rows.lengths, config, **options), dtype=rows.dtype)


def evaluate(
    rows: TokenRows,
    advantage: torch.Tensor,
    config: Objective,
    *,
    weight: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
) -> tuple[PolicyLoss, np.ndarray]:
    """The loss through the public API, and its gradient in the log-probabilities as [rows][columns]."""
    new = rows.column("log_prob").requires_grad_()
    result = policy_loss(
        new,
        rows.column("old_log_prob"),
        advantage,
        rows.row,
        weights(rows, config) if weight is None else weight,
        config=config,
        ref_logprob=None if config.kl == "none" else rows.column("ref_log_prob"),
        selected=selected,
    )
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return result, rows.dense(new.grad)


def loss_outcome(
    rows: TokenRows,
    advantage: torch.Tensor,
    config: Objective,
    weight: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
) -> Outcome:
    """The loss, its gradient and its metrics under the names that the originals give them."""
    result, gradient = evaluate(rows, advantage, config, weight=weight, selected=selected)
    metrics = {name: float(value) for name, value in result.metrics.items()}
    values = {
        "loss": float(result.loss.detach()),
        "grad_log_prob": gradient,
        "clipfrac": metrics["clip_fraction"],
        "clipfrac_lower": metrics["dual_clip_fraction"],
        "ppo_kl": metrics["approx_kl"],
        "metrics": {
            "actor/pg_clipfrac": metrics["clip_fraction"],
            "actor/pg_clipfrac_lower": metrics["dual_clip_fraction"],
            "actor/ppo_kl": metrics["approx_kl"],
        },
    }
    return Outcome(values, _settings(config))


def _settings(config: Objective) -> str:
    default = asdict(Objective())
    changed = (f"{name}={value}" for name, value in asdict(config).items() if value != default[name])
    return ", ".join(changed) or "defaults"


def named_advantage(case: Case, rows: TokenRows, default: str | None = None) -> torch.Tensor:
    """The recorded advantage column that the case names, flat."""
    name = case.take("advantage", default)
    if name is None:
        raise NotCovered("the case does not name its advantage")
    return rows.column(name)


def _verl_clip(case: Case) -> tuple[float, float]:
    both = case.take("clip_ratio", case.take("cliprange"))
    low = case.take("clip_ratio_low", case.take("cliprange_low", both))
    high = case.take("clip_ratio_high", case.take("cliprange_high", both))
    if low is None or high is None:
        raise NotCovered("the case does not give its clip range")
    return float(low), float(high)


def _policy_loss(case: Case, build: Callable[[Case], Objective], mode: str | None = None) -> Outcome:
    """A loss whose aggregation the case names, or is ``mode`` whatever it names."""
    rows, horizon = case.rows, case.take("loss_scale_factor")
    named = case.take("mode", "token-mean")
    config = aggregated(case.peer, named if mode is None else mode, rows, build(case), horizon)
    totals, advantage = totals_of(case, rows, config), named_advantage(case, rows)
    if config.loss in ("clip_cov", "kl_cov"):
        return _covariance_outcome(rows, advantage, config)
    return loss_outcome(rows, advantage, config, weights(rows, config, totals=totals))


def _dual_clip(case: Case) -> Objective:
    (low, high), ratio = _verl_clip(case), case.number("clip_ratio_c", 3.0)
    least, most = (-20.0, 20.0) if case.peer == "verl" else (None, None)
    return Objective(clip_low=low, clip_high=high, dual_clip=ratio, log_ratio_min=least, log_ratio_max=most)


def _gspo(case: Case) -> Objective:
    low, high = _verl_clip(case)
    case.take("clip_ratio_c")  # no effect in the original's gspo
    return Objective(ratio="sequence", clip_low=low, clip_high=high, log_ratio_min=None, log_ratio_max=10.0)


def _cispo(case: Case) -> Objective:
    low, high = _verl_clip(case)
    return Objective(loss="cispo", clip_low=low, clip_high=high)


def _gpg(case: Case) -> Objective:
    case.take("clip_ratio")  # part of the recorded config; gpg has no ratio
    return Objective(loss="gpg")


def _clip_cov(case: Case) -> Objective:
    if case.peer == "spear":
        case.flag("is_replay")  # which bounds the peer reads; both are recorded
        low, high, fraction, least, most = map(case.number, ("low", "high", "ratio", "lb", "ub"))
    else:
        (low, high), fraction = _verl_clip(case), case.number("clip_cov_ratio", 0.0002)
        least, most = case.number("clip_cov_lb", 1.0), case.number("clip_cov_ub", 5.0)
    return Objective(
        loss="clip_cov", clip_low=low, clip_high=high, cov_fraction=fraction, cov_low=least, cov_high=most,
        log_ratio_min=None, log_ratio_max=None,
    )  # fmt: skip


def _kl_cov(case: Case) -> Objective:
    fraction, coefficient = case.number("kl_cov_ratio"), case.number("ppo_kl_coef")
    return Objective(
        loss="kl_cov", cov_fraction=fraction, cov_kl_coef=coefficient, log_ratio_min=None, log_ratio_max=None
    )


POLICY_LOSSES: tuple[tuple[str, str, tuple[str, ...], Callable[[Case], Objective]], ...] = (
    ("verl", "ppo_dualclip dapo_clip_higher", ("'vanilla'", "vanilla"), _dual_clip),
    ("verl-agent", "ppo_dualclip dapo_clip_higher", ("compute_policy_loss",), _dual_clip),
    ("verl", "gspo", ("'gspo'",), _gspo),
    ("verl", "cispo", ("'cispo'",), _cispo),
    ("verl", "clip_cov", ("compute_policy_loss_clip_cov", "'clip_cov'"), _clip_cov),
    ("SPEAR", "clip_cov", ("core_algos.compute_policy_loss_clip_cov",), _clip_cov),
    ("verl", "kl_cov", ("compute_policy_loss_kl_cov", "'kl_cov'"), _kl_cov),
)
"""Peer, estimators, functions, and the options that reproduce them."""
for _peer, _estimators, _functions, _build in POLICY_LOSSES:
    handles(_peer, _estimators, *_functions)(partial(_policy_loss, build=_build))


@handles("verl-agent", "gspo", "compute_policy_loss_gspo")
def _(case: Case) -> Outcome:
    return _policy_loss(case, _gspo, "seq-mean-token-mean")  # the fork's, whatever it is told


@handles("verl", "gpg_loss", "'gpg'")
def _(case: Case) -> Outcome:
    outcome = _policy_loss(case, _gpg)
    return Outcome({**outcome.values, "metrics": {}}, outcome.options)


@handles("verl", "gmpo_geo_mean", "'geo_mean'")
def _(case: Case) -> Outcome:
    rows = case.rows
    low, high = _verl_clip(case)
    case.one_of("mode", dict.fromkeys(MODES))  # the original always takes the plain mean over rows
    config = Objective(
        loss="gmpo", clip_low=low, clip_high=high, log_ratio_min=None, log_ratio_max=None, count_empty=True
    )
    advantage = named_advantage(case, rows)
    return loss_outcome(rows, advantage, config)


def _selected(rows: TokenRows, advantage: torch.Tensor, config: Objective) -> torch.Tensor:
    """The tokens that the original picked: the recordings drew with seed 0, in the order of the eligible tokens."""
    new, old = (rows.column(name).double().numpy() for name in ("log_prob", "old_log_prob"))
    flat = advantage.double().numpy()
    draw = np.zeros(len(new))
    if config.loss == "clip_cov":
        among = np.flatnonzero(eligible(covariances(new, flat), new - old, flat, config))
        torch.manual_seed(0)
        draw[among[torch.randperm(len(among)).numpy()]] = np.arange(len(among))
    return torch.from_numpy(selected_tokens(new, old, flat, draw, config))


def _covariance_outcome(rows: TokenRows, advantage: torch.Tensor, config: Objective) -> Outcome:
    selected = _selected(rows, advantage, config)
    outcome = loss_outcome(rows, advantage, config, selected=selected)
    term = LOSSES[config.loss](
        LossTokens(rows.column("log_prob"), rows.column("old_log_prob"), advantage, rows.row, selected), config
    )
    assert term.selected is not None
    share = float(term.selected.double().mean())
    zero = rows.dense(term.selected | term.clipped) > 0
    metrics = {"actor/pg_clipfrac": share, "actor/ppo_kl": outcome.values["ppo_kl"]}
    if config.loss == "kl_cov":
        metrics = {"actor/ppo_kl": float(term.log_ratio.abs().double().mean())}
    values = {**outcome.values, "metrics": metrics, "clipfrac": share, "zero_grad_tokens": np.argwhere(zero).tolist()}
    return Outcome(values, outcome.options)


@handles("verl", "value_loss", "compute_value_loss")
def _(case: Case) -> Outcome:
    rows = case.rows
    config = aggregated("verl", case.take("mode", "token-mean"), rows, Objective())
    clip = case.number("cliprange_value")
    case.one_of("returns", {"values + 0.3*advantage_tok": None})
    values = rows.column("values")
    returns = values + 0.3 * rows.column("advantage_tok")
    result = value_loss(rows.column("vpred"), values, returns, weights(rows, config), clip=clip)
    return Outcome({"loss": float(result.loss), "clipfrac": float(result.clip_fraction)}, f"value_loss(clip={clip})")


_KL = {
    "kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "low_var_kl+": "k3+",
    "k3+": "k3+",
}  # fmt: skip


@handles("verl verl-agent SPEAR Agent-R1", "kl", "kl_penalty")
def _(case: Case) -> Outcome:
    rows = case.rows
    config = Objective(
        kl=case.one_of("kl_penalty", _KL), kl_log_ratio_clamp=20.0 if case.peer == "verl" else None, kl_clamp=10.0
    )
    new = rows.column("log_prob").requires_grad_()
    kl = kl_estimate(new, rows.column("ref_log_prob"), config)
    kl.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return Outcome({"kl": rows.dense(kl), "grad_log_prob": rows.dense(new.grad)}, _settings(config))


@handles("verl verl-agent SPEAR Agent-R1", "agg_loss", "agg_loss")
def _(case: Case) -> Outcome:
    rows = case.rows
    horizon = case.take("loss_scale_factor")
    config = aggregated(case.peer, case.take("mode"), rows, Objective(), horizon)
    totals = totals_of(case, rows, config)
    losses = 0.5 * rows.column("advantage_tok") + 0.1
    return Outcome({"loss": float((weights(rows, config, totals=totals) * losses).sum())}, _settings(config))


def _step_gae(case: Case, rows: TokenRows, *, origin: str, gamma: float, lam: float, key: str) -> torch.Tensor:
    """Advantages that the same file records for StepPO's step-level GAE: the input of its losses."""
    for sibling in case.siblings:
        params: Json = sibling["params"]
        if (
            sibling["estimator"] == "steppo_gae"
            and sibling.get("origin") == origin
            and sibling["dtype"] == ("float64" if origin == "paper-reference" else case.dtype)
            and (params.get("gamma"), params.get("lam")) == (gamma, lam)
        ):
            return rows.flat(np.array(sibling["expect"][key], np.float64))
    raise NotCovered(f"its input, the recorded steppo_gae with gamma={gamma}, lam={lam}, is not in the file")


@handles("StepPO", "steppo_loss", "verl gspo + arft GAE", "paper_ref.steppo_loss")
def _(case: Case) -> Outcome:
    rows = case.rows
    if case.origin == "paper-reference":
        return _steppo_paper(case, rows)
    gamma, lam = case.number("gamma"), case.number("lam")
    if not re.fullmatch(r"steppo_gae gamma=\S+ lam=\S+ whitened", str(case.take("advantage"))):
        raise NotCovered("its advantage is not known to the runner")
    config = aggregated("verl", case.take("agg"), rows, _gspo(case))
    advantage = _step_gae(case, rows, origin="peer-code", gamma=gamma, lam=lam, key="advantage_per_row")
    return loss_outcome(rows, advantage, config)


def _steppo_paper(case: Case, rows: TokenRows) -> Outcome:
    low, high = case.number("clip_low"), case.number("clip_high")
    origin = case.one_of("advantage", {"whitened": "peer-code", "raw_eq6": "paper-reference"})
    config = Objective(
        ratio="step", clip_low=low, clip_high=high, log_ratio_min=None, log_ratio_max=None, average="episodes"
    )
    advantage = _step_gae(case, rows, origin=origin, gamma=0.99, lam=1.0, key="advantage_per_row")
    episode = step_table(case.data).episode_id
    by_episode, _ = evaluate(rows, advantage, config, weight=weights(rows, config, episode=episode))
    by_step, _ = evaluate(rows, advantage, replace(config, average="steps"))
    tokens = LossTokens(rows.column("log_prob"), rows.column("old_log_prob"), advantage, rows.row)
    term = LOSSES["ppo"](tokens, config)
    if not rows.mask.any(axis=1).all():
        raise NotCovered("a step row has no tokens, so it has no ratio")
    first = torch.from_numpy(np.cumsum(rows.lengths) - rows.lengths)
    return Outcome(
        {
            "loss": float(by_episode.loss.detach()),
            "loss_mean_over_all_steps": float(by_step.loss.detach()),
            "ratio_per_row": term.log_ratio.exp()[first].numpy(),
            "clipped_per_row": term.clipped[first].tolist(),
        },
        _settings(config),
    )


TRL_LOSSES: dict[str, Objective] = {
    "grpo": Objective(aggregation="seq-mean-token-mean", count_empty=True),
    "bnpo": Objective(aggregation="token-mean"),
    "dapo": Objective(aggregation="token-mean"),
    "dr_grpo": Objective(aggregation="seq-mean-token-sum-norm", horizon=1, count_empty=True),
    "luspo": Objective(aggregation="seq-mean-token-sum", count_empty=True),
    "cispo": Objective(loss="cispo", aggregation="token-mean"),
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
    config = Objective(
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
