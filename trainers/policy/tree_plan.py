"""A token tree cut into the calls that compute its attention: tiles, long chains, and sequences of unequal length.

A tile is some neighbouring tokens. As the row is depth first, they see the path of the first of them and tokens of the
tile, and nothing else: its keys are gathered, and a mask hides those that are on another branch. Tiles with about as
many keys are computed in one call. A chain is a run of tokens without a branch; it needs no mask. Chains of any length
are the sequences of FlashAttention's calls, each with the keys of its path before its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints, TokenTree
from trainers.policy.walk import CachedPast

T = TypeVar("T")
_SHALLOW, _NARROW, _WIDE = 384, 64, 128
"""Tiles are wider where paths are longer on average: a wide tile gathers less, and computes more that a mask hides."""
_LONG = 256  # tokens without a branch that are no tiles, where PyTorch's kernel for CPUs is
_EVEN = 1.125  # most keys of the longest path in a call, in those of the shortest
_SCORES = 2**22  # most scores of one head in a call
_KEPT_SCORES = 2**25  # most elements of the masks that are kept for all layers


def merge_attention(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns attention to the keys of both, of outputs (…, dim) and the logarithms of their softmax sums (…)."""
    share = torch.sigmoid(second[1] - first[1])[..., None].to(first[0].dtype)
    return torch.lerp(first[0], second[0], share), torch.logaddexp(first[1], second[1])


@dataclass
class BatchRoom:
    """Room for masks that are kept for all layers."""

    left: int = _KEPT_SCORES
    """Elements."""


class Tiles:
    """Tiles of the row with about equally many keys; indices of queries count from the first that is computed.

    Args:
        plan: The row that they are parts of.
        queries: Tokens of each tile, shape (tiles, width); a shorter tile repeats its last token.
        keys: Tokens that they see, of each tile a list in order.
    """

    def __init__(self, plan: TreePlan, queries: Ints, keys: Sequence[Ints]) -> None:
        width = max(map(len, keys))
        # What fills a row up ends at 0: no query sees it.
        padded_keys = np.stack([np.pad(own, (0, width - len(own))) for own in keys])
        end = np.stack([np.pad(plan.tree.end[own], (0, width - len(own))) for own in keys])
        self._depth, self._room = plan.depth, plan.room  # not the plan, which has the tiles: both would be kept
        self.count, self.width, self.length = len(keys), queries.shape[1], width
        self._query, self._key, self._end = (to_device(of, plan.device) for of in (queries, padded_keys, end))
        self.real = to_device(np.flatnonzero(np.diff(queries, prepend=-1).ravel()), plan.device)
        """The places in (tiles * width) that are not repetitions."""
        self.queries, self.keys = self._query.ravel() - plan.before, self._key.ravel()
        self._kept: dict[tuple[int, torch.dtype, int | None], Tensor] = {}

    def mask(self, groups: int, dtype: torch.dtype, window: int | None) -> Tensor:
        """Returns what is added to scores, 0 or -inf, shape (tiles, 1, groups * width, length)."""
        kind = (groups, dtype, window)
        if kind in self._kept:
            return self._kept[kind]
        query, key = self._query[:, :, None], self._key[:, None]
        visible = (key <= query) & (query < self._end[:, None])
        if window is not None:
            visible &= self._depth[query] - self._depth[key] < window
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
        mask = mask[:, None].expand(-1, groups, -1, -1).flatten(1, 2)[:, None]
        if mask.numel() <= self._room.left:
            self._room.left -= mask.numel()
            self._kept[kind] = mask
        return mask


