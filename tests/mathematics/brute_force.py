"""The answers of generated problems once more, by counting and trying: slow, plain, and with smaller numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

Parameters = dict[str, int]


def _divides(d: int, *others: int) -> bool:
    return all(other % d == 0 for other in others)


def common_divisor(a: int, b: int) -> int:
    return max(d for d in range(1, min(a, b) + 1) if _divides(d, a, b))


def power_remainder(a: int, n: int, m: int) -> int:
    x = 1 % m
    for _ in range(n):
        x = x * a % m
    return x


def congruences(p: int, q: int, r: int, a: int, b: int, c: int) -> int:
    return next(n for n in itertools.count(1) if (n % p, n % q, n % r) == (a, b, c))


def factorial_zeros(n: int, b: int) -> int:
    product, zeros = 1, 0
    for factor in range(2, n + 1):
        product *= factor
    while product % b == 0:
        product, zeros = product // b, zeros + 1
    return zeros


def paths(m: int, n: int, x: int, y: int) -> int:
    def walks(i: int, j: int) -> int:
        if (i, j) == (x, y) or i < 0 or j < 0:
            return 0
        return 1 if (i, j) == (0, 0) else walks(i - 1, j) + walks(i, j - 1)

    return walks(m, n)


def coins(n: int, a: int, b: int, c: int) -> int:
    return sum(
        a * x + b * y + c * z == n for x in range(n // a + 1) for y in range(n // b + 1) for z in range(n // c + 1)
    )


def fixed_points(n: int, k: int) -> int:
    return sum(sum(i == p for i, p in enumerate(order)) == k for order in itertools.permutations(range(n)))


def no_long_runs(n: int, s: int, r: int) -> int:
    def fine(word: tuple[int, ...]) -> bool:
        return all(len(list(run)) < r for _, run in itertools.groupby(word))

    return sum(map(fine, itertools.product(range(s), repeat=n)))


def segment(x: int, y: int, u: int, v: int) -> int:
    columns, rows = range(min(x, u), max(x, u) + 1), range(min(y, v), max(y, v) + 1)
    return sum((i - x) * (v - y) == (j - y) * (u - x) for i in columns for j in rows)


def triangle_area(a: int, b: int, c: int, d: int, e: int, f: int) -> Fraction:
    """The box around the triangle without the three right-angled corners, or by halves of the sides' trapezoids."""
    sides = ((a, b, c, d), (c, d, e, f), (e, f, a, b))
    return abs(sum((Fraction((u - x) * (y + v), 2) for x, y, u, v in sides), Fraction(0)))


