"""Attention of a flat batch: tokens of many sequences in one row, each against the keys of its own sequence.

Registered with transformers as an attention implementation, so that any decoder-only model that takes its attention
from there runs on it unchanged. Linear layers see each token once, without padding. Attention has two parts, merged by
their softmax sums as in FlashAttention: each sequence against its own tail, and all tokens whose sequences share a root
against that root together. Tails, and roots, lie in rows of one buffer, and as many rows go into one call as cost less
to pad than to call for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import UsageError
from trainers.rollout.kv_cache import Slot, SlotCache

NAME = "envsuite_slots"
_CALL = 400_000  # what one attention call costs besides its work, in products of a query's and a key's number
_WIDE = 32  # a span of more new tokens than this has calls of its own


@dataclass(frozen=True)
class Span:
    """Consecutive new tokens of one sequence that go to one place."""

    slot: Slot
    begin: int
    """Where they start in the flat batch."""
    start: int
    """Position of the first in its sequence."""
    stop: int

    @property
    def end(self) -> int:
        """Where they end in the flat batch."""
        return self.begin + self.stop - self.start


@dataclass(frozen=True)
class Reader:
    """The queries of one call that attend to one row of a buffer."""

    row: int
    """Of the buffer."""
    tokens: NDArray[np.int64]
    """Where the queries are in the flat batch."""
    seen: NDArray[np.int64]
    """How many keys of the row each of them sees."""
    longest: int
    """The most of :attr:`seen`."""


@dataclass
class Run:
    """Queries that attend to rows of a buffer in one call, padded to equally many for each row."""

    rows: slice | Tensor
    """Of the buffer."""
    count: int
    """Number of rows."""
    width: int
    """Queries of each row."""
    length: int
    """Keys of each row."""
    tokens: Tensor
    """Where the queries are in the flat batch."""
    place: Tensor | None
    """Where they are among the count * width padded queries; ``None`` if those are all."""
    hidden: Tensor | None
    """Which keys each padded query does not see, shape (count, width, length); ``None`` if it sees all."""
    _masks: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, repeats: int, dtype: torch.dtype) -> Tensor | None:
        """:attr:`hidden` as 0 or -inf for each of ``repeats`` heads, shape (count, 1, repeats * width, length)."""
        if self.hidden is None:
            return None
        if (repeats, dtype) not in self._masks:
            mask = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
            mask.masked_fill_(self.hidden, -torch.inf)
            self._masks[repeats, dtype] = mask.repeat(1, repeats, 1)[:, None]
        return self._masks[repeats, dtype]


@dataclass
class StepPlan:
    """What one forward pass computes.

    The flat batch is: the single next tokens of running responses in the order of their slots; then spans that several
    tokens append to a tail; then spans of new roots.
    """

    cache: SlotCache
    singles: list[Span]
    appended: list[Span]
    rooted: list[Span]
    device: torch.device
    call: int
    """What a call costs, in pairs of a query and a key."""

    def __post_init__(self) -> None:
        tails = self.singles + self.appended
        self.tail_tokens = tails[-1].end if tails else 0
        self.longest = max(span.stop for span in tails)
        self.slot_of = self._tensor(np.concatenate([np.full(s.stop - s.start, s.slot.index) for s in tails]))
        self.place_of = self._tensor(
            np.concatenate([np.arange(s.start - s.slot.root_length, s.stop - s.slot.root_length) for s in tails])
        )
        short = [span for span in self.appended if span.stop - span.start <= _WIDE]
        wide = [span for span in self.appended if span.stop - span.start > _WIDE]
        self.tail_runs = self._neighbours([_on_tail(span) for span in self.singles])
        self.tail_runs += self._picked([_on_tail(span) for span in short])
        self.tail_runs += [self._run([_on_tail(span)]) for span in wide]
        together: dict[int, list[Span]] = {}
        for span in self.singles + short:
            if span.slot.root is not None and span.slot.root_length:
                together.setdefault(span.slot.root.index, []).append(span)
        self.root_runs = self._neighbours([_on_root(spans) for _, spans in sorted(together.items())])
        self.root_runs += [self._run([_on_root([span])]) for span in wide if span.slot.root and span.slot.root_length]
        self._masks: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _neighbours(self, readers: list[Reader]) -> list[Run]:
        """Cut readers, by row, into runs of consecutive rows; a row in between that nobody reads is padding."""
        return [self._run(part) for part in self._cut(readers, [reader.row for reader in readers])]

    def _picked(self, readers: list[Reader]) -> list[Run]:
        """Readers of any rows, similar ones in one run, which copies the rows."""
        readers = sorted(readers, key=lambda reader: (len(reader.tokens), reader.longest))
        return [self._run(part, pick=True) for part in self._cut(readers, range(len(readers)))]

    def _cut(self, readers: list[Reader], rows: Sequence[int]) -> Iterator[list[Reader]]:
        """Parts in which padding costs less than a call for each reader but one."""
        begin = width = length = work = 0
        for end, reader in enumerate(readers):
            wider, longer = max(width, len(reader.tokens)), max(length, reader.longest)
            more = work + len(reader.tokens) * reader.longest
            padding = (rows[end] - rows[begin] + 1) * wider * longer - more
            if end > begin and padding > (end - begin) * self.call:
                yield readers[begin:end]
                begin, wider, longer = end, len(reader.tokens), reader.longest
                more = wider * longer
            width, length, work = wider, longer, more
        if readers:
            yield readers[begin:]

    def _run(self, readers: list[Reader], pick: bool = False) -> Run:
        first = readers[0].row
        rows = np.array([reader.row for reader in readers])
        count = len(readers) if pick else int(rows[-1]) - first + 1
        width, length = max(len(reader.tokens) for reader in readers), max(reader.longest for reader in readers)
        seen = np.ones((count, width), np.int64)
        filled = np.zeros((count, width), bool)
        for number, reader in enumerate(readers):
            at = number if pick else reader.row - first
            seen[at, : len(reader.seen)] = reader.seen
            filled[at, : len(reader.seen)] = True
        hidden = torch.arange(length, device=self.device) >= self._tensor(seen)[:, :, None]
        return Run(
            rows=self._tensor(rows) if pick and count > 1 else slice(first, first + count),
            count=count,
            width=width,
            length=length,
            tokens=self._tensor(np.concatenate([reader.tokens for reader in readers])),
            place=None if filled.all() else self._tensor(np.flatnonzero(filled)),
            hidden=None if (seen == length).all() else hidden,
        )

    def causal(self, span: Span, repeats: int, dtype: torch.dtype) -> Tensor:
        """Which keys of its root each token of ``span`` sees, 0 or -inf, for each of ``repeats`` heads.

        Shape (1, 1, repeats * tokens, stop).
        """
        key = (span.begin, repeats, dtype)
        if key not in self._masks:
            count = span.stop - span.start
            mask = torch.full((count, span.stop), -torch.inf, dtype=dtype, device=self.device)
            self._masks[key] = mask.triu_(span.stop - count + 1).repeat(repeats, 1)[None, None]
        return self._masks[key]


def _on_tail(span: Span) -> Reader:
    first, last = span.start - span.slot.root_length + 1, span.stop - span.slot.root_length
    return Reader(span.slot.index, np.arange(span.begin, span.end), np.arange(first, last + 1), last)


def _on_root(spans: list[Span]) -> Reader:
    root = spans[0].slot.root
    assert root is not None
    tokens = np.concatenate([np.arange(span.begin, span.end) for span in spans])
    lengths = [span.slot.root_length for span in spans]
    return Reader(root.index, tokens, np.repeat(lengths, [s.end - s.begin for s in spans]), max(lengths))


def plan_step(cache: SlotCache, slots: Sequence[Slot], device: torch.device, width: int) -> StepPlan:
    """The plan for ``slots``: those with one token for their tail come first, by index, then those with more.

    Args:
        cache: What is stored.
        slots: With their planned tokens.
        device: Of the model.
        width: Numbers of a token's queries in one layer, all heads together.
    """
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
    return StepPlan(cache, *spans, device, _CALL // width)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Softmax attention and the logarithm of its softmax sum, which merging needs.

    Args:
        query: Shape (batch, heads, queries, dim); ``key`` and ``value`` alike.
        key: What is attended to.
        value: What is averaged.
        mask: Added to the scores.
        scale: Of the scores; dim ** -0.5 by default.
        causal: Query i sees keys 0 .. i only.

    Returns:
        The output, shape (batch, heads, queries, dim), and the log-sums, float32, shape (batch, heads, queries).
    """
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, total
    scores = query @ key.transpose(-1, -2)
    scores = scores.float() * (query.shape[-1] ** -0.5 if scale is None else scale)
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
    if softcap is not None or s_aux is not None or position_bias is not None:
        raise UsageError(
            f"the hf engine does not do the attention of {type(module).__name__} (soft-capped scores, sinks or a "
            "position bias); use rollout.engine=vllm for this model"
        )
    plan = slot_plan
    index = module.layer_idx
    assert isinstance(index, int)
    heads, key_heads, tokens = query.shape[1], key.shape[1], query.shape[2]
    groups = heads // key_heads
    rows = query[0].transpose(0, 1).reshape(tokens, key_heads, groups, query.shape[3])
    out = query.new_empty(tokens, key_heads, groups, value.shape[3])
    tails, roots = (pool.layer(index, key, value) for pool in (plan.cache.tails, plan.cache.roots))
    for buffer, new in zip(tails, (key, value), strict=True):
        buffer.transpose(1, 2).index_put_((plan.slot_of, plan.place_of), new[0, :, : plan.tail_tokens].transpose(0, 1))
    for span in plan.rooted:
        assert span.slot.root is not None
        for buffer, new in zip(roots, (key, value), strict=True):
            buffer[span.slot.root.index, :, span.start : span.stop] = new[0, :, span.begin : span.end]
    if sliding_window and plan.longest > sliding_window:
        _windowed(plan, rows, tails, roots, scaling, sliding_window, out)
        return out.flatten(1, 2)[None], None
    _to_roots(plan, rows, roots, scaling, out)
    total = torch.empty(plan.tail_tokens, *rows.shape[1:3], dtype=torch.float32, device=rows.device)
    for run in plan.tail_runs:
        result, sums = _attend_run(run, rows, tails, scaling)
        out.index_copy_(0, run.tokens, result)
        total.index_copy_(0, run.tokens, sums)
    for run in plan.root_runs:
        result, sums = _attend_run(run, rows, roots, scaling)
        share = torch.sigmoid(sums - total.index_select(0, run.tokens))[..., None].to(out.dtype)
        out.index_copy_(0, run.tokens, torch.lerp(out.index_select(0, run.tokens), result, share))
    return out.flatten(1, 2)[None], None


