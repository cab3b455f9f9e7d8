"""Attention of a token tree: each token sees those on its path.

Registered with transformers as an attention implementation, so that a decoder-only model that takes its attention from
there computes each token once, in one row and without a cache. Recomputing activations in the backward pass (gradient
checkpointing) therefore needs nothing else, and sliding windows, soft-capped scores and attention sinks are those that
the model asks for.

FlashAttention, as PyTorch has it, computes a layer in one call where it can. Elsewhere the row is cut into tiles of
neighbouring tokens. Both gather keys (:mod:`trainers.policy.tree_plan`), and do not keep them for the backward pass,
which gathers them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError
from trainers.policy.precision import as_computed
from trainers.policy.recurrent import concatenate, follow_trees, is_recurrent
from trainers.policy.routing import again
from trainers.policy.tree_plan import Tiles, TreePlan

NAME = "envsuite_tree"
_GATHERED = 2**26  # most elements of the keys that are gathered for a call of FlashAttention: 128 MiB in bfloat16
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class Scoring:
    """How scores are made of queries and keys."""

    scale: float | None = None
    """dim ** -0.5 by default."""
    window: int | None = None
    """Width of the sliding window."""
    softcap: float | None = None
    """Soft cap of the scores, as in Gemma 2."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Scoring:
        """Reads what transformers passes on to an attention."""
        return cls(*map(options.get, ("scaling", "sliding_window", "softcap")))


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_plan: TreePlan,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends from each token to those on its path; all tensors (1, heads, tokens, dim).

    Returns:
        The attention output, shape (1, tokens, heads, dim), and None for the weights.
    """
    if options.get("position_bias") is not None:
        raise DataError(f"the attention of {type(module).__name__} has a position bias, which the trainer lacks")
    queries, keys, values = rows_of(module, query, key, value, tree_plan)
    how, sinks = Scoring.of(options), options.get("s_aux")
    function = _VarlenAttention if _takes_flash(queries, values, sinks, how) else _TreeAttention
    out: Tensor = function.apply(queries, keys, values, sinks, tree_plan, how)  # type: ignore[no-untyped-call]
    return out[None], None


def rows_of(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, plan: TreePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the tokens that are computed, keys and values of all, (tokens, heads, dim), in the compute format."""
    queries, keys, values = (part.squeeze(0).transpose(0, 1) for part in as_computed(query, key, value))
    if plan.past is not None:
        assert isinstance(module.layer_idx, int)
        keys, values = plan.past.join(module.layer_idx, keys, values)
    return queries, keys, values


def _takes_flash(query: Tensor, value: Tensor, sinks: Tensor | None, how: Scoring) -> bool:
    """Whether PyTorch's FlashAttention computes this, forward and backward; tensors (tokens, heads, dim)."""
    size = query.shape[2]
    if sinks is not None or how.softcap is not None or value.shape[2] != size:
        return False
    # A size between has no backward pass on some GPUs.
    return size % 8 == 0 and (size <= 192 or size == 256) and _runs_flash(query.device, query.dtype)


def _runs_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's FlashAttention runs on a device in a format: on GPUs from Ampere on, unless turned off."""
    if device.type != "cuda" or dtype != torch.bfloat16 or not torch.backends.cuda.is_flash_attention_available():
        return False
    is_on: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return is_on and torch.cuda.get_device_capability(device) >= (8, 0)


