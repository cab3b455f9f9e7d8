"""Policy losses on flat response tokens: no padding, no model, no groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.policy.loss.config import CorrectionConfig, Objective
from trainers.policy.loss.token_losses import LOSSES, LossTokens


def kl_estimate(logprob: Tensor, ref_logprob: Tensor, config: Objective) -> Tensor:
    """Estimate of KL(policy || reference) from the sampled tokens (Schulman 2020, "Approximating KL divergence").

    ``k1`` = d and ``k3`` = exp(-d) - 1 + d are unbiased, ``k2`` = d²/2 is not but has the right gradient,
    with d = logprob - ref_logprob. ``abs`` = |d|. ``k3+`` has the value of k3 and the gradient of k2.

    Args:
        logprob: Log-probabilities under the policy that is trained, shape (T,).
        ref_logprob: Log-probabilities under the reference, shape (T,).
        config: ``kl`` and its clamps.

    Returns:
        Shape (T,); zeros for ``kl="none"``.
    """
    difference = logprob - ref_logprob
    if config.kl == "none":
        return torch.zeros_like(logprob)
    if config.kl == "k1":
        return difference
    if config.kl == "abs":
        return difference.abs()
    k2 = 0.5 * difference.square()
    if config.kl == "k2":
        return k2
    if config.kl == "k3+":
        return k2 + (_k3(difference.detach(), config) - k2.detach())
    return _k3(difference, config)


def _k3(difference: Tensor, config: Objective) -> Tensor:
    reverse = -difference
    if config.kl_log_ratio_clamp is not None:
        reverse = reverse.clamp(-config.kl_log_ratio_clamp, config.kl_log_ratio_clamp)
    # expm1 keeps the small positive values that exp(x) - x - 1 loses to rounding.
    k3 = torch.expm1(reverse) - reverse
    return k3 if config.kl_clamp is None else k3.clamp(-config.kl_clamp, config.kl_clamp)


LOG_LIMIT = 20.0


def engine_weights(tokens: LossTokens, engine: Tensor, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """Weight of each token as trainer's over engine's probability, both under the weights that sampled.

    Args:
        tokens: ``old`` is the trainer's log-probability of each token.
        engine: The engine's, shape (T,).
        config: Level, and what becomes of extreme weights.

    Returns:
        The weights before they are truncated or masked, and after, both of shape (T,) and without gradient.
    """
    log_weight = (tokens.old - engine).detach()
    if config.level == "sequence":
        log_weight = tokens.row_sum(log_weight)
    plain = log_weight.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    if config.floor is None:
        return plain, plain.clamp(max=config.cap)
    return plain, torch.where((plain >= config.floor) & (plain <= config.cap), plain, torch.zeros_like(plain))


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of one micro-batch, and its metrics."""

    loss: Tensor
    """Scalar with gradient; micro-batches of one optimiser batch are summed."""
    metrics: Mapping[str, Tensor]
    """Detached scalars: means over the tokens, except ``*_max`` (maxima) and ``*_loss`` (shares of the loss)."""
    tokens: int
    """Number of tokens behind the means."""


