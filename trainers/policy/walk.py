"""A token tree in parts, depth first, where one pass over the whole would take too much memory.

Each part is computed in a pass of its own, which reads the keys and values of the path that leads to it; nothing but
these, and the statistics of the targets, is kept of the parts before. For gradients the parts are computed again, the
last one first: each has then the gradients that later parts have left at its keys and values. A token is computed once
in a forward pass, and a second time with its backward pass, as with recomputed activations; gradients are those of one
pass over the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainers.policy.statistics import TokenStats
from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints, TokenTree

KeysValues = tuple[Tensor, Tensor]


@dataclass
class CachedPast:
    """Keys and values of the path before a part, and those that the part makes; (tokens, heads, dim) for each layer."""

    given: dict[int, KeysValues] = field(default_factory=dict)
    made: dict[int, KeysValues] = field(default_factory=dict)

    def join(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Returns the keys and values that a part sees in a layer, and notes its own."""
        self.made.setdefault(layer, (key, value))  # recomputed activations come here a second time
        if layer not in self.given:
            return key, value
        before = self.given[layer]
        return torch.cat([before[0], key]), torch.cat([before[1], value])


@dataclass(frozen=True)
class TreePart:
    """Neighbouring tokens of a tree, after the path that leads to them."""

    tree: TokenTree
    """The path and the tokens; targets are those of the tokens."""
    before: int
    """Length of the path."""
    targets: Ints
    """The targets, as indices into those of the whole tree."""
    path: Ints
    """Where keys and values of the path are kept."""
    kept: Ints
    """The tokens whose keys and values later parts read, as indices into those of the part ..."""
    keeps: Ints
    """... and where they are kept."""


def tree_parts(tree: TokenTree, most: int) -> list[TreePart]:
    """Cuts a tree into parts of ``most`` tokens; the last may have fewer."""
    starts = range(0, len(tree), most)
    paths = [tree.path(start)[:-1] for start in starts]
    slot = np.full(len(tree), -1)
    read = np.unique(np.concatenate(paths))
    slot[read] = np.arange(len(read))
    parts = []
    for start, path in zip(starts, paths, strict=True):
        end = min(start + most, len(tree))
        tokens = np.concatenate([path, np.arange(start, end)])
        place = np.full(len(tree) + 1, -1)
        place[tokens] = np.arange(len(tokens))
        targets = np.flatnonzero((tree.place >= start) & (tree.place < end))
        kept_tokens = np.flatnonzero(slot[start:end] >= 0)
        part = TokenTree(
            tree.tokens[tokens], tree.depth[tokens], place[tree.parent[tokens]],
            len(path) + np.minimum(tree.end[tokens], end) - start,
            place[tree.place[targets]], tree.target[targets], tree.index[targets], tree.rows[tokens],
            tree.images, None if tree.experts is None else tree.experts[tokens], tree.balance,
        )  # fmt: skip
        parts.append(TreePart(part, len(path), targets, slot[path], kept_tokens, slot[start + kept_tokens]))
    return parts


Pass = Callable[[TokenTree, int, CachedPast], TokenStats]
"""Computes the statistics of a part: its tree, the length of the path in it, and the path's keys and values."""


def walk_tree(tree: TokenTree, most: int, compute: Pass, anchor: Tensor) -> TokenStats:
    """Statistics of the targets of ``tree``, with at most ``most`` tokens in a pass.

    The backward pass adds the gradients of the weights to their ``grad`` itself; so it is not for modules that exchange
    gradients within it.

    Args:
        tree: The tokens.
        most: Most tokens of a pass.
        compute: The pass. It draws no random numbers.
        anchor: Any tensor that requires a gradient, if one is wanted.
    """
    logprob, entropy, balance = _TreeWalk.apply(  # type: ignore[no-untyped-call]
        anchor, tree_parts(tree, most), compute
    )
    return TokenStats(logprob, entropy, None if tree.balance is None else balance)


