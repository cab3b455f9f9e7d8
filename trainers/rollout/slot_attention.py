"""Attention of a flat batch: tokens of many sequences in one row, each against the keys of its own sequence.

Registered with transformers as an attention implementation, so that any decoder-only model that takes its attention
from there runs on it unchanged. Linear layers see each token once, without padding. Attention has two parts, merged by
their softmax sums as in FlashAttention: all tokens whose sequences share a root against that root together, and each
sequence against its own tail, neighbouring slots of similar length in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface

from envsuite.core.errors import UsageError
from trainers.policy.precision import as_computed
from trainers.policy.selfcheck import REMEDY
from trainers.rollout.kv_cache import Root, Slot, SlotCache

NAME = "envsuite_slots"
_CALL = {"cpu": 512}  # what one attention call costs besides its work, in keys of one sequence
_CALL_ELSEWHERE = 16384  # on a GPU: a launch or two, in which it reads some ten megabytes
_ALIGNED = 16  # the memory-efficient kernel wants rows of a mask to begin at multiples of so many elements
EFFICIENT = {"cuda"}
"""Types of devices whose attention is PyTorch's memory-efficient kernel."""


@dataclass(frozen=True)
class Scores:
    """Scale and cap of attention scores."""

    scale: float | None = None
    """dim ** -0.5 by default."""
    softcap: float | None = None
    """Soft cap of the scores, as in Gemma 2."""


@dataclass(frozen=True)
class Span:
    """Consecutive new tokens of one sequence that are stored together, in a root or a tail."""

    slot: Slot
    begin: int
    """Index of the first in the flat batch."""
    start: int
    """Position of the first in its sequence."""
    stop: int

    @property
    def end(self) -> int:
        """Index after the last in the flat batch."""
        return self.begin + self.stop - self.start


@dataclass(frozen=True)
class Run:
    """Single new tokens of sequences in neighbouring slots: ``begin .. end`` of the flat batch, slots from ``slot``."""

    slot: int
    begin: int
    end: int
    length: int
    """Length of the longest tail."""
    even: bool
    """Whether all tails have that length."""


@dataclass
class StepPlan:
    """Plan of one forward pass.

    The flat batch is: the single next tokens of running responses in the order of their slots; then spans that several
    tokens append to a tail; then spans of new roots.
    """

    cache: SlotCache
    singles: list[Span]
    appended: list[Span]
    rooted: list[Span]
    device: torch.device

    def __post_init__(self) -> None:
        tails = self.singles + self.appended
        self.tail_tokens = tails[-1].end if tails else 0
        self.longest = max(span.stop for span in tails)
        self.slot_of = self._tensor(np.concatenate([np.full(s.stop - s.start, s.slot.index) for s in tails]))
        self.place_of = self._tensor(
            np.concatenate([np.arange(s.start - s.slot.root_length, s.stop - s.slot.root_length) for s in tails])
        )
        self.runs = _runs(self.singles, _CALL.get(self.device.type, _CALL_ELSEWHERE))
        lengths = self.place_of[: len(self.singles), None] + 1
        widest = max((run.length for run in self.runs), default=0)
        self._hidden = torch.arange(widest, device=self.device) >= lengths
        groups: dict[tuple[int, int], list[Span]] = {}
        for span in tails:
            if span.slot.root is not None and span.slot.root_length:
                groups.setdefault((id(span.slot.root), span.slot.root_length), []).append(span)
        self.groups: list[tuple[Root, int, int, int]] = []
        order: list[NDArray[np.int64]] = []
        begin = 0
        for (_, length), spans in groups.items():
            order.extend(np.arange(span.begin, span.end) for span in spans)
            end = begin + sum(span.end - span.begin for span in spans)
            root = spans[0].slot.root
            assert root is not None
            self.groups.append((root, length, begin, end))
            begin = end
        self.order = self._tensor(np.concatenate(order)) if order else None
        self._masks: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._run_masks: dict[torch.dtype, Tensor] = {}

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def run_mask(self, run: Run, dtype: torch.dtype) -> Tensor | None:
        """Returns the mask that hides keys past each tail of ``run``, shape (tokens, 1, 1, length), 0 or -inf."""
        if run.even:
            return None
        if dtype not in self._run_masks:
            self._run_masks[dtype] = additive(self._hidden[:, None, None], dtype)
        return self._run_masks[dtype][run.begin : run.end, :, :, : run.length]

    def causal(self, span: Span, origin: int, repeats: int, dtype: torch.dtype) -> Tensor:
        """Returns the causal mask of ``span`` over keys from position ``origin``, 0 or -inf, for ``repeats`` heads.

        Shape (1, 1, repeats * tokens, stop - origin).
        """
        key = (span.begin, repeats, dtype)
        if key not in self._masks:
            count, width = span.stop - span.start, span.stop - origin
            hidden = torch.ones(count, width, dtype=torch.bool, device=self.device).triu_(width - count + 1)
            self._masks[key] = additive(hidden.repeat(repeats, 1)[None, None], dtype)
        return self._masks[key]


