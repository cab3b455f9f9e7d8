"""Hidden states of a model where decisions are made: before a response, or before each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from trainers.policy.attention import attending
from trainers.policy.config import ComputeDtype, Pooling
from trainers.policy.flat import flatten
from trainers.policy.kernels import kernel_of
from trainers.policy.packing import micro_batches
from trainers.policy.precision import computing
from trainers.policy.rows import by_rows
from trainers.policy.sharding import gathered_outside_layers, rounds
from trainers.policy.transfer import to_device
from trainers.policy.tree import TokenTree, one_token
from trainers.steps import Ragged, StepTable

Ints = NDArray[np.int64]
States = NDArray[np.float32]


@dataclass(frozen=True)
class Fingerprint:
    """Layer and pooling of the hidden state that is read."""

    layer: int = -1
    """Output of this layer, counted from the last one: -1, -2, …"""
    pooling: Pooling = "last"
    """``last``: the state of the last token before the place; ``mean``: the mean over all tokens before it."""


def at_prompt_ends(
    model: PreTrainedModel,
    table: StepTable,
    wanted: Sequence[Fingerprint],
    *,
    budget: int,
    compute_dtype: ComputeDtype = "float32",
) -> list[States]:
    """Returns, for each fingerprint, one vector per row, (N, D): of the prompt, before the response begins.

    Args:
        model: Read without gradient.
        table: Steps; responses may be empty.
        wanted: What to read, all in one pass.
        budget: Most tokens of one forward pass.
        compute_dtype: Number format of the forward pass.
    """
    table = with_some_response(table)
    ends = table.response.offsets[:-1]
    return before_tokens(model, table, wanted, ends, budget=budget, compute_dtype=compute_dtype)


def before_tokens(
    model: PreTrainedModel,
    table: StepTable,
    wanted: Sequence[Fingerprint],
    tokens: Ints,
    *,
    budget: int,
    compute_dtype: ComputeDtype = "float32",
) -> list[States]:
    """Returns, for each fingerprint, one vector per place, (M, D): of the text before a response token.

    Args:
        model: Read without gradient. If it is sharded, every process must call this.
        table: Steps.
        wanted: What to read, all in one pass.
        tokens: The response tokens, as indices into ``table.response.values``, shape (M,).
        budget: Most tokens of one forward pass.
        compute_dtype: Number format of the forward pass.
    """
    backbone = model.base_model
    slot = np.full(len(table.response.values), -1)
    slot[tokens] = np.arange(len(tokens))
    out = [np.empty((len(tokens), model.config.get_text_config(decoder=True).hidden_size), np.float32) for _ in wanted]
    inner = any(fingerprint.layer != -1 for fingerprint in wanted)
    batches = micro_batches(table, budget, rows=by_rows(model))
    trees = [tree for tree in batches if (slot[tree.index] >= 0).any()]
    count = rounds(model, len(trees))
    with (
        torch.no_grad(),
        gathered_outside_layers(model),
        attending(model, kernel_of(model)),
        computing(compute_dtype, model.device),
    ):
        for tree in trees:
            targets = np.flatnonzero(slot[tree.index] >= 0)
            flat = flatten(tree, model)
            output = backbone(**flat.arguments, output_hidden_states=inner)
            for fingerprint, states in zip(wanted, out, strict=True):
                layer = fingerprint.layer
                layer_states = flat.states(output.last_hidden_state if layer == -1 else output.hidden_states[layer])
                vectors = _pool_states(fingerprint.pooling, layer_states, tree)[flat.place[targets]]
                states[slot[tree.index[targets]]] = vectors.float().cpu().numpy()
        for _ in range(len(trees), count):
            backbone(**flatten(one_token(), model).arguments)
    return out


def with_some_response(table: StepTable) -> StepTable:
    """Returns the steps with one token in place of each empty response, without further columns.

    Only rows with a response are in a micro-batch, and states before a response do not depend on it.
    """
    table = table.without_experts()
    empty = table.response.lengths == 0
    if not empty.any():
        return replace(table, extra={}, token_extra={})
    lengths = np.maximum(table.response.lengths, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    is_real = ~np.repeat(empty, lengths)
    ids, logprobs = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.float32)
    ids[is_real], logprobs[is_real] = table.response.values, table.logprob.values
    return replace(table, response=Ragged(ids, offsets), logprob=Ragged(logprobs, offsets), extra={}, token_extra={})


def _pool_states(pooling: Pooling, states: Tensor, tree: TokenTree) -> Tensor:
    """``states`` (tokens of the row, D), or the mean of them over each token's path."""
    if pooling == "last":
        return states
    sums = torch.empty_like(states, dtype=torch.float32)
    for begin, end in tree.chains:
        sums[begin:end] = states[begin:end].float().cumsum(0)
        if (before := int(tree.parent[begin])) >= 0:
            sums[begin:end] += sums[before]
    return sums / (to_device(tree.depth, states.device)[:, None] + 1)
