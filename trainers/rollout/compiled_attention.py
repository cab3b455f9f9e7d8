"""Attention of single tokens to keys and values in pages, on a CPU: one call for all sequences of a layer.

Reading keys and values bounds decoding, so a page is read from memory once for all tokens that see it: neighbours in
the batch go through their pages side by side, and a page that they share is in the processor's cache when the next of
them comes to it. Scores, softmax and average are one pass (Milakov and Gimelshein 2018, "Online normalizer calculation
for softmax"), in float32.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from trainers.rollout.kv_cache import PAGE, KeysValues

_BLOCK = 8  # tokens that go through their pages side by side
_LINE = 16  # numbers in a line of the processor's cache
_ALONE = 1 << 18  # keys, times heads, up to which one thread is faster than several
_F = np.float32
_LOWEST = _F(-1e30)


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    """Compiles the function on its first call; caches the result on disk where possible."""
    how = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "arcp"}, **options}
    try:
        return njit(cache=True, **how)(function)
    except RuntimeError:
        return njit(**how)(function)


def _prefetch(_: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of a number of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], fnty=kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(fetch, [address, word(0), word(2), word(1)])  # to read, kept in the second level, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_fetch: Any = intrinsic(_prefetch)


def _exp(x: Any) -> Any:
    """The exponential of a number that is not positive, to 2 units in the last place; below -87 that of -87.

    Cephes' polynomial (Moshier): unlike the library's function, the compiler computes many at once.
    """
    x = _F(-87.0) if x < _F(-87.0) else x  # not max, which may lose what is not a number
    whole = np.floor(x * _F(1.44269504088896341) + _F(0.5))
    part = (x - whole * _F(0.693359375)) + whole * _F(2.12194440e-4)
    value = _F(1.9875691500e-4)
    value = value * part + _F(1.3981999507e-3)
    value = value * part + _F(8.3334519073e-3)
    value = value * part + _F(4.1665795894e-2)
    value = value * part + _F(1.6666665459e-1)
    value = value * part + _F(5.0000001201e-1)
    value = value * part * part + part + _F(1.0)
    return value * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


_exp = _compile(_exp, inline="always")


@cache
def _kernel(groups: int, key_dim: int, value_dim: int) -> Any:
    """Compiles the kernel for ``groups`` query heads to a key head, and heads of these dimensions."""

    def attend(
        query: NDArray[Any],
        keys: NDArray[Any],
        values: NDArray[Any],
        rows: NDArray[Any],
        lengths: NDArray[Any],
        pages: NDArray[Any],
        bases: NDArray[Any],
        starts: NDArray[Any],
        counts: NDArray[Any],
        window: int,
        scale: Any,
        cap: Any,
        out: NDArray[Any],
        begin: int,
        end: int,
    ) -> None:
        tokens = len(rows)
        blocks = (tokens + _BLOCK - 1) // _BLOCK
        scores = np.empty(PAGE, np.float32)
        larger = np.empty(_LINE, np.float32)
        sums = np.empty((_BLOCK, groups, value_dim), np.float32)
        highest = np.empty((_BLOCK, groups), np.float32)
        total = np.empty((_BLOCK, groups), np.float32)
        first = np.empty(_BLOCK, np.int64)
        last = np.empty(_BLOCK, np.int64)
        for unit in range(begin, end):
            head, token = unit // blocks, unit % blocks * _BLOCK
            size = min(_BLOCK, tokens - token)
            low_entry, high_entry = 1 << 62, 0
            sums[:] = _F(0.0)
            total[:] = _F(0.0)
            highest[:] = _LOWEST
            for i in range(size):
                row, length = rows[token + i], lengths[token + i]
                high = counts[row]
                while starts[row, high - 1] >= length:
                    high -= 1
                low = 0
                while low + 1 < high and starts[row, low + 1] <= length - window:
                    low += 1
                first[i], last[i] = low, high
                low_entry, high_entry = min(low_entry, low), max(high_entry, high)
            for entry in range(low_entry, high_entry):
                for i in range(size):
                    if entry < first[i] or entry >= last[i]:
                        continue
                    row, length = rows[token + i], lengths[token + i]
                    page, base = pages[row, entry], bases[row, entry]
                    coming, at = i + 1, entry
                    if coming == size:
                        coming, at = 0, entry + 1
                    if first[coming] <= at < last[coming]:
                        following = pages[rows[token + coming], at]
                        if following != page:
                            for line in range(0, PAGE * key_dim, _LINE):
                                _fetch(keys, (head * keys.shape[1] + following * PAGE) * key_dim + line)
                            for line in range(0, PAGE * value_dim, _LINE):
                                _fetch(values, (head * values.shape[1] + following * PAGE) * value_dim + line)
                    low = max(starts[row, entry], length - window) - base
                    high = (starts[row, entry + 1] if entry + 1 < last[i] else length) - base
                    width, place = high - low, page * PAGE + low
                    for group in range(groups):
                        queries = query[token + i, head * groups + group]
                        top = highest[i, group]
                        for j in range(width):
                            score = _F(0.0)
                            for d in range(key_dim):
                                score += queries[d] * keys[head, place + j, d]
                            score *= scale
                            if cap > _F(0.0):
                                score = cap * _F(math.tanh(score / cap))
                            scores[j] = score
                        for j in range(width, PAGE):
                            scores[j] = _LOWEST
                        for j in range(_LINE):  # a maximum of many at once, which the compiler does not make by itself
                            larger[j] = top
                        for j in range(0, PAGE, _LINE):
                            for k in range(_LINE):
                                larger[k] = scores[j + k] if scores[j + k] > larger[k] else larger[k]
                        for j in range(_LINE):
                            top = larger[j] if larger[j] > top else top
                        shrunk = _exp(highest[i, group] - top)
                        highest[i, group] = top
                        share = _F(0.0)
                        for j in range(width):
                            scores[j] = _exp(scores[j] - top)
                            share += scores[j]
                        total[i, group] = total[i, group] * shrunk + share
                        average = sums[i, group]
                        for d in range(value_dim):
                            average[d] *= shrunk
                        j = 0
                        while j + 8 <= width:
                            a, b, c, e = scores[j], scores[j + 1], scores[j + 2], scores[j + 3]
                            f, g, h, p = scores[j + 4], scores[j + 5], scores[j + 6], scores[j + 7]
                            here = place + j
                            for d in range(value_dim):
                                average[d] += (
                                    a * values[head, here, d]
                                    + b * values[head, here + 1, d]
                                    + c * values[head, here + 2, d]
                                    + e * values[head, here + 3, d]
                                    + f * values[head, here + 4, d]
                                    + g * values[head, here + 5, d]
                                    + h * values[head, here + 6, d]
                                    + p * values[head, here + 7, d]
                                )
                            j += 8
                        while j < width:
                            for d in range(value_dim):
                                average[d] += scores[j] * values[head, place + j, d]
                            j += 1
            for i in range(size):
                for group in range(groups):
                    for d in range(value_dim):
                        out[token + i, head * groups + group, d] = sums[i, group, d] / total[i, group]

    return _compile(attend, nogil=True)


def _store(
    keys: NDArray[Any], values: NDArray[Any], slots: NDArray[Any], key: NDArray[Any], value: NDArray[Any]
) -> None:
    """Writes the keys and values of new tokens, shape (tokens, key heads, dim), into their slots."""
    for token in range(len(slots)):
        for head in range(keys.shape[0]):
            for d in range(keys.shape[2]):
                keys[head, slots[token], d] = key[token, head, d]
            for d in range(values.shape[2]):
                values[head, slots[token], d] = value[token, head, d]


_store = _compile(_store)


@cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")


def store(buffers: KeysValues, slots: NDArray[np.int64], key: Tensor, value: Tensor) -> None:
    """Writes the keys and values of new tokens, float32, shape (tokens, key heads, dim), into their slots."""
    _store(buffers[0].numpy(), buffers[1].numpy(), slots, key.contiguous().numpy(), value.contiguous().numpy())


def attend(
    query: Tensor,
    buffers: KeysValues,
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    table: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    window: int | None,
    scale: float | None,
    softcap: float | None,
    out: Tensor,
) -> None:
    """Attends from each token to the keys and values of its sequence up to it.

    Args:
        query: float32, shape (tokens, heads, dim), contiguous.
        buffers: Keys and values, float32, shape (key heads, slots, dim), contiguous.
        rows: The row of ``table`` that has the sequence of each token, shape (tokens,).
        lengths: How many tokens of it each sees, shape (tokens,).
        table: ``pages``, ``bases``, ``starts`` and ``counts`` of :class:`~trainers.rollout.radix_cache.PageTable`.
        window: Only the last so many of them are seen; ``None``: all.
        scale: Factor of the scores; ``None``: dim ** -0.5.
        softcap: Soft cap of the scores.
        out: Receives the result, shape (tokens, heads, value dim).
    """
    heads, dim = query.shape[1:]
    key_heads = buffers[0].shape[0]
    kernel = _kernel(heads // key_heads, dim, buffers[1].shape[2])
    arguments = (
        query.numpy(), buffers[0].numpy(), buffers[1].numpy(), rows, lengths, *table,
        (1 << 40) if window is None else window,
        _F(dim**-0.5 if scale is None else scale), _F(softcap or 0.0), out.numpy(),
    )  # fmt: skip
    units = key_heads * -(-len(rows) // _BLOCK)
    threads = min(torch.get_num_threads(), units)
    if threads == 1 or int(lengths.sum()) * heads < _ALONE:
        kernel(*arguments, 0, units)
        return
    cuts = [units * part // threads for part in range(threads + 1)]
    pool = _threads(threads, os.getpid())  # a fork has none of its parent's threads
    parts = [pool.submit(partial(kernel, *arguments, *cut)) for cut in itertools.pairwise(cuts)]
    for part in parts:
        part.result()
