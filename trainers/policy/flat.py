"""A micro-batch as one row of tokens, which :mod:`trainers.policy.attention` computes in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from trainers.policy.attention import PrefixPlan
from trainers.policy.packing import MicroBatch
from trainers.policy.vision import model_inputs


@dataclass(frozen=True)
class FlatBatch:
    """A micro-batch as one row of tokens: its prefixes, then its tails, padding included."""

    arguments: dict[str, Any]
    """Arguments of a model's ``forward``, or of its backbone's, within :func:`attending` to :data:`NAME`."""
    plan: PrefixPlan
    place: Tensor
    """(T,): index into the row whose output predicts each response token."""

    def prefixes(self, states: Tensor) -> Tensor:
        """The part of ``states`` (tokens of the row, D) that belongs to the prefixes, (P, prefix width, D)."""
        plan = self.plan
        return states[: plan.prefixes * plan.prefix_width].view(plan.prefixes, plan.prefix_width, -1)

    def tails(self, states: Tensor) -> Tensor:
        """The part of ``states`` (tokens of the row, D) that belongs to the tails, (B, tail width, D)."""
        plan = self.plan
        return states[plan.prefixes * plan.prefix_width :].view(plan.tails, plan.tail_width, -1)


def flatten(batch: MicroBatch, model: PreTrainedModel) -> FlatBatch:
    """Lays ``batch`` out in one row, on the device of ``model``, which will compute it."""
    device = model.device
    tokens = np.concatenate([batch.prefix.ravel(), batch.tail.ravel()])
    heads, tails = (np.broadcast_to(np.arange(part.shape[1]), part.shape) for part in (batch.prefix, batch.tail))
    before = batch.prefix_lengths[batch.prefix_of]
    # Padding has position 0, which every model has.
    positions = np.concatenate([
        np.where(heads < batch.prefix_lengths[:, None], heads, 0).ravel(),
        np.where(tails < batch.tail_lengths[:, None], tails + before[:, None], 0).ravel(),
    ])  # fmt: skip
    place = batch.prefix.size + batch.sequence * batch.tail.shape[1] + batch.position
    plan = PrefixPlan(batch, device)
    arguments = {
        **model_inputs(model, tokens, batch.images),
        "position_ids": to_device(positions, device)[None],
        "use_cache": False,
        "prefix_plan": plan,
    }
    return FlatBatch(arguments, plan, to_device(place, device))


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Returns the array as a tensor on ``device``."""
    return torch.from_numpy(array).to(device)