def plan_step(cache: SlotCache, slots: Sequence[Slot], device: torch.device) -> StepPlan:
    """The plan for ``slots``: those with one token for their tail come first, by index, then those with more."""
    spans: tuple[list[Span], list[Span], list[Span]] = ([], [], [])
    begin = 0
    for slot in slots:
        start = max(slot.ready, slot.root_length)
        spans[slot.planned - start > 1].append(Span(slot, begin, start, slot.planned))
        begin += slot.planned - start
    for slot in slots:
        if slot.ready < slot.root_length:
            spans[2].append(Span(slot, begin, slot.ready, slot.root_length))
            begin += slot.root_length - slot.ready
    return StepPlan(cache, *spans, device)


def _runs(singles: list[Span], call: int) -> list[Run]:
    """Cut slots into runs: a neighbour joins where the padding it causes costs less than a call of its own."""
    runs: list[Run] = []
    for span in singles:
        length = span.stop - span.slot.root_length
        if runs:
            last = runs[-1]
            count = last.end - last.begin
            widest = max(last.length, length)
            waste = (widest - last.length) * count + widest - length
            if last.slot + count == span.slot.index and waste <= call:
                even = last.even and length == last.length
                runs[-1] = Run(last.slot, last.begin, span.end, widest, even)
                continue
        runs.append(Run(span.slot.index, span.begin, span.end, length, True))
    return runs


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores: -inf where ``hidden`` is true, else 0; its rows are aligned in memory."""
    width = hidden.shape[-1]
    room = -(-width // _ALIGNED) * _ALIGNED
    mask = torch.zeros(*hidden.shape[:-1], room, dtype=dtype, device=hidden.device)[..., :width]
    return mask.masked_fill_(hidden, -torch.inf)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: Scores, causal: bool = False
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
        seen = None if mask is None else mask.expand(*query.shape[:3], key.shape[2])
        out, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, seen, True, 0.0, causal, scale=how.scale
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
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store ``key`` and ``value`` (1, key heads, tokens, dim) and attend with ``query`` (1, heads, tokens, dim).

    Returns:
        The attention output, shape (1, tokens, heads, dim), and None for the weights.
    """
    if s_aux is not None or position_bias is not None:
        raise UsageError(
            f"the hf engine lacks the attention of {type(module).__name__} (attention sinks or a position bias); "
            f"{REMEDY}"
        )
    plan, how = slot_plan, Scores(scaling, softcap)
    query, key, value = as_computed(query, key, value)
    index = module.layer_idx
    assert isinstance(index, int)
    heads, key_heads, tokens = query.shape[1], key.shape[1], query.shape[2]
    groups = heads // key_heads
    rows = query[0].transpose(0, 1).reshape(tokens, key_heads, groups, query.shape[3])
    out = query.new_empty(tokens, key_heads, groups, value.shape[3])
    tail = plan.cache.tail(index, key, value)
    for buffer, new in zip(tail, (key, value), strict=True):
        buffer.transpose(1, 2).index_put_((plan.slot_of, plan.place_of), new[0, :, : plan.tail_tokens].transpose(0, 1))
    for span in plan.rooted:
        root = span.slot.root
        assert root is not None
        for buffer, new in zip(root.layer(index, key, value), (key, value), strict=True):
            buffer[:, span.start : span.stop] = new[0, :, span.begin : span.end]
    if sliding_window and plan.longest > sliding_window:
        _windowed(plan, index, rows, tail, how, sliding_window, out)
        return out.flatten(1, 2)[None], None
    _to_roots(plan, index, rows, how, out)
    total = _to_tails(plan, rows, tail, how, out)
    if plan.order is not None:
        _merge_roots(plan, index, rows, how, out, total)
    return out.flatten(1, 2)[None], None


def _flat(rows: Tensor) -> Tensor:
    """Reshapes (tokens, key heads, groups, dim) to queries of one sequence: (1, key heads, groups * tokens, dim)."""
    return rows.permute(1, 2, 0, 3).flatten(1, 2)[None]


