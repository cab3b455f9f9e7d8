"""Loss of a critic on flat tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ValueLoss:
    """The loss of one micro-batch of values."""

    loss: Tensor
    """Scalar with gradient; micro-batches of one optimiser batch are summed."""
    clip_fraction: Tensor
    """Share of the values whose loss the clip decides."""


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, weight: Tensor, *, clip: float | None) -> ValueLoss:
    """Half the squared error, pessimistic against moving further than ``clip`` (Schulman et al. 2017, PPO code).

    Args:
        value: Values under the critic that is trained, shape (T,).
        old_value: Values at the time of sampling, shape (T,).
        returns: Targets, shape (T,).
        weight: From :func:`~trainers.policy.loss.aggregation.token_weights`, shape (T,).
        clip: How far a value may move before moving pays no more; ``None`` is off.
    """
    plain = (value - returns).square()
    if clip is None:
        return ValueLoss(0.5 * (weight * plain).sum(), torch.zeros((), dtype=torch.float64))
    near = torch.minimum(torch.maximum(value, old_value - clip), old_value + clip)
    clipped_loss = (near - returns).square()
    by_clip = (clipped_loss > plain).double()
    loss = 0.5 * (weight * torch.maximum(plain, clipped_loss)).sum()
    return ValueLoss(loss, by_clip.mean() if len(by_clip) else by_clip.sum())