def _attend_run(run: Run, rows: Tensor, buffers: tuple[Tensor, Tensor], scale: float | None) -> tuple[Tensor, Tensor]:
    """Output (queries, key heads, groups, dim) and log-sums (queries, key heads, groups) of the queries of ``run``."""
    queries = rows.index_select(0, run.tokens)
    if run.place is not None:
        queries = rows.new_zeros(run.count * run.width, *rows.shape[1:]).index_copy_(0, run.place, queries)
    _, key_heads, groups, size = rows.shape
    queries = queries.view(run.count, run.width, key_heads, groups, size).permute(0, 2, 3, 1, 4)
    keys, values = (buffer[run.rows, :, : run.length] for buffer in buffers)
    mask = run.mask(groups, rows.dtype)
    result, sums = attend(queries.flatten(2, 3), keys, values, mask, scale)
    result = result.reshape(run.count, key_heads, groups, run.width, -1).permute(0, 3, 1, 2, 4).flatten(0, 1)
    sums = sums.reshape(run.count, key_heads, groups, run.width).permute(0, 3, 1, 2).flatten(0, 1)
    return (result, sums) if run.place is None else (result[run.place], sums[run.place])


def _flat(rows: Tensor) -> Tensor:
    """(tokens, key heads, groups, dim) as queries of one sequence: (1, key heads, groups * tokens, dim)."""
    return rows.permute(1, 2, 0, 3).flatten(1, 2)[None]


