"""Attention of a token tree: each token sees those on its path.

Registered with transformers as an attention implementation, so that a decoder-only model that takes its attention from
there computes each token once, in one row and without a cache. Recomputing activations in the backward pass (gradient
checkpointing) therefore needs nothing else, and sliding windows, soft-capped scores and attention sinks are those that
the model asks for.

The row is cut into tiles of neighbouring tokens. As the row is depth first, the tokens of a tile see the path of its
first token and tokens of the tile, and nothing else: its keys are gathered, and a mask hides those that are on another
branch. Tiles with about as many keys are computed in one call. Gathered keys are not kept for the backward pass, which
gathers them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError
from trainers.policy.precision import as_computed
from trainers.policy.tree import Ints, TokenTree
from trainers.policy.walk import Past

T = TypeVar("T")
NAME = "envsuite_tree"
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_SHALLOW, _NARROW, _WIDE = 384, 64, 128
"""Tiles are wider where paths are longer on average: a wide tile gathers less, and computes more that a mask hides."""
_LONG = 256  # tokens without a branch that are no tiles, where PyTorch's kernel for CPUs is
_EVEN = 1.125  # most keys of the longest path in a call, in those of the shortest
_SCORES = 2**22  # most scores of one head in a call
_KEPT_SCORES = 2**25  # most elements of the masks that are kept for all layers


@dataclass(frozen=True)
class Scoring:
    """How scores are made of queries and keys."""

    scale: float | None = None
    """dim ** -0.5 by default."""
    window: int | None = None
    """Width of the sliding window."""
    softcap: float | None = None
    """Soft cap of the scores, as in Gemma 2."""


@dataclass
class Room:
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
        filled = np.stack([np.pad(own, (0, width - len(own))) for own in keys])
        end = np.stack([np.pad(plan.tree.end[own], (0, width - len(own))) for own in keys])
        self._depth, self._room = plan.depth, plan.room  # not the plan, which has the tiles: both would be kept
        self.count, self.width, self.length = len(keys), queries.shape[1], width
        self._query, self._key, self._end = (torch.from_numpy(of).to(plan.device) for of in (queries, filled, end))
        self.real = torch.from_numpy(np.flatnonzero(np.diff(queries, prepend=-1).ravel())).to(plan.device)
        """The places in (tiles * width) that are not repetitions."""
        self.queries, self.keys = self._query.ravel() - plan.before, self._key.ravel()
        self._kept: dict[tuple[int, torch.dtype, int | None], Tensor] = {}

    def mask(self, groups: int, dtype: torch.dtype, window: int | None) -> Tensor:
        """Returns what is added to scores, 0 or -inf, shape (tiles, 1, groups * width, length)."""
        kind = (groups, dtype, window)
        if kind in self._kept:
            return self._kept[kind]
        query, key = self._query[:, :, None], self._key[:, None]
        seen = (key <= query) & (query < self._end[:, None])
        if window is not None:
            seen &= self._depth[query] - self._depth[key] < window
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
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

    def __init__(self, tree: TokenTree, device: torch.device, before: int = 0, past: Past | None = None) -> None:
        self.tree = tree
        self.device = device
        self.before = before
        self.past = past
        self.depth = torch.from_numpy(tree.depth).to(device)
        self._once: dict[Hashable, Any] = {}
        self.room = Room()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()`` of the first call with ``key``: the pattern as a kernel takes it, for all layers."""
        if key not in self._once:
            self._once[key] = make()
        found: T = self._once[key]
        return found

    def parts(self, window: int | None, chains: bool) -> tuple[list[Chain], list[Tiles]]:
        """The row cut into tiles, those with about equally many keys together; and into long chains, if wanted.

        Args:
            window: Width of the sliding window; chains are tiles under a narrower one.
            chains: Whether long runs without a branch are chains.
        """
        deepest = int(self.tree.depth.max(initial=0))
        width = None if window is None or window > deepest else window
        chains &= width is None
        return self.once(("parts", width, chains), lambda: self._parts(width, chains))

    def _parts(self, window: int | None, chains: bool) -> tuple[list[Chain], list[Tiles]]:
        long = [(max(begin, self.before), end) for begin, end in self.tree.chains] if chains else []
        long = [(begin, end) for begin, end in long if end - begin >= _LONG]
        ends = zip(
            [self.before, *(end for _, end in long)], [*(begin for begin, _ in long), len(self.tree)], strict=True
        )
        between = [(begin, end) for begin, end in ends if begin < end]
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
        made: list[Tiles] = []
        some: list[int] = []
        for tile in np.argsort(lengths, kind="stable").tolist():
            if some and (
                lengths[tile] > _EVEN * lengths[some[0]] + _NARROW // 4
                or (len(some) + 1) * width * lengths[tile] > _SCORES
            ):
                made.append(self._made(owns, width, keys, some))
                some = []
            some.append(tile)
        return [*made, self._made(owns, width, keys, some)]

    def _made(self, owns: list[Ints], width: int, keys: list[Ints], some: list[int]) -> Tiles:
        queries = np.stack([np.pad(owns[tile], (0, width - len(owns[tile])), "edge") for tile in some])
        return Tiles(self, queries, [keys[tile] for tile in some])


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
        path = torch.from_numpy(plan.tree.path(begin)[:-1]).to(plan.device)
        return cls(slice(begin - plan.before, end - plan.before), slice(begin, end), path)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, out: Tensor, total: Tensor
    ) -> None:
        """Writes the output and the log-sums of the chain; all tensors (tokens, heads, dim)."""
        asked, groups = query[self.queries].transpose(0, 1)[None], query.shape[1] // key.shape[1]
        own = (_spread(part[self.keys], groups) for part in (key, value))
        found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(asked, *own, 0.0, True, scale=scale)
        if len(self.path):
            before = (part.index_select(0, self.path).transpose(0, 1)[None] for part in (key, value))
            other, more = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _folded(asked, groups), *before, 0.0, False, scale=scale
            )
            other, more = other.reshape(found.shape), more.reshape(sums.shape)
            whole = torch.logaddexp(sums, more)
            found = found * (sums - whole).exp()[..., None].to(found.dtype)
            found = found + other * (more - whole).exp()[..., None].to(found.dtype)
            sums = whole
        out[self.queries], total[self.queries] = found[0].transpose(0, 1), sums[0].transpose(0, 1)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, scale: float | None,
        of_query: Tensor, of_key: Tensor, of_value: Tensor,
    ) -> None:  # fmt: skip
        """Writes the gradient of the chain's queries, and adds those of the keys and values that it sees."""
        groups = query.shape[1] // key.shape[1]
        of_out, asked, found = (part[self.queries].transpose(0, 1)[None] for part in (grad, query, out))
        sums = total[self.queries].T[None].contiguous()
        own = [_spread(part[self.keys], groups) for part in (key, value)]
        of_asked, *of_own = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            of_out, asked, *own, found, sums, 0.0, True, scale=scale
        )
        for buffer, part in ((of_key, of_own[0]), (of_value, of_own[1])):
            buffer[self.keys] += _summed(part[0], groups).to(buffer.dtype)
        if len(self.path):
            before = [part.index_select(0, self.path).transpose(0, 1)[None] for part in (key, value)]
            more, *of_before = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _folded(of_out, groups), _folded(asked, groups), *before, _folded(found, groups),
                sums.reshape(1, key.shape[1], -1), 0.0, False, scale=scale,
            )  # fmt: skip
            of_asked = of_asked + more.reshape(of_asked.shape)
            for buffer, part in ((of_key, of_before[0]), (of_value, of_before[1])):
                buffer.index_add_(0, self.path, part[0].transpose(0, 1).to(buffer.dtype))
        of_query[self.queries] = of_asked[0].transpose(0, 1)


