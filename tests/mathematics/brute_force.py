"""Answers of generated problems once more, by counting and trying: where their own code counts by a formula, too, or
draws never reach what happens at small numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any


def no_long_runs(n: int, s: int, r: int) -> int:
    def fine(word: tuple[int, ...]) -> bool:
        return all(len(list(run)) < r for _, run in itertools.groupby(word))

    return sum(map(fine, itertools.product(range(s), repeat=n)))


def segment(x: int, y: int, u: int, v: int) -> int:
    columns, rows = range(min(x, u), max(x, u) + 1), range(min(y, v), max(y, v) + 1)
    return sum((i - x) * (v - y) == (j - y) * (u - x) for i in columns for j in rows)


def squares(n: int, m: int) -> int:
    points = {(x, y) for x in range(n) for y in range(m)}
    found = {
        frozenset(corners)
        for x, y in points
        for dx in range(-n, n + 1)
        for dy in range(-n, n + 1)
        if (dx, dy) != (0, 0)
        and points.issuperset(corners := [(x, y), (x + dx, y + dy), (x + dx - dy, y + dy + dx), (x - dy, y + dx)])
    }
    return len(found)


def halving(n: int, m: int) -> int:
    def steps(x: int) -> int:
        return 0 if x == 1 else 1 + steps(3 * x + 1 if x % 2 else x // 2)

    return min(range(n, m + 1), key=lambda x: (-steps(x), x))


BRUTE: dict[str, tuple[Callable[..., int], dict[str, Any]]] = {
    "factorial-zeros": (
        lambda n, b: next(k for k in itertools.count() if math.factorial(n) % b ** (k + 1)),
        {"n": range(1, 30), "b": range(2, 20)},
    ),
    "committees": (
        lambda n, k: sum(1 for _ in itertools.combinations(range(n), k)),
        {"n": range(8, 14), "k": range(8)},
    ),
    "beads": (
        lambda a, b, c: len(set(itertools.permutations("r" * a + "g" * b + "b" * c))),
        {"a": range(4), "b": range(3), "c": range(3)},
    ),
    "fixed-points": (
        lambda n, k: sum(sum(i == p for i, p in enumerate(o)) == k for o in itertools.permutations(range(n))),
        {"n": range(4, 7), "k": range(5)},
    ),
    "no-long-runs": (no_long_runs, {"n": range(1, 7), "s": range(1, 5), "r": range(2, 6)}),
    "segment": (segment, {"x": (-9, 4), "y": (0, 7), "u": (-20, 5, 19), "v": (-15, 0, 7)}),
    "squares": (squares, {"n": range(1, 6), "m": range(1, 6)}),
    "halving": (halving, {"n": range(1, 9), "m": range(9, 30)}),
}
"""An independent route to the answer of a family, and numbers that are small enough for it."""