class TreePlan:
    """Attention pattern of a token tree.

    Args:
        tree: The tokens.
        device: The model's device.
        before: How many of them, a path that the others go on from, have keys and values only, which ``past`` has.
        past: Keys and values of this path.
    """

    def __init__(self, tree: TokenTree, device: torch.device, before: int = 0, past: CachedPast | None = None) -> None:
        self.tree, self.device, self.before, self.past = tree, device, before, past
        self.depth = to_device(tree.depth, device)
        self.carried: None = None
        self._deepest = int(tree.depth.max(initial=0))
        self._once: dict[Hashable, Any] = {}
        self.room = BatchRoom()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()`` of the first call with ``key``: the pattern as a kernel takes it, for all layers."""
        if key not in self._once:
            self._once[key] = make()
        pattern: T = self._once[key]
        return pattern

    def parts(self, window: int | None, chains: bool) -> tuple[list[Chain], list[Tiles]]:
        """The row cut into tiles, those with about equally many keys together; and into long chains, if wanted.

        Args:
            window: Width of the sliding window; chains are tiles under a narrower one.
            chains: Whether long runs without a branch are chains.
        """
        width = None if window is None or window > self._deepest else window
        chains &= width is None
        return self.once(("parts", width, chains), lambda: self._parts(width, chains))

    def sequences(self, most: float = math.inf) -> list[VarlenCall]:
        """The row cut into chains, neighbours together: as many as have ``most`` keys, or one that has more."""

        def make() -> list[VarlenCall]:
            chains = [(max(begin, self.before), end) for begin, end in self.tree.chains if end > self.before]
            calls, count = [list[tuple[int, int]]()], 0
            for begin, end in chains:
                count += (keys := int(self.tree.depth[end - 1]) + 1)
                if calls[-1] and count > most:
                    calls, count = [*calls, []], keys
                calls[-1].append((begin, end))
            return [VarlenCall.of(self, call) for call in calls]

        return self.once(("sequences", most), make)

    def _parts(self, window: int | None, chains: bool) -> tuple[list[Chain], list[Tiles]]:
        long = [(max(begin, self.before), end) for begin, end in self.tree.chains] if chains else []
        long = [(begin, end) for begin, end in long if end - begin >= _LONG]
        begins, ends = [self.before, *(end for _, end in long)], [*(begin for begin, _ in long), len(self.tree)]
        between = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
        return [Chain.of(self, *span) for span in long], self._tiles(between, window) if between else []

    def _tiles(self, spans: list[tuple[int, int]], window: int | None) -> list[Tiles]:
        tree = self.tree
        width = min(_NARROW if tree.depth.mean() <= _SHALLOW else _WIDE, max(end - begin for begin, end in spans))
        owns = [np.arange(at, min(at + width, end)) for begin, end in spans for at in range(begin, end, width)]
        keys = []
        for own in owns:
            nearest = 0 if window is None else max(0, int(tree.depth[own].min()) + 1 - window)
            keys.append(np.concatenate([tree.path(int(own[0]))[nearest:-1], own]))
        lengths = np.array([len(own) for own in keys])
        groups: list[list[int]] = [[]]
        for tile in np.argsort(lengths, kind="stable").tolist():
            if groups[-1] and (
                lengths[tile] > _EVEN * lengths[groups[-1][0]] + _NARROW // 4
                or (len(groups[-1]) + 1) * width * lengths[tile] > _SCORES
            ):
                groups.append([])
            groups[-1].append(tile)
        queries = [np.pad(own, (0, width - len(own)), "edge") for own in owns]
        return [Tiles(self, np.stack([queries[i] for i in tiles]), [keys[i] for i in tiles]) for tiles in groups]


@dataclass(frozen=True)
class VarlenCall:
    """Neighbouring chains as sequences of unequal length: each attends, causally, to its path followed by itself."""

    queries: slice
    """The tokens, among those that are computed."""
    keys: Tensor
    """Indices among all tokens: of each chain the path, then its own."""
    lengths: tuple[Tensor, Tensor, int, int]
    """Where the queries, and the keys, of each chain begin and the last ones end, (chains + 1,) int32; most queries and
    most keys of a chain."""

    @classmethod
    def of(cls, plan: TreePlan, chains: Sequence[tuple[int, int]]) -> VarlenCall:
        """Returns the call for these chains of a row."""
        keys = [np.concatenate([plan.tree.path(begin), np.arange(begin + 1, end)]) for begin, end in chains]
        counts = [end - begin for begin, end in chains], [len(own) for own in keys]
        of_queries, of_keys = (to_device(np.cumsum([0, *own], dtype=np.int32), plan.device) for own in counts)
        queries = slice(chains[0][0] - plan.before, chains[-1][1] - plan.before)
        key_index = to_device(np.concatenate(keys), plan.device)
        return cls(queries, key_index, (of_queries, of_keys, max(counts[0]), max(counts[1])))


@dataclass(frozen=True)
class Chain:
    """A run of tokens without a branch: each sees the path before them, and those of the run up to itself."""

    queries: slice
    """The tokens, among those that are computed."""
    keys: slice
    """The same among all."""
    path: Tensor
    """Indices of the path."""

    @classmethod
    def of(cls, plan: TreePlan, begin: int, end: int) -> Chain:
        """Returns the chain of these tokens of a row."""
        path = to_device(plan.tree.path(begin)[:-1], plan.device)
        return cls(slice(begin - plan.before, end - plan.before), slice(begin, end), path)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, out: Tensor, total: Tensor
    ) -> None:
        """Writes the output and the log-sums of the chain; all tensors (tokens, heads, dim)."""
        queries, groups = query[self.queries].transpose(0, 1)[None], query.shape[1] // key.shape[1]
        own = (_spread(part[self.keys], groups) for part in (key, value))
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, *own, 0.0, True, scale=scale)
        if len(self.path):
            before = (part.index_select(0, self.path).transpose(0, 1)[None] for part in (key, value))
            path_output, path_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _fold_heads(queries, groups), *before, 0.0, False, scale=scale
            )
            path = path_output.reshape(output.shape), path_sums.reshape(sums.shape)
            output, sums = merge_attention((output, sums), path)
        out[self.queries], total[self.queries] = output[0].transpose(0, 1), sums[0].transpose(0, 1)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, scale: float | None,
        of_query: Tensor, of_key: Tensor, of_value: Tensor,
    ) -> None:  # fmt: skip
        """Writes the gradient of the chain's queries, and adds those of the keys and values that it sees."""
        groups = query.shape[1] // key.shape[1]
        of_out, queries, output = (part[self.queries].transpose(0, 1)[None] for part in (grad, query, out))
        sums = total[self.queries].T[None].contiguous()
        own = [_spread(part[self.keys], groups) for part in (key, value)]
        query_gradient, *of_own = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            of_out, queries, *own, output, sums, 0.0, True, scale=scale
        )
        for buffer, part in ((of_key, of_own[0]), (of_value, of_own[1])):
            buffer[self.keys] += _sum_groups(part[0], groups).to(buffer.dtype)
        if len(self.path):
            before = [part.index_select(0, self.path).transpose(0, 1)[None] for part in (key, value)]
            more, *of_before = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _fold_heads(of_out, groups), _fold_heads(queries, groups), *before, _fold_heads(output, groups),
                sums.reshape(1, key.shape[1], -1), 0.0, False, scale=scale,
            )  # fmt: skip
            query_gradient = query_gradient + more.reshape(query_gradient.shape)
            for buffer, part in ((of_key, of_before[0]), (of_value, of_before[1])):
                buffer.index_add_(0, self.path, part[0].transpose(0, 1).to(buffer.dtype))
        of_query[self.queries] = query_gradient[0].transpose(0, 1)


def _spread(rows: Tensor, groups: int) -> Tensor:
    """``rows`` (tokens, key heads, dim) for every query head, (1, heads, tokens, dim)."""
    return rows.transpose(0, 1).repeat_interleave(groups, 0)[None]


def _sum_groups(heads: Tensor, groups: int) -> Tensor:
    """Reverses :func:`_spread` for gradients: ``heads`` (heads, tokens, dim) to (tokens, key heads, dim)."""
    return heads.reshape(-1, groups, *heads.shape[1:]).sum(1).transpose(0, 1)


def _fold_heads(rows: Tensor, groups: int) -> Tensor:
    """``rows`` (1, heads, tokens, dim) with the heads of a key head behind each other: (1, key heads, …, dim)."""
    return rows.reshape(1, rows.shape[1] // groups, -1, rows.shape[3])
