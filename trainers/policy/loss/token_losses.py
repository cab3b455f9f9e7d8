"""Policy losses of single tokens, before aggregation: one small function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.policy.loss.config import Objective


@dataclass(frozen=True)
class LossTokens:
    """Flat response tokens of whole step rows, each column of shape (T,)."""

    new: Tensor
    """Log-probability under the policy that is trained; carries the gradient."""
    old: Tensor
    """Log-probability under the policy that sampled."""
    advantage: Tensor
    row: Tensor
    """int64, index 0..R-1 of each token's step row, among the R rows that have tokens."""
    selected: Tensor | None = None
    """bool: the tokens that ``clip_cov`` or ``kl_cov`` picks; see :mod:`trainers.policy.loss.selection`."""

    def row_sum(self, values: Tensor) -> Tensor:
        """Sum over each row, given back to its tokens, shape (T,)."""
        rows = len(self.row)  # there are no more; how many, the device alone may know
        return torch.zeros(rows, dtype=values.dtype, device=values.device).index_add(0, self.row, values)[self.row]

    def row_mean(self, values: Tensor) -> Tensor:
        """Mean over each row, given back to its tokens, shape (T,)."""
        return self.row_sum(values) / self.row_sum(torch.ones_like(values))


@dataclass(frozen=True)
class TokenLoss:
    """Loss of each token before aggregation, all of shape (T,)."""

    loss: Tensor
    log_ratio: Tensor
    clipped: Tensor
    """bool: the clip decides the loss (``cispo``: changed the ratio; ``gmpo``: changed it, at positive advantage)."""
    clipped_dual: Tensor
    """bool: the dual clip decides the loss (``gmpo``: clipped at negative advantage)."""
    selected: Tensor | None = None
    """bool: ``clip_cov`` took the token out, ``kl_cov`` penalised it."""


def log_ratio(tokens: LossTokens, config: Objective) -> Tensor:
    """Logarithm of the importance ratio at the configured level, cut off against overflow, shape (T,)."""
    log_w = tokens.new - tokens.old
    if config.ratio == "step":
        log_w = tokens.row_mean(log_w)
    elif config.ratio == "product":
        log_w = tokens.row_sum(log_w)
    elif config.ratio == "sequence":
        log_w = tokens.new - tokens.new.detach() + tokens.row_mean(log_w).detach()
    if config.log_ratio_min is None and config.log_ratio_max is None:
        return log_w
    return log_w.clamp(config.log_ratio_min, config.log_ratio_max)


def _clip(ratio: Tensor, config: Objective) -> Tensor:
    low = None if config.clip_low is None else 1.0 - config.clip_low
    high = None if config.clip_high is None else 1.0 + config.clip_high
    return ratio if low is None and high is None else ratio.clamp(low, high)


def ppo(tokens: LossTokens, config: Objective) -> TokenLoss:
    """Clipped surrogate -min(w A, clip(w) A), with the dual clip where asked for."""
    log_w = log_ratio(tokens, config)
    ratio = log_w.exp()
    plain, clipped_loss = -tokens.advantage * ratio, -tokens.advantage * _clip(ratio, config)
    loss = torch.maximum(plain, clipped_loss)
    by_dual = torch.zeros_like(loss, dtype=torch.bool)
    if config.dual_clip is not None:
        max_loss = -tokens.advantage * config.dual_clip
        by_dual = (tokens.advantage < 0) & (loss > max_loss)
        loss = torch.where(tokens.advantage < 0, torch.minimum(loss, max_loss), loss)
    return TokenLoss(loss, log_w, clipped_loss > plain, by_dual)


def cispo(tokens: LossTokens, config: Objective) -> TokenLoss:
    """-sg[clip(w)] A log pi: clipping bounds the weight of a token, and no token loses its gradient."""
    log_w = log_ratio(tokens, config)
    ratio, never = log_w.exp(), torch.zeros_like(log_w, dtype=torch.bool)
    weight = _clip(ratio, config).detach()
    return TokenLoss(-weight * tokens.advantage * tokens.new, log_w, ratio != weight, never)


def gmpo(tokens: LossTokens, config: Objective) -> TokenLoss:
    """-A times the geometric mean of the step's token ratios, each clipped in log space; A is the step's mean."""
    log_w = log_ratio(tokens, config)
    low = None if config.clip_low is None else -config.clip_low
    inside = log_w if low is None and config.clip_high is None else log_w.clamp(low, config.clip_high)
    sign = tokens.advantage.sign()
    pessimistic = sign * torch.minimum(sign * log_w, sign * inside)
    loss = -tokens.row_mean(tokens.advantage) * tokens.row_mean(pessimistic).exp()
    is_clipped = log_w != inside
    return TokenLoss(loss, log_w, is_clipped & (tokens.advantage > 0), is_clipped & (tokens.advantage < 0))


def gpg(tokens: LossTokens, config: Objective) -> TokenLoss:
    """-A log pi: the plain policy gradient, for data of the current policy."""
    never = torch.zeros_like(tokens.new, dtype=torch.bool)
    return TokenLoss(-tokens.advantage * tokens.new, log_ratio(tokens, config), never, never)


def clip_cov(tokens: LossTokens, config: Objective) -> TokenLoss:
    """Clipped surrogate without a random share of the tokens whose covariance would spend the entropy fastest.

    The selected tokens lose their loss and stay in the aggregation's denominator.
    """
    assert tokens.selected is not None
    term = ppo(tokens, config)
    loss = torch.where(tokens.selected, torch.zeros_like(term.loss), term.loss)
    return TokenLoss(loss, term.log_ratio, term.clipped, term.clipped_dual, tokens.selected)


def kl_cov(tokens: LossTokens, config: Objective) -> TokenLoss:
    """Unclipped surrogate; the selected tokens, of highest covariance, pay ``cov_kl_coef`` · |log w| besides."""
    assert tokens.selected is not None
    log_w = log_ratio(tokens, config)
    loss = -tokens.advantage * log_w.exp()
    penalised_loss = torch.where(tokens.selected, loss + config.cov_kl_coef * log_w.abs(), loss)
    never = torch.zeros_like(tokens.selected)
    return TokenLoss(penalised_loss, log_w, never, never, tokens.selected)


LOSSES: Mapping[str, Callable[[LossTokens, Objective], TokenLoss]] = {
    "ppo": ppo,
    "cispo": cispo,
    "gmpo": gmpo,
    "gpg": gpg,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
"""Token losses by the name in ``Objective.loss``."""