class _VarlenAttention(torch.autograd.Function):
    """FlashAttention of the chains of a row; queries, keys and values (tokens, heads, dim).

    By the two operations that ``torch.nn.attention.varlen`` is made of, as its function would keep gathered keys.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: None, plan: TreePlan, how: Scoring
    ) -> Tensor:
        calls = plan.sequences(_GATHERED // key[0].numel())
        scoring = {"scale": how.scale, "window_size_left": (how.window or 0) - 1, "window_size_right": 0}
        parts: list[Tensor] = []
        statistics: list[Tensor] = []
        for call in calls:
            pair = (part.index_select(0, call.keys) for part in (key, value))
            output, *more, _ = torch.ops.aten._flash_attention_forward(
                query[call.queries], *pair, *call.lengths, 0.0, True, False, **scoring
            )
            parts.append(output)
            statistics += more
        out = concatenate(parts)
        ctx.save_for_backward(query, key, value, out, *statistics)
        ctx.settings = (calls, scoring)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *statistics = ctx.saved_tensors
        calls, scoring = ctx.settings
        of_key, of_value = _zero_sums(key, value)
        parts: list[Tensor] = []
        for number, call in enumerate(calls):
            total, *random_state = statistics[3 * number : 3 * number + 3]
            pair = (part.index_select(0, call.keys) for part in (key, value))
            of_query, *of_gathered = torch.ops.aten._flash_attention_backward(
                grad[call.queries], query[call.queries], *pair, out[call.queries], total,
                *call.lengths, 0.0, True, *random_state, **scoring,
            )  # fmt: skip
            parts.append(of_query)
            for buffer, part in zip((of_key, of_value), of_gathered, strict=True):
                buffer.index_add_(0, call.keys, part.to(buffer.dtype))
        return concatenate(parts), of_key.to(key.dtype), of_value.to(value.dtype), None, None, None


def _zero_sums(*parts: Tensor) -> list[Tensor]:
    """Buffers for gradients, to which many queries add at a key of the beginning: a sum is rounded once."""
    return [torch.zeros(part.shape, dtype=_statistics_dtype(part), device=part.device) for part in parts]


class _TreeAttention(torch.autograd.Function):
    """Attention over the tiles of a row; queries, keys and values (tokens, heads, dim)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, plan: TreePlan, how: Scoring
    ) -> Tensor:
        is_fused = _is_fused(query, value, sinks, how)
        out = query.new_empty(*query.shape[:2], value.shape[2])
        total = torch.empty(query.shape[:2] if is_fused else (0,), dtype=_statistics_dtype(query), device=query.device)
        chains, tile_groups = plan.parts(how.window, is_fused)
        for chain in chains:
            chain.attend(query, key, value, how.scale, out, total)
        for tiles in tile_groups:
            inputs = _gather_tiles(tiles, query, key, value)
            mask = tiles.mask(query.shape[1] // key.shape[1], query.dtype, how.window)
            if is_fused:
                output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    *inputs, 0.0, False, attn_mask=mask, scale=how.scale
                )
                _scatter(tiles, sums[..., None], total[..., None])
            else:
                output = _attend(*inputs, mask, sinks, how)
            _scatter(tiles, output, out)
        ctx.save_for_backward(query, key, value, sinks, out if is_fused else None, total if is_fused else None)
        ctx.settings = (plan, how, is_fused)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, out, total = ctx.saved_tensors
        plan, how, is_fused = ctx.settings
        of_query = torch.empty_like(query)
        of_key, of_value = _zero_sums(key, value)
        of_sinks = None if sinks is None else torch.zeros_like(sinks)
        chains, tile_groups = plan.parts(how.window, is_fused)
        for chain in chains:
            chain.backward(grad, query, key, value, out, total, how.scale, of_query, of_key, of_value)
        for tiles in tile_groups:
            inputs = _gather_tiles(tiles, query, key, value)
            mask = tiles.mask(query.shape[1] // key.shape[1], query.dtype, how.window)
            of_out = _tile(tiles, grad, key.shape[1], repeat=False)
            if is_fused:
                parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    of_out, *inputs, _tile(tiles, out, key.shape[1]),
                    _tile(tiles, total[..., None], key.shape[1])[..., 0],
                    0.0, False, attn_mask=mask, scale=how.scale,
                )  # fmt: skip
            else:
                leaves = [part.detach().requires_grad_() for part in inputs]
                own = None if sinks is None else sinks.detach().requires_grad_()
                with torch.enable_grad():
                    output = _attend(leaves[0], leaves[1], leaves[2], mask, own, how)
                parts = torch.autograd.grad(output, leaves if own is None else [*leaves, own], of_out)
                if of_sinks is not None:
                    of_sinks += parts[3]
            _scatter(tiles, parts[0], of_query)
            for buffer, part in ((of_key, parts[1]), (of_value, parts[2])):
                buffer.index_add_(0, tiles.keys, part.transpose(1, 2).flatten(0, 1).to(buffer.dtype))
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), of_sinks, None, None


