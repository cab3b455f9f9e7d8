"""Attention of a flat micro-batch: shared prefixes and the tails that follow them, in one row of tokens.

Registered with transformers as an attention implementation, so that a decoder-only model that takes its attention from
there computes each prefix once, in the same forward pass as its tails and without a cache. Recomputing activations in
the backward pass (gradient checkpointing) therefore needs nothing else, and sliding windows, soft-capped scores and
attention sinks are those that the model asks for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError
from trainers.policy.packing import MicroBatch

T = TypeVar("T")
NAME = "envsuite_prefixes"
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class PrefixPlan:
    """Attention pattern of a flat micro-batch: its prefixes in order, then its tails, padding included.

    Args:
        batch: Prefixes and tails.
        device: The model's device.
    """

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self.batch = batch
        self.prefixes, self.prefix_width = batch.prefix.shape
        self.tails, self.tail_width = batch.tail.shape
        self.prefix_of = torch.from_numpy(batch.prefix_of).to(device)
        self.before = torch.from_numpy(batch.prefix_lengths).to(device)[self.prefix_of]
        """Length of the prefix of each tail, shape (tails,)."""
        self.device = device
        self._prefix_masks: dict[int | None, Tensor | None] = {}
        self._tail_masks: dict[int | None, Tensor | None] = {}
        self._once: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()`` of the first call with ``key``: the pattern as a kernel takes it, for all layers."""
        if key not in self._once:
            self._once[key] = make()
        found: T = self._once[key]
        return found

    def cut(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """The flat ``row`` (1, heads, tokens, dim) as prefixes and tails, both (sequences, heads, width, dim)."""
        heads, dim, cut = row.shape[1], row.shape[3], self.prefixes * self.prefix_width
        return (
            row[0, :, :cut].reshape(heads, self.prefixes, self.prefix_width, dim).transpose(0, 1),
            row[0, :, cut:].reshape(heads, self.tails, self.tail_width, dim).transpose(0, 1),
        )

    def prefix_mask(self, window: int | None) -> Tensor | None:
        """Returns the mask of a prefix's tokens, (1, 1, width, width); ``None`` is plain causal attention."""
        if window not in self._prefix_masks:
            wide = window is None or window >= self.prefix_width
            self._prefix_masks[window] = None if wide else self._causal(self.prefix_width, window)[None, None]
        return self._prefix_masks[window]

    def tail_mask(self, window: int | None) -> Tensor | None:
        """Returns the mask of tails over prefix keys, then own keys, (tails, 1, width, both widths), or ``None``."""
        if window not in self._tail_masks:
            self._tail_masks[window] = self._tail_mask(window)
        return self._tail_masks[window]

    def _tail_mask(self, window: int | None) -> Tensor | None:
        if not self.prefix_width and (window is None or window >= self.tail_width):
            return None
        own = self._causal(self.tail_width, window).expand(self.tails, -1, -1)
        if not self.prefix_width:
            return own[:, None]
        key = torch.arange(self.prefix_width, device=self.device)
        seen = (key < self.before[:, None])[:, None].expand(-1, self.tail_width, -1)
        if window is not None:
            position = self.before[:, None] + torch.arange(self.tail_width, device=self.device)
            seen = seen & (key > position[:, :, None] - window)
        return torch.cat([seen, own], -1)[:, None]

    def _causal(self, width: int, window: int | None) -> Tensor:
        seen = torch.ones(width, width, dtype=torch.bool, device=self.device).tril_()
        return seen if window is None else seen.triu_(1 - window)


def prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_plan: PrefixPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within each prefix, and from each tail to its prefix and itself; all tensors (1, heads, tokens, dim).

    Returns:
        The attention output, shape (1, tokens, heads, dim), and None for the weights.
    """
    if position_bias is not None:
        raise DataError(f"the attention of {type(module).__name__} has a position bias, which the trainer lacks")
    plan = prefix_plan
    (queries, tail_queries), (keys, tail_keys), (values, tail_values) = map(plan.cut, (query, key, value))
    parts = []
    if plan.prefix_width:
        parts.append(_attend(queries, keys, values, plan.prefix_mask(sliding_window), scaling, softcap, s_aux))
        tail_keys = torch.cat([keys[plan.prefix_of], tail_keys], 2)
        tail_values = torch.cat([values[plan.prefix_of], tail_values], 2)
    seen = plan.tail_mask(sliding_window)
    parts.append(_attend(tail_queries, tail_keys, tail_values, seen, scaling, softcap, s_aux))
    return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])[None], None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Softmax attention, (rows, heads, queries, dim); causal where ``seen`` is None."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, seen, is_causal=seen is None, scale=scale)
    scores = (query @ key.transpose(-1, -2)).float() * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if seen is None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sinks = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value


AttentionInterface.register(NAME, prefix_attention)


def unsupported(model: PreTrainedModel) -> str | None:
    """Returns why the attention here cannot replace the model's own, if its interface or configuration rules it out."""
    parameters = inspect.signature(model.forward).parameters
    if "logits_to_keep" not in parameters or all(p.kind != p.VAR_KEYWORD for p in parameters.values()):
        return "its forward takes no logits_to_keep, or no further arguments for its attention"
    layers = set(model.config.get_text_config(decoder=True).to_dict().get("layer_types") or ())
    if layers - KNOWN_LAYERS:
        return f"it has layers of other kinds than full and sliding attention ({', '.join(sorted(layers))})"
    return None


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute the activations of each layer in the backward pass, with the attention of its forward pass."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), attending(model, model.config.get_text_config(decoder=True)._attn_implementation)

    # The public method, which does this, has had two names since transformers 5.17.
    model._set_gradient_checkpointing(
        enable=True, gradient_checkpointing_func=partial(checkpoint, use_reentrant=False, context_fn=contexts)
    )


@contextmanager
def attending(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The attention registered as ``name`` in the place of the model's own."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module's own mode is put back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def narrow_windows(model: PreTrainedModel, window: int) -> Iterator[None]:
    """Sliding windows of ``window`` tokens in the place of wider ones, so that short sequences go past them."""
    holders = [vars(model.config.get_text_config(decoder=True)), *(vars(module) for module in model.modules())]
    before = [(holder, holder["sliding_window"]) for holder in holders if holder.get("sliding_window")]
    for holder, wide in before:
        holder["sliding_window"] = min(window, wide)
    try:
        yield
    finally:
        for holder, wide in before:
            holder["sliding_window"] = wide
