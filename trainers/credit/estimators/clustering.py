"""Clusters of steps by how alike the policy sees them: BiPACE's state side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from trainers.credit.estimators.groups import Floats, Ints, describe_row, group_codes
from trainers.steps import StepTable
from trainers.steps.columns import EMBEDDING, SUPPLIERS

NGRAM = 3
BUCKETS = 1024
BLOCK = 128
"""Rows whose dot products with all later rows are computed at a time; bounds memory, changes no result."""


def greedy_clusters(vectors: NDArray[np.floating[Any]], group: Ints, radius: float) -> Ints:
    """Greedy single-pass clustering within each group, in row order (Wang et al. 2026, Algorithm 1).

    A row joins the cluster whose centroid is nearest (the first of equals) if its cosine distance is at most
    ``radius``, else it starts one. The centroid moves by (x - c) / |M| and is scaled back to length 1.

    Dot products with centroids are kept up to date through those between rows, so that the work in D dimensions is one
    matrix product per group.

    Args:
        vectors: Unit vectors, shape (N, D), float32 or float64.
        group: Codes of shape (N,).
        radius: In [0, 2].

    Returns:
        Codes of shape (N,), numbered in the order of first appearance.
    """
    out = np.empty(len(vectors), np.int64)
    slack = 1e-6 if vectors.dtype == np.float32 else 1e-9
    order = np.argsort(group, kind="stable")
    clusters = 0
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(rows):
            out[rows] = clusters + _one_group(vectors[rows], radius + slack)
            clusters = int(out[rows].max()) + 1
    return group_codes(out)


def _one_group(vectors: NDArray[np.floating[Any]], reach: float) -> Ints:
    rows = len(vectors)
    near = np.empty((rows, rows))  # [k, i]: dot product of centroid k with row i, for rows yet to come
    size, label, count = np.zeros(rows, np.int64), np.empty(rows, np.int64), 0
    for start in range(0, rows, BLOCK):
        products = (vectors[start : start + BLOCK] @ vectors[start:].T).astype(np.float64)
        for row in range(start, min(start + BLOCK, rows)):
            own = products[row - start, row - start :]
            best = int(near[:count, row].argmax()) if count else -1
            if best < 0 or 1.0 - near[best, row] > reach:
                near[count, row:], size[count], label[row] = own, 1, count
                count += 1
                continue
            label[row] = best
            size[best] += 1
            step = 1.0 / size[best]
            length = (1 - step) ** 2 + 2 * step * (1 - step) * near[best, row] + step**2
            near[best, row:] = ((1 - step) * near[best, row:] + step * own) / np.sqrt(length)
    return label


def adaptive_radius(vectors: NDArray[np.floating[Any]], group: Ints) -> float:
    """Searches, by halving, a radius of 0.02 to 0.40 whose clusters have a median size of 4 to 8 (BiPACE, appendix F).

    Where none of six fits, the last one is returned.

    Args:
        vectors: Unit vectors, shape (N, D).
        group: Codes of shape (N,).
    """
    low, high = 0.02, 0.40
    for _ in range(6):
        radius = (low + high) / 2
        codes = greedy_clusters(vectors, group, radius)
        median = float(np.median(np.bincount(codes))) if len(codes) else 0.0
        if 4.0 <= median <= 8.0:
            break
        low, high = (radius, high) if median < 4.0 else (low, radius)
    return radius


def unit_vectors(steps: StepTable) -> NDArray[np.floating[Any]]:
    """The column ``embedding``, each row scaled to length 1; float32 where it is no wider.

    Raises:
        MissingColumn: It is not there.
        UsageError: A value is not finite, or a row is all zeros; the message names the first such step.
    """
    vectors = steps.column(EMBEDDING, "bipace", SUPPLIERS[EMBEDDING])
    if vectors.ndim != 2:
        raise UsageError(f"column {EMBEDDING!r} has shape {vectors.shape}; it must be one vector for each row, (N, D)")
    narrow = vectors.dtype in (np.float16, np.float32)
    values: NDArray[np.floating[Any]] = vectors.astype(np.float32) if narrow else vectors.astype(np.float64)
    length = np.sqrt(np.einsum("nd,nd->n", values, values))
    for bad, what in ((~np.isfinite(length), "not finite"), (length == 0.0, "all zeros, which has no direction,")):
        if bad.any():
            where = describe_row(steps, int(np.flatnonzero(bad)[0]))
            raise UsageError(f"column {EMBEDDING!r} is {what} in {where}")
    return np.asarray(values / length[:, None], values.dtype)


def ngram_vectors(steps: StepTable) -> NDArray[np.float32]:
    """Unit vectors of hashed character 3-gram counts of each state key, shape (N, 1024).

    The hash is a fixed polynomial, the same in every process. Begin and end of a key count as characters.

    Raises:
        UsageError: A state key is not text.
    """
    keys = steps.state_key.tolist()
    for row, key in enumerate(keys):
        if not isinstance(key, str):
            raise UsageError(f"ngram_hash reads state keys as text; row {row} has {key!r}, a {type(key).__name__}")
    codes = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    table = np.zeros((len(codes), BUCKETS), np.float32)
    for i, key in enumerate(codes):
        table[i] = _ngram_counts(key)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-30)
    return table[[codes[key] for key in keys]] if keys else table


def _ngram_counts(text: str) -> Floats:
    edge = np.zeros(NGRAM - 1, np.uint64)
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64) + np.uint64(1)
    letters = np.concatenate([edge, letters, edge])
    code = np.zeros(len(letters) - NGRAM + 1, np.uint64)
    for i in range(NGRAM):
        code = code * np.uint64(1_000_003) + letters[i : i + len(code)]
    # The product's upper bits depend on all letters; its lower bits on the last ones most.
    bucket = (code * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(54)
    return np.bincount(bucket.astype(np.int64), minlength=BUCKETS).astype(np.float64)
