"""Grouping: keys of rows as integer codes, and statistics per group.

Everything is vectorised over rows, float64, linear in their number up to a sort, and indifferent to their order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from trainers.steps import StepTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROUNDING = 1e-9
"""Values of a group that lie within this (relative above magnitude 1) are equal; what is left is rounding."""


def group_codes(*columns: NDArray[Any]) -> Ints:
    """One integer per row, equal exactly where the rows agree in every column.

    Args:
        columns: Keys of shape (N,), integers or strings.

    Returns:
        Codes of shape (N,), from 0 without gaps, numbered in the order of first appearance.
    """
    if not columns:
        raise UsageError("group_codes needs at least one column")
    code = _codes(columns[0])
    for column in columns[1:]:
        codes = _codes(column)
        code = _codes(code * (int(codes.max(initial=0)) + 1) + codes)
    return code


def _codes(column: NDArray[Any]) -> Ints:
    if column.dtype.kind in "iu":
        return np.asarray(pa.array(column).dictionary_encode().indices, np.int64)
    code = defaultdict[Any, int](count().__next__)
    return np.fromiter(map(code.__getitem__, column.tolist()), np.int64, count=len(column))


def similar_codes(group: Ints, keys: NDArray[np.object_], threshold: float) -> Ints:
    """Join similar keys within each group, greedily in row order.

    A row joins the first cluster of its group whose first member has a ``difflib`` ratio of at least
    ``threshold`` with it, else it starts one. The result depends on the order of the rows.

    Args:
        group: Codes of shape (N,).
        keys: Text of shape (N,).
        threshold: In (0, 1].

    Returns:
        Codes of shape (N,), numbered in the order of first appearance.

    Raises:
        UsageError: A key is not text.
    """
    leaders: dict[int, list[tuple[str, int]]] = {}
    code_of: dict[tuple[int, str], int] = {}
    clusters = 0
    out = np.empty(len(group), np.int64)
    for row, (of, key) in enumerate(zip(group.tolist(), keys.tolist(), strict=True)):
        code = code_of.get((of, key))
        if not isinstance(key, str):
            raise UsageError(f"similarity compares state keys as text; row {row} has {key!r}, a {type(key).__name__}")
        if code is None:
            heads = leaders.setdefault(of, [])
            near = (c for head, c in heads if SequenceMatcher(None, key, head).ratio() >= threshold)
            code = next(near, clusters)
            if code == clusters:
                heads.append((key, code))
                clusters += 1
            code_of[of, key] = code
        out[row] = code
    return out


def episode_codes(steps: StepTable) -> Ints:
    """Integer of each row's episode, shape (N,)."""
    return group_codes(steps.group_id, steps.episode_id)


def first_rows(codes: Ints) -> Ints:
    """Row at which each code first appears, shape (number of codes,)."""
    rows = len(codes)
    first = np.full(int(codes.max(initial=-1)) + 1, rows)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)  # of equal codes, the first row is written last
    return first[first < rows]


@dataclass(frozen=True)
class GroupStatistics:
    """Mean, standard deviation and size of the group of each row, all of shape (N,)."""

    mean: Floats
    std: Floats
    """0 where the values of the group are equal."""
    size: Ints
    """Number of samples, i.e. of rows or of episodes."""


def group_statistics(values: Floats, group: Ints, *, ddof: int = 0, samples: Ints | None = None) -> GroupStatistics:
    """Statistics of ``values`` by ``group``, broadcast back to the rows.

    A group whose values are all equal has its own value as mean and a standard deviation of exactly 0:
    rounding must not become advantage.

    Args:
        values: Shape (N,).
        group: Codes of shape (N,), see :func:`group_codes`.
        ddof: 0 for the population's standard deviation, 1 for the sample's.
        samples: Rows that count (each group must have one); all by default.
    """
    if len(values) == 0:
        return GroupStatistics(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    rows = np.arange(len(values)) if samples is None else samples
    sample, code = values[rows], group[rows]
    groups = int(group.max()) + 1
    size = np.bincount(code, minlength=groups)
    low, equal = _extent(sample, code, groups)
    # Centring on the smallest value first keeps a large common offset out of the sums.
    mean = low + np.bincount(code, sample - low[code], minlength=groups) / np.maximum(size, 1)
    squares = np.bincount(code, (sample - mean[code]) ** 2, minlength=groups)
    std = np.sqrt(squares / np.maximum(size - ddof, 1))
    std[equal] = 0.0
    return GroupStatistics(mean[group], std[group], size[group])


def all_equal(values: Floats) -> bool:
    """Whether all values are equal but for rounding; true of none."""
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return high - low <= ROUNDING * max(1.0, abs(low), abs(high))


def _extent(values: Floats, group: Ints, groups: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Smallest value of each group, and whether all its values are equal but for rounding, shape (groups,)."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    with np.errstate(invalid="ignore"):  # codes that no row has: inf - inf
        return low, high - low <= ROUNDING * np.maximum(1.0, np.maximum(abs(low), abs(high)))


def group_diagnostics(values: Floats, group: Ints, prefix: str) -> dict[str, float]:
    """Diagnostics of a grouping: group sizes, singletons and groups without variance.

    Args:
        values: One value per sample, shape (M,).
        group: Codes, shape (M,).
        prefix: Put before the names, e.g. ``"group"``.

    Returns:
        ``{prefix}/size_mean``: samples per group; ``{prefix}/singleton_rate``: share of the samples that are alone
        in their group; ``{prefix}/zero_variance_rate``: share of the groups in which all values are equal
        (singletons among them).
    """
    if len(values) == 0:
        return {f"{prefix}/{name}": 0.0 for name in ("size_mean", "singleton_rate", "zero_variance_rate")}
    size = np.bincount(group)
    _, equal = _extent(values, group, len(size))
    present = size > 0
    return {
        f"{prefix}/size_mean": float(size[present].mean()),
        f"{prefix}/singleton_rate": float((size == 1).sum() / len(values)),
        f"{prefix}/zero_variance_rate": float(equal[present].mean()),
    }


def mean_of(values: NDArray[Any]) -> float:
    """Mean; 0 of none."""
    return float(values.mean()) if len(values) else 0.0


def mean_abs(values: Floats) -> float:
    """Mean magnitude; 0 of none."""
    return mean_of(np.abs(values))


def describe_row(steps: StepTable, row: int) -> str:
    """Returns where a row is, for messages."""
    return f"row {row} (episode {steps.episode_id[row]}, step {steps.t[row]})"
