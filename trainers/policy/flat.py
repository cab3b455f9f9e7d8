"""A token tree as the arguments of a model: one row of tokens for the attention of trees, or a row for each path."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from trainers.policy.rows import padded_rows, rows_reason
from trainers.policy.transfer import to_device
from trainers.policy.tree import TokenTree
from trainers.policy.tree_plan import TreePlan
from trainers.policy.vision import model_inputs, own_positions
from trainers.policy.walk import CachedPast
from trainers.steps.experts import unknown


@dataclass(frozen=True)
class FlatBatch:
    """A token tree as one row of tokens, or as the rows of its paths."""

    arguments: dict[str, Any]
    """Arguments of a model's ``forward``, or of its backbone's, while it attends by its kernel
    (:func:`~trainers.policy.attention.attending`)."""
    rows: Tensor
    """Number of sequences that each computed token is in; 0 for padding, and for a token that is computed again."""
    place: Tensor
    """(T,): index of the token whose output predicts each target."""
    token: Tensor | None = None
    """Where each token stands in the rows of the paths, one after the other; ``None``: they are one row, the tree's."""
    length: int = 0
    """Tokens of a row of a path, with padding."""
    experts: Tensor | None = None
    """Experts of each token that is computed, padding included, as the tree has them."""

    def states(self, output: Tensor) -> Tensor:
        """Returns hidden states (rows, length, D) of the tree's tokens, in their order: (tokens, D)."""
        return output[0] if self.token is None else output.flatten(0, 1)[self.token]

    def logits(self, model: PreTrainedModel) -> Tensor:
        """Returns the logits of the targets, (T, vocabulary)."""
        if self.token is None:
            logits: Tensor = model(**self.arguments, logits_to_keep=self.place).logits
            return logits[0]
        place = self.token[self.place]
        positions, column = (place % self.length).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if "logits_to_keep" not in inspect.signature(model.forward).parameters:
            logits = model(**self.arguments).logits
            return logits.flatten(0, 1)[place]
        logits = model(**self.arguments, logits_to_keep=positions).logits
        return logits[place // self.length, column]


def flatten(tree: TokenTree, model: PreTrainedModel, before: int = 0, past: CachedPast | None = None) -> FlatBatch:
    """Lays ``tree`` out as ``model`` computes it, on its device.

    Args:
        tree: The tokens.
        model: The model, or its backbone.
        before: How many tokens, a path that the others go on from, are not computed; not by rows.
        past: Keys and values of this path; receives those that are computed.
    """
    device = model.device
    experts: Tensor | None = None
    if rows_reason(model) is not None:
        rows, token = padded_rows(tree)
        tokens = np.where(rows < 0, 0, tree.tokens[rows])
        arguments: dict[str, Any] = {**model_inputs(model, tokens, tree.images), "use_cache": False}
        if (own := own_positions(model, tokens, tree.images)) is not None:
            arguments["position_ids"] = to_device(own, device)
        if tree.experts is not None:
            row_experts = tree.experts[rows.ravel()]
            row_experts[rows.ravel() < 0] = unknown(row_experts.dtype)
            experts = to_device(row_experts, device)
        counts, place = to_device(np.bincount(token, tree.rows, rows.size), device), to_device(tree.place, device)
        return FlatBatch(arguments, counts, place, to_device(token, device), rows.shape[1], experts)
    plan = TreePlan(tree, device, before, past)
    own = own_positions(model, tree.tokens, tree.images, tree.depth, tree.end)
    arguments = {
        **model_inputs(model, tree.tokens[before:], tree.images),
        "position_ids": plan.depth[None, before:] if own is None else to_device(own[:, :, before:], device),
        "use_cache": False,
        "tree_plan": plan,
    }
    experts = None if tree.experts is None else to_device(tree.experts[before:], device)
    counts, place = to_device(tree.rows[before:], device), to_device(tree.place - before, device)
    return FlatBatch(arguments, counts, place, experts=experts)
