"""A token tree as the arguments of a model, which :mod:`trainers.policy.attention` computes in one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from trainers.policy.tree import TokenTree
from trainers.policy.tree_plan import TreePlan
from trainers.policy.vision import model_inputs
from trainers.policy.walk import Past


@dataclass(frozen=True)
class FlatBatch:
    """A token tree as one row of tokens."""

    arguments: dict[str, Any]
    """Arguments of a model's ``forward``, or of its backbone's, within :func:`attending` to :data:`NAME`."""
    place: Tensor
    """(T,): index into the row whose output predicts each target."""


def flatten(tree: TokenTree, model: PreTrainedModel, before: int = 0, past: Past | None = None) -> FlatBatch:
    """Lays ``tree`` out in one row, on the device of ``model``, which will compute it.

    Args:
        tree: The tokens.
        model: The model, or its backbone.
        before: How many tokens, a path that the others go on from, are not computed.
        past: Keys and values of this path; receives those that are computed.
    """
    device = model.device
    plan = TreePlan(tree, device, before, past)
    arguments = {
        **model_inputs(model, tree.tokens[before:], tree.images),
        "position_ids": plan.depth[None, before:],
        "use_cache": False,
        "tree_plan": plan,
    }
    return FlatBatch(arguments, to_device(tree.place - before, device))


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Returns the array as a tensor on ``device``."""
    return torch.from_numpy(array).to(device)
