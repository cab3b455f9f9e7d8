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
from trainers.policy.flat import FlatBatch, flatten, to_device
from trainers.policy.kernels import kernel_of
from trainers.policy.packing import MicroBatch, merge_steps, micro_batches, one_token
from trainers.policy.precision import computing
from trainers.policy.sharding import gathered_outside_layers, rounds
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
    share_prefix: bool,
    compute_dtype: ComputeDtype = "float32",
) -> list[States]:
    """Returns, for each fingerprint, one vector per row, (N, D): of the prompt, before the response begins.

    Args:
        model: Read without gradient.
        table: Steps; responses may be empty.
        wanted: What to read, all in one pass.
        budget: Most tokens (padding counted) of one forward pass.
        share_prefix: Compute a prompt that several episodes start with once.
        compute_dtype: Number format of the forward pass.
    """
    table = with_some_response(table)
    return before_tokens(
        model,
        table,
        wanted,
        table.response.offsets[:-1],
        budget=budget,
        share_prefix=share_prefix,
        compute_dtype=compute_dtype,
    )


def before_tokens(
    model: PreTrainedModel,
    table: StepTable,
    wanted: Sequence[Fingerprint],
    tokens: Ints,
    *,
    budget: int,
    share_prefix: bool,
    compute_dtype: ComputeDtype = "float32",
) -> list[States]:
    """Returns, for each fingerprint, one vector per place, (M, D): of the text before a response token.

    Args:
        model: Read without gradient. If it is sharded, every process must call this.
        table: Steps.
        wanted: What to read, all in one pass.
        tokens: The response tokens, as indices into ``table.response.values``, shape (M,).
        budget: Most tokens (padding counted) of one forward pass.
        share_prefix: Compute a prompt that several episodes start with once.
        compute_dtype: Number format of the forward pass.
    """
    backbone = model.base_model
    slot = np.full(len(table.response.values), -1)
    slot[tokens] = np.arange(len(tokens))
    out = [np.empty((len(tokens), model.config.get_text_config(decoder=True).hidden_size), np.float32) for _ in wanted]
    inner = any(fingerprint.layer != -1 for fingerprint in wanted)
    batches = list(micro_batches(table, merge_steps(table), budget, share_prefix))
    batches = [batch for batch in batches if (slot[batch.index] >= 0).any()]
    count = rounds(model, len(batches))
    with (
        torch.no_grad(),
        gathered_outside_layers(model),
        attending(model, kernel_of(model)),
        computing(compute_dtype, model.device),
    ):
        for batch in batches:
            picked = np.flatnonzero(slot[batch.index] >= 0)
            flat = flatten(batch, model)
            output = backbone(**flat.arguments, output_hidden_states=inner)
            for fingerprint, states in zip(wanted, out, strict=True):
                found = _pick(fingerprint.pooling, _layer(output, fingerprint.layer), flat, batch, picked)
                states[slot[batch.index[picked]]] = found.float().cpu().numpy()
        for _ in range(len(batches), count):
            backbone(**flatten(one_token(), model).arguments)
    return out


def with_some_response(table: StepTable) -> StepTable:
    """Returns the steps with one token in place of each empty response, without further columns.

    Only rows with a response are in a micro-batch, and states before a response do not depend on it.
    """
    empty = table.response.lengths == 0
    if not empty.any():
        return replace(table, extra={}, token_extra={})
    lengths = np.maximum(table.response.lengths, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    kept = ~np.repeat(empty, lengths)
    ids, logprobs = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.float32)
    ids[kept], logprobs[kept] = table.response.values, table.logprob.values
    return replace(table, response=Ragged(ids, offsets), logprob=Ragged(logprobs, offsets), extra={}, token_extra={})


def _pick(pooling: Pooling, states: Tensor, flat: FlatBatch, batch: MicroBatch, picked: Ints) -> Tensor:
    if pooling == "last":
        return states[flat.place[picked]]
    sequence, position = (to_device(column[picked], states.device) for column in (batch.sequence, batch.position))
    summed, count = flat.tails(states).float().cumsum(1)[sequence, position], position + 1
    if batch.prefix.size:
        lengths = to_device(batch.prefix_lengths, states.device)
        prefix_of = flat.plan.prefix_of[sequence]
        before = flat.prefixes(states)
        inside = torch.arange(before.shape[1], device=before.device) < lengths[:, None]
        summed = summed + (before.float() * inside[:, :, None]).sum(1)[prefix_of]
        count = count + lengths[prefix_of]
    return summed / count[:, None]


def _layer(output: object, layer: int) -> Tensor:
    """Hidden states of the flat row, (tokens, D)."""
    states: Tensor = output.last_hidden_state if layer == -1 else output.hidden_states[layer]  # type: ignore[attr-defined]
    return states[0]
