"""Attention of a flat batch: new tokens of many sequences in one row, each against the keys of its own sequence.

Registered with transformers as an attention implementation, so that any decoder-only model that takes its attention
from there runs on it unchanged. Linear layers see each token once, without padding. The keys and values of all new
tokens are stored first; then each attends to its sequence, whichever sequence of the batch stores which part of it.

On a CPU the few new tokens of running responses and observations are one call of a compiled kernel
(:mod:`trainers.rollout.compiled_attention`). Elsewhere, and where numba is not installed, beginnings that sequences
share are attended to by all of them together, what is left by each alone, many in one call, and the parts are merged by
their softmax sums, as in FlashAttention.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from envsuite.core.errors import UsageError
from trainers.policy.attention import Scoring
from trainers.policy.precision import as_computed
from trainers.policy.tree_plan import merge_attention
from trainers.rollout.kv_cache import KeysValues
from trainers.rollout.step_plan import Call, Places, Span, StepPlan

NAME = "envsuite_slots"
_QUERIES = 512  # tokens whose windows are attended to at a time
_ALIGNED = 16  # the memory-efficient kernel wants rows of a mask to begin at multiples of so many elements
EFFICIENT = {"cuda"}
"""Types of devices whose attention is PyTorch's memory-efficient kernel."""


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores: -inf where ``hidden`` is true, else 0; its rows are aligned in memory."""
    width = hidden.shape[-1]
    room = -(-width // _ALIGNED) * _ALIGNED
    mask = torch.zeros(*hidden.shape[:-1], room, dtype=dtype, device=hidden.device)[..., :width]
    return mask.masked_fill_(hidden, -torch.inf)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: Scoring, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Softmax attention and the logarithm of its softmax sum, which merging needs.

    Args:
        query: Shape (batch, heads, queries, dim); ``key`` and ``value`` alike.
        key: Keys that the queries attend to.
        value: Values that are averaged.
        mask: Added to the scores.
        how: Scale and cap of the scores.
        causal: Query i sees keys 0 .. i only.

    Returns:
        The output, shape (batch, heads, queries, dim), and the log-sums, float32, shape (batch, heads, queries).
    """
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1] and how.softcap is None:
        out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=how.scale
        )
        return out, total
    if query.device.type in EFFICIENT and how.softcap is None:
        bias = None if mask is None else mask.expand(*query.shape[:3], key.shape[2])
        out, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, 0.0, causal, scale=how.scale
        )
        return out, total[..., : query.shape[2]]  # the kernel pads the sums
    scores = query @ key.transpose(-1, -2)
    scores = scores.float() * (query.shape[-1] ** -0.5 if how.scale is None else how.scale)
    if how.softcap is not None:
        scores = (scores / how.softcap).tanh_() * how.softcap
    if causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=scores.device).triu_(1)
    if mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1)
    return (scores - total[..., None]).exp().to(value.dtype) @ value, total


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_plan: StepPlan,
    **options: Any,
) -> tuple[Tensor, None]:
    """Stores new keys and values, and attends by the plan; all tensors (1, heads, tokens, dim).

    Returns:
        The attention output, shape (1, tokens, heads, dim), and None for the weights.
    """
    for name, feature in (("s_aux", "sinks"), ("position_bias", "a position bias")):
        if options.get(name) is not None:
            raise UsageError(f"the attention of {type(module).__name__} has {feature}, which the hf engine lacks")
    plan, how = slot_plan, Scoring.of(options)
    query, key, value = as_computed(query, key, value)
    index = module.layer_idx
    assert isinstance(index, int)
    buffers = plan.cache.pages.layer(index, key, value, plan.held_dtype(key))
    window = how.window if how.window and plan.longest > how.window else None
    queries = query[0].transpose(0, 1)
    out = query.new_empty(*queries.shape[:2], value.shape[3])
    if plan.compiled:
        _attend_compiled(plan, queries, key, value, buffers, window, how, out)
    else:
        slots = plan.once("slots", lambda: plan.tensor(plan.slots))
        for buffer, new in zip(buffers, (key, value), strict=True):
            buffer.index_copy_(1, slots, new[0])
        if plan.short:
            _attend_calls(plan, queries[: plan.short_tokens], buffers, window, how, out)
    for span in plan.long:
        _attend_span(plan, span, queries, (key[0], value[0]), buffers, window, how, out)
    return out[None], None


def _attend_compiled(
    plan: StepPlan,
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    buffers: KeysValues,
    window: int | None,
    how: Scoring,
    out: Tensor,
) -> None:
    """Stores all new keys and values, and computes attention of short spans."""
    from trainers.rollout import compiled_attention  # takes a moment to import, and only a CPU needs it

    compiled_attention.store(buffers, plan.slots, key[0].transpose(0, 1).float(), value[0].transpose(0, 1).float())
    if not plan.short:
        return
    count, table = plan.short_tokens, plan.cache.table
    result = out if out.dtype == torch.float32 else out.new_empty(out.shape, dtype=torch.float32)
    compiled_attention.attend(
        queries[:count].float().contiguous(), buffers, plan.table_rows[:count], plan.lengths[:count],
        (table.pages, table.bases, table.starts, table.counts), window, how.scale, how.softcap, result,
    )  # fmt: skip
    if result is not out:
        out[:count] = result[:count].to(out.dtype)