class _TreeWalk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, parts: list[TreePart], compute: Pass) -> tuple[Tensor, ...]:
        store, part_stats = _KeyValueStore(parts), []
        for part in parts:
            past = CachedPast(store.read(part))
            part_stats.append(compute(part.tree, part.before, past))
            store.write(part, past.made)
        ctx.settings = (parts, compute, store)
        place = to_device(np.argsort(np.concatenate([part.targets for part in parts])), anchor.device)
        balance = sum((stats.balance for stats in part_stats if stats.balance is not None), anchor.new_zeros(()))
        return (
            torch.cat([stats.logprob for stats in part_stats])[place],
            torch.cat([stats.entropy for stats in part_stats])[place],
            balance,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob: Tensor, entropy: Tensor, balance: Tensor) -> tuple[None, None, None]:
        parts, compute, store = ctx.settings
        gradients = store.gradients()
        for part in reversed(parts):
            targets = to_device(part.targets, logprob.device)
            _backward(part, compute, store, gradients, (logprob[targets], entropy[targets], balance))
        return None, None, None


def _backward(
    part: TreePart, compute: Pass, store: _KeyValueStore, gradients: _Gradients, of_stats: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Adds what ``part`` gives the parameters, and the path before it; nothing of its pass is left."""
    pairs = store.read(part).items()
    past = CachedPast({layer: (key.requires_grad_(), value.requires_grad_()) for layer, (key, value) in pairs})
    try:
        with torch.enable_grad():
            stats = compute(part.tree, part.before, past)
            outputs = zip((stats.logprob, stats.entropy, stats.balance), of_stats, strict=True)
            roots = [(root, gradient) for root, gradient in outputs if root is not None]
            roots += gradients.of(part, past.made)
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
        gradients.add(part, past.given)
    finally:  # the graph has the plan, which has these, which have the graph: a circle that Python does not see
        past.made.clear()


class _KeyValueStore:
    """A row of keys and values for each token that another part reads."""

    def __init__(self, parts: list[TreePart]) -> None:
        self.rows = sum(len(part.keeps) for part in parts)
        self.layers: dict[int, KeysValues] = {}

    def read(self, part: TreePart) -> dict[int, KeysValues]:
        """Returns the keys and values of the path of ``part``."""
        if not part.before:
            return {}
        return {layer: (key[part.path], value[part.path]) for layer, (key, value) in self.layers.items()}

    def write(self, part: TreePart, pairs: dict[int, KeysValues]) -> None:
        """Keeps what ``part`` has made and others read."""
        for layer, pair in pairs.items():
            if layer not in self.layers:
                key, value = (own.new_zeros(self.rows, *own.shape[1:]) for own in pair)
                self.layers[layer] = (key, value)
            for rows, own in zip(self.layers[layer], pair, strict=True):
                rows[part.keeps] = own.detach()[part.kept]

    def gradients(self) -> _Gradients:
        """Returns gradients of all rows, which are zero."""

        def zeros(rows: Tensor) -> Tensor:
            return torch.zeros_like(rows, dtype=torch.promote_types(rows.dtype, torch.float32))

        return _Gradients({layer: (zeros(key), zeros(value)) for layer, (key, value) in self.layers.items()})


@dataclass
class _Gradients:
    layers: dict[int, KeysValues]

    def of(self, part: TreePart, pairs: dict[int, KeysValues]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields what ``part`` has made for others, each with its gradient."""
        for layer, pair in pairs.items():
            for gradient, own in zip(self.layers[layer], pair, strict=True):
                yield own[part.kept], gradient[part.keeps].to(own.dtype)

    def add(self, part: TreePart, pairs: dict[int, KeysValues]) -> None:
        """Adds the gradients that ``part`` has left at the path before it."""
        for layer, pair in pairs.items():
            for gradient, own in zip(self.layers[layer], pair, strict=True):
                if own.grad is not None:
                    gradient[part.path] += own.grad