def policy_loss(
    new_logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    row: Tensor,
    weight: Tensor,
    *,
    config: Objective,
    ref_logprob: Tensor | None = None,
    entropy: Tensor | None = None,
    selected: Tensor | None = None,
    engine_logprob: Tensor | None = None,
    correction: CorrectionConfig | None = None,
) -> PolicyLoss:
    """Weighted sum of token losses, plus the divergence from the reference, minus the entropy bonus.

    Args:
        new_logprob: Log-probabilities of the response tokens under the policy that is trained, shape (T,).
        old_logprob: Their log-probabilities under the policy that sampled them, shape (T,).
        advantage: Advantage of each token, shape (T,).
        row: Index of each token's step row among those that have tokens, int64, shape (T,); a step row is never split
            over two calls.
        weight: From :func:`~trainers.policy.loss.aggregation.token_weights` of the whole optimiser batch, shape (T,).
        config: Settings of the objective.
        ref_logprob: Their log-probabilities under the reference policy, shape (T,); needed unless ``kl`` is ``"none"``.
        entropy: Entropy of the policy at each token, with gradient, shape (T,); needed where ``entropy_coef`` is above
            0.
        selected: bool, from :func:`~trainers.policy.loss.selection.selected_tokens` of the whole optimiser batch, shape
            (T,); needed for the losses ``clip_cov`` and ``kl_cov``.
        engine_logprob: Log-probabilities that the engine gave when it sampled, shape (T,); needed with ``correction``.
        correction: Weighs the policy term by the trainer's probability over the engine's, where ``old_logprob`` is the
            trainer's; ``None`` does not.

    Returns:
        The loss of these tokens. Over the micro-batches of an optimiser batch, losses and gradients add up to those
        of the whole.
    """
    weight = weight.to(new_logprob.dtype)
    tokens = LossTokens(new_logprob, old_logprob, advantage.to(new_logprob.dtype), row, selected)
    term = LOSSES[config.loss](tokens, config)
    weight_metrics, token_loss = dict[str, Tensor](), term.loss
    if correction is not None:
        assert engine_logprob is not None
        plain, engine_weight = engine_weights(tokens, engine_logprob, correction)
        token_loss = engine_weight * token_loss
        weight_metrics = {
            "engine_weight_mean": _mean(plain),
            "engine_weight_max": plain.max() if len(row) else plain.new_zeros(()),
            "engine_weight_cut": _mean(engine_weight != plain),
        }
    loss = (weight * token_loss).sum()
    metrics = {
        "policy_loss": loss,
        "clip_fraction": _mean(term.clipped),
        "dual_clip_fraction": _mean(term.clipped_dual),
        "approx_kl": _mean(tokens.old - tokens.new),
        "ratio_mean": _mean(term.log_ratio.exp()),
        "ratio_max": term.log_ratio.exp().max() if len(row) else loss.new_zeros(()),
        **weight_metrics,
    }
    if term.selected is not None:
        metrics["selected_fraction"] = _mean(term.selected)
    if config.kl != "none":
        assert ref_logprob is not None
        divergence = kl_estimate(new_logprob, ref_logprob, config)
        kl_loss = config.kl_coef * (weight * divergence).sum()
        loss = loss + kl_loss
        metrics |= {"kl": _mean(divergence), "kl_loss": kl_loss}
    if config.entropy_coef > 0.0:
        assert entropy is not None
        entropy_loss = -config.entropy_coef * (weight * entropy).sum()
        loss = loss + entropy_loss
        metrics["entropy_loss"] = entropy_loss
    return PolicyLoss(loss, {name: value.detach() for name, value in metrics.items()}, len(row))


def _mean(values: Tensor) -> Tensor:
    return values.detach().double().mean() if len(values) else values.new_zeros((), dtype=torch.float64)


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """Returns the scalars as floats, exactly; the host waits once."""
    if not scalars:
        return []
    numbers: list[float] = torch.stack([scalar.to(scalars[0].device, torch.float64) for scalar in scalars]).tolist()
    return numbers


def merge_metrics(parts: Sequence[tuple[Mapping[str, Tensor | float], int]]) -> dict[str, float]:
    """Metrics of a whole from those of its parts, each with its number of tokens: as of one large batch."""
    tokens = sum(count for _, count in parts)
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for part, _ in parts for name in part):
        values = [(float(part[name]), count) for part, count in parts if name in part]
        if name.endswith("_max"):
            metrics[name] = max(value for value, _ in values)
        elif name.endswith("_loss"):
            metrics[name] = sum(value for value, _ in values)
        else:
            metrics[name] = sum(value * count for value, count in values) / max(tokens, 1)
    return metrics