def _unflat(result: Tensor, tokens: int) -> Tensor:
    """The reverse, for (1, key heads, groups * tokens, …): (tokens, key heads, groups, …)."""
    return result.reshape(result.shape[1], -1, tokens, *result.shape[3:]).movedim(2, 0)


def _to_roots(plan: StepPlan, rows: Tensor, roots: tuple[Tensor, Tensor], scale: float | None, out: Tensor) -> None:
    """New roots, each causal in itself."""
    groups = rows.shape[2]
    for span in plan.rooted:
        assert span.slot.root is not None
        keys, values = (buffer[span.slot.root.index, :, : span.stop] for buffer in roots)
        if span.start == 0:
            queries = rows[span.begin : span.end].flatten(1, 2).transpose(0, 1)[None]
            keys, values = (part.repeat_interleave(groups, 0)[None] for part in (keys, values))
            result, _ = attend(queries, keys, values, None, scale, causal=True)
            out[span.begin : span.end] = result[0].transpose(0, 1).view_as(out[span.begin : span.end])
        else:
            mask = plan.causal(span, groups, rows.dtype)
            result, _ = attend(_flat(rows[span.begin : span.end]), keys[None], values[None], mask, scale)
            out[span.begin : span.end] = _unflat(result, span.end - span.begin)


def _windowed(
    plan: StepPlan,
    rows: Tensor,
    tails: tuple[Tensor, Tensor],
    roots: tuple[Tensor, Tensor],
    scale: float | None,
    window: int,
    out: Tensor,
) -> None:
    """A layer whose tokens see only the last ``window`` positions: one sequence at a time, root and tail joined."""
    for span in plan.singles + plan.appended + plan.rooted:
        slot, low = span.slot, max(0, span.start + 1 - window)
        parts = []
        for tail, root in zip(tails, roots, strict=True):
            own = tail[slot.index, :, : max(0, span.stop - slot.root_length)]
            above = None if slot.root is None else root[slot.root.index, :, : min(span.stop, slot.root_length)]
            parts.append((own if above is None else torch.cat([above, own], 1))[None, :, low:])
        position = torch.arange(span.start, span.stop, device=rows.device)[:, None]
        column = torch.arange(low, span.stop, device=rows.device)
        hidden = (column > position) | (column <= position - window)
        mask = torch.zeros(hidden.shape, dtype=rows.dtype, device=rows.device).masked_fill_(hidden, -torch.inf)
        mask = mask.repeat(rows.shape[2], 1)[None, None]
        result, _ = attend(_flat(rows[span.begin : span.end]), parts[0], parts[1], mask, scale)
        out[span.begin : span.end] = _unflat(result, span.end - span.begin)


AttentionInterface.register(NAME, slot_attention)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
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
def attending_through_slots(model: PreTrainedModel) -> Iterator[None]:
    """:func:`evaluating`, with :func:`slot_attention` in the place of the model's own attention."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        with evaluating(model):
            yield
    finally:
        config._attn_implementation = before