def _spread(rows: Tensor, groups: int) -> Tensor:
    """``rows`` (tokens, key heads, dim) for every query head, (1, heads, tokens, dim)."""
    return rows.transpose(0, 1).repeat_interleave(groups, 0)[None]


def _summed(heads: Tensor, groups: int) -> Tensor:
    """Reverses :func:`_spread` for gradients: ``heads`` (heads, tokens, dim) to (tokens, key heads, dim)."""
    return heads.reshape(-1, groups, *heads.shape[1:]).sum(1).transpose(0, 1)


def _folded(rows: Tensor, groups: int) -> Tensor:
    """``rows`` (1, heads, tokens, dim) with the heads of a key head behind each other: (1, key heads, …, dim)."""
    return rows.reshape(1, rows.shape[1] // groups, -1, rows.shape[3])


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_plan: TreePlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends from each token to those on its path; all tensors (1, heads, tokens, dim).

    Returns:
        The attention output, shape (1, tokens, heads, dim), and None for the weights.
    """
    if position_bias is not None:
        raise DataError(f"the attention of {type(module).__name__} has a position bias, which the trainer lacks")
    queries, keys, values = rows_of(module, query, key, value, tree_plan)
    how = Scoring(scaling, sliding_window, softcap)
    out: Tensor = _TreeAttention.apply(queries, keys, values, s_aux, tree_plan, how)  # type: ignore[no-untyped-call]
    return out[None], None


def rows_of(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, plan: TreePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the tokens that are computed, keys and values of all, (tokens, heads, dim), in the compute format."""
    queries, keys, values = (part[0].transpose(0, 1) for part in as_computed(query, key, value))
    if plan.past is not None:
        layer = module.layer_idx
        assert isinstance(layer, int)
        keys, values = plan.past.joined(layer, keys, values)
    return queries, keys, values


class _TreeAttention(torch.autograd.Function):
    """Attention over the tiles of a row; queries, keys and values (tokens, heads, dim)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, plan: TreePlan, how: Scoring
    ) -> Tensor:
        fused = _is_fused(query, value, sinks, how)
        out = query.new_empty(*query.shape[:2], value.shape[2])
        total = torch.empty(query.shape[:2] if fused else (0,), dtype=_statistics_dtype(query), device=query.device)
        chains, tiled = plan.parts(how.window, fused)
        for chain in chains:
            chain.attend(query, key, value, how.scale, out, total)
        for tiles in tiled:
            given = _gathered(tiles, query, key, value)
            mask = tiles.mask(query.shape[1] // key.shape[1], query.dtype, how.window)
            if fused:
                found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    *given, 0.0, False, attn_mask=mask, scale=how.scale
                )
                _scatter(tiles, sums[..., None], total[..., None])
            else:
                found = _attend(*given, mask, sinks, how)
            _scatter(tiles, found, out)
        ctx.save_for_backward(query, key, value, sinks, out if fused else None, total if fused else None)
        ctx.settings = (plan, how, fused)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, out, total = ctx.saved_tensors
        plan, how, fused = ctx.settings
        of_query = torch.empty_like(query)
        # Many tiles add to a key of the beginning: their sum is rounded once.
        of_key, of_value = (torch.zeros(part.shape, dtype=_statistics_dtype(part), device=part.device)
                            for part in (key, value))  # fmt: skip
        of_sinks = None if sinks is None else torch.zeros_like(sinks)
        chains, tiled = plan.parts(how.window, fused)
        for chain in chains:
            chain.backward(grad, query, key, value, out, total, how.scale, of_query, of_key, of_value)
        for tiles in tiled:
            given = _gathered(tiles, query, key, value)
            mask = tiles.mask(query.shape[1] // key.shape[1], query.dtype, how.window)
            of_out = _tile(tiles, grad, key.shape[1], filled=False)
            if fused:
                parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    of_out, *given, _tile(tiles, out, key.shape[1]),
                    _tile(tiles, total[..., None], key.shape[1])[..., 0],
                    0.0, False, attn_mask=mask, scale=how.scale,
                )  # fmt: skip
            else:
                asked = [part.detach().requires_grad_() for part in given]
                own = None if sinks is None else sinks.detach().requires_grad_()
                with torch.enable_grad():
                    found = _attend(asked[0], asked[1], asked[2], mask, own, how)
                parts = torch.autograd.grad(found, asked if own is None else [*asked, own], of_out)
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


def _gathered(tiles: Tiles, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, (tiles, key heads, groups * width, dim), and keys and values, (tiles, key heads, length, dim)."""
    keys, values = (
        part.index_select(0, tiles.keys).view(tiles.count, tiles.length, *part.shape[1:]).transpose(1, 2)
        for part in (key, value)
    )
    return _tile(tiles, query, key.shape[1]), keys, values


def _tile(tiles: Tiles, rows: Tensor, key_heads: int, filled: bool = True) -> Tensor:
    """``rows`` (tokens, heads, dim) at the queries of the tiles, (tiles, key heads, groups * width, dim).

    Query heads that share a key head lie behind each other, as if they were further queries. Repetitions of the last
    token are zeros if not ``filled``.
    """
    found = rows.index_select(0, tiles.queries)
    if not filled and len(tiles.real) < len(found):
        found = torch.zeros_like(found).index_copy_(0, tiles.real, found.index_select(0, tiles.real))
    found = found.view(tiles.count, tiles.width, key_heads, -1, rows.shape[2])
    return found.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _scatter(tiles: Tiles, parts: Tensor, rows: Tensor) -> None:
    """Reverses :func:`_tile`: writes ``parts`` to ``rows``."""
    found = parts.reshape(*parts.shape[:2], -1, tiles.width, parts.shape[3])
    found = found.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
    if len(tiles.real) < len(found):
        rows.index_copy_(0, tiles.queries.index_select(0, tiles.real), found.index_select(0, tiles.real))
    else:
        rows.index_copy_(0, tiles.queries, found)


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
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value


AttentionInterface.register(NAME, tree_attention)


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