def _statistics_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _is_fused(query: Tensor, value: Tensor, sinks: Tensor | None, how: Scoring) -> bool:
    """Whether PyTorch's kernel for CPUs computes this, forward and backward."""
    return query.device.type == "cpu" and query.shape[2] == value.shape[2] and sinks is None and how.softcap is None


def _gather_tiles(tiles: Tiles, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, (tiles, key heads, groups * width, dim), and keys and values, (tiles, key heads, length, dim)."""
    keys, values = (
        part.index_select(0, tiles.keys).view(tiles.count, tiles.length, *part.shape[1:]).transpose(1, 2)
        for part in (key, value)
    )
    return _tile(tiles, query, key.shape[1]), keys, values


def _tile(tiles: Tiles, rows: Tensor, key_heads: int, repeat: bool = True) -> Tensor:
    """``rows`` (tokens, heads, dim) at the queries of the tiles, (tiles, key heads, groups * width, dim).

    Query heads that share a key head lie behind each other, as if they were further queries. Repetitions of the last
    token are zeros if not ``repeat``.
    """
    parts = rows.index_select(0, tiles.queries)
    if not repeat and len(tiles.real) < len(parts):
        parts = torch.zeros_like(parts).index_copy_(0, tiles.real, parts.index_select(0, tiles.real))
    parts = parts.view(tiles.count, tiles.width, key_heads, -1, rows.shape[2])
    return parts.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _scatter(tiles: Tiles, parts: Tensor, rows: Tensor) -> None:
    """Reverses :func:`_tile`: writes ``parts`` to ``rows``."""
    values = parts.reshape(*parts.shape[:2], -1, tiles.width, parts.shape[3])
    values = values.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
    if len(tiles.real) < len(values):
        rows.index_copy_(0, tiles.queries.index_select(0, tiles.real), values.index_select(0, tiles.real))
    else:
        rows.index_copy_(0, tiles.queries, values)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor | None, how: Scoring) -> Tensor:
    """Softmax attention of tiles, (tiles, key heads, queries, dim); ``mask`` is added to the scores."""
    if how.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, mask, scale=how.scale)
    scores = (query @ key.transpose(-1, -2)).float() * (query.shape[-1] ** -0.5 if how.scale is None else how.scale)
    if how.softcap is not None:
        scores = (scores / how.softcap).tanh() * how.softcap
    scores = scores + mask
    if sinks is not None:  # one for each query head
        groups = len(sinks) // key.shape[1]
        own = sinks.to(scores.dtype).view(key.shape[1], groups).repeat_interleave(scores.shape[2] // groups, 1)
        scores = torch.cat([scores, own[None, :, :, None].expand(len(scores), -1, -1, 1)], -1)
    return scores.softmax(-1)[..., : key.shape[2]].to(value.dtype) @ value


AttentionInterface.register(NAME, tree_attention)


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Returns why a tree cannot be computed by ``model``, or its backbone, if what its layers are rules it out."""
    if all(p.kind != p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values()):
        return "its forward takes no further arguments for its attention"
    settings = model.config.get_text_config(decoder=True).to_dict()
    layers = set(settings.get("layer_types") or ())
    follows = is_recurrent(model) and follow_trees(model)
    if layers - KNOWN_LAYERS and not follows:
        return f"it has layers of other kinds than full and sliding attention ({', '.join(sorted(layers))})"
    if is_recurrent(model) and not follows:
        return "its layers have convolutions along the tokens"
    if settings.get("alibi"):
        return "it adds positions to its scores (ALiBi)"
    return None


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute the activations of each layer in the backward pass, with attention and experts of its forward pass.

    Raises:
        DataError: The model is not made of layers that can be recomputed.
    """
    if not model.supports_gradient_checkpointing:
        raise DataError(
            f"transformers recomputes no activations of {type(model).__name__}; set model.gradient_checkpointing: false"
        )

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        attention = model.config.get_text_config(decoder=True)._attn_implementation
        experts = again(model)

        @contextmanager
        def recomputing() -> Iterator[None]:
            with attending(model, attention), experts:
                yield

        return nullcontext(), recomputing()

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