def _unflat(result: Tensor, tokens: int) -> Tensor:
    """Reverses :func:`_flat`: (1, key heads, groups * tokens, …) to (tokens, key heads, groups, …)."""
    return result.reshape(result.shape[1], -1, tokens, *result.shape[3:]).movedim(2, 0)


def _to_roots(plan: StepPlan, index: int, rows: Tensor, how: Scores, out: Tensor) -> None:
    """Computes attention of new roots, each causal in itself."""
    groups = rows.shape[2]
    for span in plan.rooted:
        assert span.slot.root is not None
        keys, values = (part[:, : span.stop] for part in span.slot.root.layers[index])
        if span.start == 0:
            queries = rows[span.begin : span.end].flatten(1, 2).transpose(0, 1)[None]
            keys, values = (part.repeat_interleave(groups, 0)[None] for part in (keys, values))
            result, _ = attend(queries, keys, values, None, how, causal=True)
            out[span.begin : span.end] = result[0].transpose(0, 1).view_as(out[span.begin : span.end])
        else:
            mask = plan.causal(span, 0, groups, rows.dtype)
            result, _ = attend(_flat(rows[span.begin : span.end]), keys[None], values[None], mask, how)
            out[span.begin : span.end] = _unflat(result, span.end - span.begin)


def _to_tails(plan: StepPlan, rows: Tensor, tail: tuple[Tensor, Tensor], how: Scores, out: Tensor) -> Tensor:
    """Computes attention of each sequence to its own tail; returns the log-sums, shape (tokens, key heads, groups)."""
    total = torch.empty(plan.tail_tokens, *rows.shape[1:3], dtype=torch.float32, device=rows.device)
    for run in plan.runs:
        here = slice(run.begin, run.end)
        slots = slice(run.slot, run.slot + run.end - run.begin)
        keys, values = (part[slots, :, : run.length] for part in tail)
        out[here], total[here] = attend(rows[here], keys, values, plan.run_mask(run, rows.dtype), how)
    for span in plan.appended:
        here = slice(span.begin, span.end)
        origin = span.slot.root_length
        keys, values = (part[span.slot.index, None, :, : span.stop - origin] for part in tail)
        mask = plan.causal(span, origin, rows.shape[2], rows.dtype)
        result, sums = attend(_flat(rows[here]), keys, values, mask, how)
        out[here], total[here] = _unflat(result, span.end - span.begin), _unflat(sums, span.end - span.begin)
    return total


def _merge_roots(plan: StepPlan, index: int, rows: Tensor, how: Scores, out: Tensor, total: Tensor) -> None:
    """Adds the tokens' attention to their roots to ``out``, all tokens of a root in one call."""
    assert plan.order is not None
    queries = rows.index_select(0, plan.order)
    seen = out.new_empty(len(queries), *out.shape[1:])
    sums = torch.empty(queries.shape[:3], dtype=torch.float32, device=rows.device)
    for root, length, begin, end in plan.groups:
        keys, values = (part[None, :, :length] for part in root.layers[index])
        result, group_sums = attend(_flat(queries[begin:end]), keys, values, None, how)
        seen[begin:end], sums[begin:end] = _unflat(result, end - begin), _unflat(group_sums, end - begin)
    share = torch.sigmoid(sums - total.index_select(0, plan.order))[..., None].to(out.dtype)
    own = out.index_select(0, plan.order)
    out.index_copy_(0, plan.order, torch.lerp(own, seen, share))


def _windowed(
    plan: StepPlan,
    index: int,
    rows: Tensor,
    tail: tuple[Tensor, Tensor],
    how: Scores,
    window: int,
    out: Tensor,
) -> None:
    """A layer whose tokens see only the last ``window`` positions: one sequence at a time, root and tail joined."""
    for span in plan.singles + plan.appended + plan.rooted:
        slot, low = span.slot, max(0, span.start + 1 - window)
        parts = []
        for number in (0, 1):
            own = tail[number][slot.index, :, : max(0, span.stop - slot.root_length)]
            root = None if slot.root is None else slot.root.layers[index][number][:, : min(span.stop, slot.root_length)]
            parts.append((own if root is None else torch.cat([root, own], 1))[None, :, low:])
        position = torch.arange(span.start, span.stop, device=rows.device)[:, None]
        column = torch.arange(low, span.stop, device=rows.device)
        hidden = (column > position) | (column <= position - window)
        mask = additive(hidden.repeat(rows.shape[2], 1)[None, None], rows.dtype)
        result, _ = attend(_flat(rows[span.begin : span.end]), parts[0], parts[1], mask, how)
        out[span.begin : span.end] = _unflat(result, span.end - span.begin)


AttentionInterface.register(NAME, slot_attention)
