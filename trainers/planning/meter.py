"""Counts what a computation on fake tensors would hold, multiply and move."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

LOGITS, WEIGHTS, ACTIVATIONS = "logits", "weights and gradients in passing", "activations"
"""Kinds of memory: logits of a part of the tokens; rounded or gathered weights, and gradients before they are added to
those that are kept; everything else."""

_aten: Any = torch.ops.aten
_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_FLASH, _FLASH_BACK = (getattr(_aten, f"_flash_attention_{end}ward").default for end in ("for", "back"))
_SDPA, _SDPA_BACK = (getattr(_aten, f"{_NAME}{end}").default for end in ("", "_backward"))


@dataclass(frozen=True)
class Amounts:
    """Memory and operations of a computation."""

    peak: float = 0.0
    """Bytes at the peak above what was held before."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """The peak's bytes by kind."""
    kept: float = 0.0
    """Bytes that are still held at the end."""
    products: float = 0.0
    """Floating-point operations of matrix products and attention."""
    moved: float = 0.0
    """Bytes that all other operations read and write."""
    operations: float = 0.0
    """Number of operations that compute something."""

    def extrapolate(self, target: Amounts, times: float) -> Amounts:
        """``self + times * (target - self)``, amount by amount."""

        def between(a: float, b: float) -> float:
            return a + times * (b - a)

        mine, theirs = self.kinds, target.kinds
        kinds = {kind: between(mine.get(kind, 0.0), theirs.get(kind, 0.0)) for kind in sorted({*mine, *theirs})}
        names = ("peak", "kept", "products", "moved", "operations")
        totals = {name: between(getattr(self, name), getattr(target, name)) for name in names}
        return Amounts(kinds=kinds, **totals)


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensors that are made while it is entered, until they are freed.

    Tensors that were made before count as held already.

    Args:
        vocabulary: Number of tokens of the vocabulary, by which logits are recognised.
        weights: Shapes of the model's weights, by which those in passing are recognised.
        tokens: Tokens of the row that is computed.
    """

    def __init__(self, vocabulary: int = 0, weights: frozenset[tuple[int, ...]] = frozenset(), tokens: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._vocabulary, self._tokens = vocabulary, tokens
        self._weights = weights | {shape[::-1] for shape in weights}
        self._held: dict[int, tuple[str, int]] = {}
        self._now: Counter[str] = Counter()
        self._total = 0
        self._before: set[int] = set()
        self.marks: list[Amounts] = []
        """The amounts until each call of the embedding's backward pass, after which the layers' tensors are gone."""
        self._start()

    def _start(self) -> None:
        self._peak, self._kinds = self._total, dict(self._now)
        self._products = self._moved = self._operations = 0.0

    def amounts(self) -> Amounts:
        """Returns the amounts since the start, or since the last mark."""
        peak, total = float(self._peak), float(self._total)
        return Amounts(peak, dict(self._kinds), total, self._products, self._moved, self._operations)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation, and counts it."""
        if func is _aten.embedding_dense_backward.default:
            self.marks.append(self.amounts())
            self._start()
        inputs = [_storage(t) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        out = func(*args, **(kwargs or {}))
        outputs = [t for t in tree_iter(out) if isinstance(t, Tensor)]
        old = {id(storage) for storage in inputs}
        for tensor in outputs:
            self._note(func, tensor, id(_storage(tensor)) in old)
        self._count(func, args, kwargs or {}, out, any(id(_storage(t)) not in old for t in outputs))
        return out

    def __enter__(self) -> Meter:
        """Counts from now on; storages that are resized, as sharded weights are, are followed, too."""
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            out = self._resize(storage, size)
            if (entry := self._held.get(storage._cdata)) is not None:
                self._held[storage._cdata] = (entry[0], size)
                self._add(entry[0], size - entry[1])
            return out

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stops counting."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _note(self, func: Any, tensor: Tensor, is_old: bool) -> None:
        storage = _storage(tensor)
        key = storage._cdata
        if key in self._held or key in self._before:
            return
        if is_old:  # a view of a tensor that was made before
            self._before.add(key)
            weakref.finalize(storage, self._before.discard, key)
            return
        kind = self._kind(func, tensor)
        self._held[key] = (kind, storage.nbytes())
        self._add(kind, storage.nbytes())
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        kind, size = self._held.pop(key)
        self._add(kind, -size)

    def _add(self, kind: str, size: int) -> None:
        self._now[kind] += size
        self._total += size
        if self._total > self._peak:
            self._peak, self._kinds = self._total, dict(self._now)

    def _kind(self, func: Any, tensor: Tensor) -> str:
        shape = tuple(tensor.shape)
        if func.namespace in ("fsdp", "c10d", "_c10d_functional"):
            return WEIGHTS
        if shape in self._weights and self._tokens not in shape:
            return WEIGHTS
        if len(shape) == 2 and shape[1] == self._vocabulary:
            return LOGITS
        return WEIGHTS if len(shape) == 1 and shape[0] > 64 * max(self._tokens, 1) else ACTIVATIONS

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, new: bool) -> None:
        if not new and not func._schema.is_mutable:
            return  # a view
        self._operations += 1
        packet = func._overloadpacket
        if func is _FLASH:
            self._products += 4.0 * _causal_scores(args[0], args[1], args[3])
        elif func is _FLASH_BACK:
            self._products += 10.0 * _causal_scores(args[1], args[2], args[6])
        elif packet in flop_registry:
            self._products += flop_registry[packet](*args, **kwargs, out_val=out)
        elif func is _SDPA:
            self._products += sdpa_flop_count(*(tuple(t.shape) for t in args[:3]))  # type: ignore[no-untyped-call]
        elif func is _SDPA_BACK:
            shapes = (tuple(t.shape) for t in args[:4])
            self._products += sdpa_backward_flop_count(*shapes)  # type: ignore[no-untyped-call]
        else:
            tensors = (t for t in tree_iter((args, kwargs, out)) if isinstance(t, Tensor))
            self._moved += sum(t.numel() * t.element_size() for t in tensors)


def _causal_scores(query: Tensor, key: Tensor, starts: Tensor) -> float:
    """Scores of all heads times the size of a head, of sequences that are taken to be equally long."""
    queries = len(query) / (len(starts) - 1)
    return query.numel() * (len(key) / (len(starts) - 1) - queries / 2)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor; of a sharded one, that of the part in this process."""
    while is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        tensor = getattr(tensor, names[0])
    return tensor.untyped_storage()