def inside_triangle(a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    """A point is inside if the triangles that it makes with the sides have areas, together the whole one's."""
    whole = triangle_area(a, b, c, d, e, f)
    count = 0
    for x in range(min(a, c, e), max(a, c, e) + 1):
        for y in range(min(b, d, f), max(b, d, f) + 1):
            parts = [
                triangle_area(x, y, a, b, c, d),
                triangle_area(x, y, c, d, e, f),
                triangle_area(x, y, e, f, a, b),
            ]
            count += all(parts) and sum(parts) == whole
    return count


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


def distinct_terms(a: int, c: int, m: int) -> int:
    terms = [a]
    for _ in range(2 * m + 2):
        terms.append((terms[-1] ** 2 + c) % m)
    return len(set(terms))


def recurrence(a: int, b: int, p: int, q: int, n: int) -> int:
    def term(k: int) -> int:
        return (a, b)[k - 1] if k <= 2 else p * term(k - 1) + q * term(k - 2)

    return term(n)


def halving(n: int, m: int) -> int:
    def steps(x: int) -> int:
        return 0 if x == 1 else 1 + steps(3 * x + 1 if x % 2 else x // 2)

    return min(range(n, m + 1), key=lambda x: (-steps(x), x))


BRUTE: dict[str, Callable[..., Any]] = {
    "product-plus": lambda a, b, c: sum([b] * a) + c,
    "product-minus": lambda a, b, c: sum([b] * a) - c,
    "sum-times": lambda a, b, c: sum([a, b] * c),
    "long-products": lambda a, b, c, d: sum([b] * a) - sum([d] * c),
    "fractions": lambda a, b, c, d: Fraction(a * d + b * c, b * d),
    "digit-sum": lambda a, n: sum(int(digit) for digit in str(a**n)),
    "floors": lambda n, p, q: sum(k * p // q for k in range(1, n + 1)),
    "common-divisor": common_divisor,
    "power-remainder": power_remainder,
    "divisor-count": lambda n: sum(n % d == 0 for d in range(1, n + 1)),
    "prime-sum": lambda a, b: sum(n for n in range(a, b + 1) if sum(n % d == 0 for d in range(1, n + 1)) == 2),
    "congruences": congruences,
    "factorial-zeros": factorial_zeros,
    "committees": lambda n, k: sum(1 for _ in itertools.combinations(range(n), k)),
    "beads": lambda a, b, c: len(set(itertools.permutations("r" * a + "g" * b + "b" * c))),
    "paths": paths,
    "coins": coins,
    "fixed-points": fixed_points,
    "no-long-runs": no_long_runs,
    "segment": segment,
    "triangle-area": triangle_area,
    "inside-triangle": inside_triangle,
    "disc": lambda n: sum(x * x + y * y <= n for x in range(-n, n + 1) for y in range(-n, n + 1)),
    "visible": lambda n, m: sum(
        not any(_divides(d, x, y) for d in range(2, min(x, y) + 1)) for x in range(1, n + 1) for y in range(1, m + 1)
    ),
    "squares": squares,
    "arithmetic-sum": lambda a, d, n: sum(range(a, a + d * n, d)),
    "geometric-sum": lambda a, r, n: sum(a * r**k for k in range(n)),
    "recurrence": recurrence,
    "recurrence-remainder": lambda a, b, p, q, n, m: recurrence(a, b, p, q, n) % m,
    "halving": halving,
    "distinct-terms": distinct_terms,
}
"""An independent route to the answer of each family."""


def _some(count: int = 20, **ranges: tuple[int, int]) -> Callable[[random.Random], Iterator[Parameters]]:
    def draw(rng: random.Random) -> Iterator[Parameters]:
        for _ in range(count):
            yield {name: rng.randint(*bounds) for name, bounds in ranges.items()}

    return draw


def _such(
    fits: Callable[[Parameters], bool], drawn: Callable[[random.Random], Iterator[Parameters]]
) -> Callable[[random.Random], Iterator[Parameters]]:
    return lambda rng: filter(fits, drawn(rng))


_TRIANGLE = {name: (-9, 9) for name in "abcdef"}
SMALL: dict[str, Callable[[random.Random], Iterator[Parameters]]] = {
    "product-plus": _some(a=(11, 99), b=(11, 99), c=(1, 99)),
    "product-minus": _some(a=(11, 99), b=(11, 99), c=(1, 99)),
    "sum-times": _some(a=(10, 60), b=(10, 60), c=(11, 79)),
    "long-products": _some(a=(0, 999), b=(0, 10**8), c=(0, 999), d=(0, 10**8)),
    "fractions": _some(a=(1, 999), b=(1, 999), c=(1, 999), d=(1, 999)),
    "digit-sum": _some(a=(2, 99), n=(0, 90)),
    "floors": _some(200, n=(1, 300), p=(1, 60), q=(1, 60)),
    "common-divisor": _some(a=(1, 900), b=(1, 900)),
    "power-remainder": _some(a=(2, 99), n=(0, 50), m=(1, 99)),
    "divisor-count": lambda rng: iter([{"n": n} for n in (1, 2, 12, 36, 47**2, 2**12, 30030)]),
    "prime-sum": _such(lambda p: p["a"] <= p["b"], _some(a=(1, 100), b=(1, 300))),
    "congruences": lambda rng: (
        {"p": p, "q": q, "r": r, "a": rng.randrange(p), "b": rng.randrange(q), "c": rng.randrange(r)}
        for p, q, r in [(3, 4, 5), (7, 9, 10), (11, 6, 35), (2, 3, 5), (13, 8, 9)] * 4
    ),
    "factorial-zeros": _some(60, n=(1, 60), b=(2, 40)),
    "committees": _such(lambda p: p["k"] <= p["n"], _some(n=(1, 14), k=(0, 14))),
    "beads": _some(6, a=(0, 3), b=(0, 3), c=(0, 2)),
    "paths": _such(lambda p: p["x"] < p["m"] and p["y"] < p["n"], _some(40, m=(2, 6), n=(2, 6), x=(1, 5), y=(1, 5))),
    "coins": _some(n=(0, 60), a=(1, 9), b=(1, 9), c=(1, 9)),
    "fixed-points": _such(lambda p: p["k"] <= p["n"], _some(n=(1, 7), k=(0, 7))),
    "no-long-runs": _some(n=(1, 7), s=(1, 4), r=(2, 5)),
    "segment": _some(x=(-20, 20), y=(-20, 20), u=(-20, 20), v=(-20, 20)),
    "triangle-area": _some(**_TRIANGLE),
    "inside-triangle": _such(lambda p: triangle_area(**p) != 0, _some(15, **_TRIANGLE)),
    "disc": _some(n=(1, 60)),
    "visible": _some(n=(1, 30), m=(1, 30)),
    "squares": _some(8, n=(1, 5), m=(1, 5)),
    "arithmetic-sum": _some(a=(-99, 99), d=(1, 99), n=(1, 99)),
    "geometric-sum": _some(a=(2, 99), r=(2, 9), n=(1, 25)),
    "recurrence": _some(a=(0, 9), b=(1, 9), p=(1, 4), q=(1, 5), n=(1, 15)),
    "recurrence-remainder": _some(a=(0, 9), b=(1, 9), p=(1, 9), q=(1, 9), n=(1, 15), m=(2, 99)),
    "halving": _some(4, n=(1, 300), m=(301, 500)),
    "distinct-terms": _some(a=(0, 50), c=(0, 50), m=(51, 300)),
}
"""Numbers that are small enough for it."""