def _group_heads(queries: Tensor, key_heads: int) -> Tensor:
    """Reshapes (tokens, heads, dim) to queries of one sequence: (1, key heads, groups * tokens, dim)."""
    tokens, heads, dim = queries.shape
    rows = queries.reshape(tokens, key_heads, heads // key_heads, dim)
    return rows.permute(1, 2, 0, 3).flatten(1, 2)[None]


def _ungroup_heads(result: Tensor, tokens: int) -> Tensor:
    """Reverses :func:`_group_heads`: (1, key heads, groups * tokens, …) to (tokens, heads, …)."""
    return result.reshape(result.shape[1], -1, tokens, *result.shape[3:]).movedim(2, 0).flatten(1, 2)


def _attend_calls(
    plan: StepPlan, queries: Tensor, buffers: KeysValues, window: int | None, how: Scoring, out: Tensor
) -> None:
    """Computes attention of single tokens, call by call; each token has one with keys of its own, which comes last."""
    dim, key_heads = queries.shape[2], buffers[0].shape[0]
    parts: tuple[Tensor, Tensor] | None = None
    calls: list[Call] = plan.once(("calls", window), lambda: plan.calls(window))
    for number, call in enumerate(calls):
        call_queries = _select(queries, 0, call.tokens)
        keys, values = (_select(part, 1, call.keys) for part in buffers)
        if call.per_token is None:
            result, sums = attend(_group_heads(call_queries, key_heads), keys[None], values[None], None, how)
            attention = _ungroup_heads(result, len(call_queries)), _ungroup_heads(sums, len(call_queries))
        else:
            room = call.per_token
            keys, values = (part.view(key_heads, -1, room, part.shape[2]).transpose(0, 1) for part in (keys, values))
            mask = None
            if call.hidden is not None:
                make_mask = partial(additive, call.hidden[:, None, None], queries.dtype)
                mask = plan.once((window, number, queries.dtype), make_mask)
            result, sums = attend(call_queries.view(len(call_queries), key_heads, -1, dim), keys, values, mask, how)
            attention = result.flatten(1, 2), sums.flatten(1, 2)
        if len(calls) == 1:
            out[call.tokens] = attention[0].to(out.dtype)
            return
        if parts is None:
            none = torch.full(queries.shape[:2], -torch.inf, device=queries.device)
            parts = out[: len(queries)].zero_(), none
        if not call.is_first:
            before = (_select(parts[0], 0, call.tokens), _select(parts[1], 0, call.tokens))
            attention = merge_attention(before, attention)
        for part, new in zip(parts, attention, strict=True):
            part[call.tokens] = new


def _select(rows: Tensor, dim: int, places: Places) -> Tensor:
    """The rows at these places of a dimension; neighbours are not copied."""
    if isinstance(places, slice):
        return rows.narrow(dim, places.start, places.stop - places.start)
    return rows.index_select(dim, places)


def _attend_span(
    plan: StepPlan, span: Span, queries: Tensor, new: KeysValues, buffers: KeysValues, window: int | None, how: Scoring,
    out: Tensor,
) -> None:  # fmt: skip
    """Computes attention of several new tokens of one sequence: to what was before them, and to each other."""
    row, here, dtype = span.row, slice(span.begin, span.end), queries.dtype
    span_queries, count = queries[here], span.end - span.begin
    key_heads, groups = buffers[0].shape[0], queries.shape[1] // buffers[0].shape[0]
    if window is not None:
        slots = plan.once(("span", span.begin), lambda: plan.tensor(row.slots[: row.length]))
        for begin in range(0, count, _QUERIES):
            end = min(begin + _QUERIES, count)
            first = max(0, row.ready + begin + 1 - window)
            keys, values = (part.index_select(1, slots[first : row.ready + end]).to(dtype)[None] for part in buffers)
            make_mask = partial(_band, row.ready + begin, row.ready + end, first, window, groups, dtype, plan.device)
            mask = plan.once((window, span.begin, begin, dtype), make_mask)
            result, _ = attend(_group_heads(span_queries[begin:end], key_heads), keys, values, mask, how)
            out[span.begin + begin : span.begin + end] = _ungroup_heads(result, end - begin)
        return
    keys, values = (part[:, here].repeat_interleave(groups, 0)[None] for part in new)
    result, sums = attend(span_queries.transpose(0, 1)[None], keys, values, None, how, causal=True)
    attention = result[0].transpose(0, 1), sums[0].transpose(0, 1)
    if row.ready:
        before = plan.once(("before", span.begin), lambda: plan.places(row.slots[: row.ready]))
        keys, values = (_select(part, 1, before).to(dtype)[None] for part in buffers)
        result, sums = attend(_group_heads(span_queries, key_heads), keys, values, None, how)
        attention = merge_attention(attention, (_ungroup_heads(result, count), _ungroup_heads(sums, count)))
    out[here] = attention[0]


def _band(
    begin: int, end: int, first: int, window: int, repeats: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The mask of positions ``begin .. end`` over keys from position ``first``, for ``repeats`` heads, 0 or -inf.

    Shape (1, 1, repeats * tokens, keys).
    """
    position = torch.arange(begin, end, device=device)[:, None]
    column = torch.arange(first, end, device=device)
    hidden = (column > position) | (column <= position - window)
    return additive(hidden.repeat(repeats, 1)[None, None], dtype)


AttentionInterface.register(NAME, slot_attention)
