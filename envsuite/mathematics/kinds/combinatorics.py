"""Combinatorics: choices and arrangements, then paths and sums of money, then permutations and strings."""

from __future__ import annotations

import math

from envsuite.core.draws import Draw
from envsuite.mathematics.problem import Parameters, ProblemFamily, between, numbers


def _choice(draw: Draw) -> Parameters:
    n = between(draw, 18, 60)
    return {"n": n, "k": between(draw, 5, n // 2)}


def _arrangements(a: int, b: int, c: int) -> int:
    return math.comb(a + b + c, a) * math.comb(b + c, b)


def _crossing(draw: Draw) -> Parameters:
    width, height = between(draw, 6, 14), between(draw, 6, 14)
    return {"m": width, "n": height, "x": between(draw, 1, width - 1), "y": between(draw, 1, height - 1)}


def _paths(m: int, n: int, x: int, y: int) -> int:
    return math.comb(m + n, m) - math.comb(x + y, x) * math.comb(m - x + n - y, m - x)


def _coins(draw: Draw) -> Parameters:
    a, b, c = sorted(draw.sample(range(2, 30), 3))
    return {"a": a, "b": b, "c": c, "n": between(draw, 200, 900)}


def _payments(n: int, a: int, b: int, c: int) -> int:
    """Counts by the number of coins of the two larger kinds."""
    return sum(
        (n - c * third - b * second) % a == 0
        for third in range(n // c + 1)
        for second in range((n - c * third) // b + 1)
    )


def _fixed(draw: Draw) -> Parameters:
    n = between(draw, 9, 20)
    return {"n": n, "k": between(draw, 1, n - 4)}


def _with_fixed_points(n: int, k: int) -> int:
    """Chooses the fixed points and deranges the rest, by D(m) = m D(m - 1) + (-1)^m."""
    derangements = 1
    for m in range(1, n - k + 1):
        derangements = m * derangements + (-1) ** m
    return math.comb(n, k) * derangements


def _strings(n: int, s: int, r: int) -> int:
    """Counts strings by the length of their last run, which stays below ``r``."""
    runs = [s, *[0] * (r - 2)]
    for _ in range(n - 1):
        runs = [sum(runs) * (s - 1), *runs[:-1]]
    return sum(runs)


COMBINATORICS = (
    ProblemFamily(
        "committees", "combinatorics", 1,
        _choice,
        (
            "In how many ways can a committee of {k} be chosen from {n} people?",
            "How many subsets with exactly {k} elements does a set of {n} elements have?",
        ),
        lambda n, k: math.comb(n, k),
        "import math\nprint(math.comb({n},{k}))",
    ),
    ProblemFamily(
        "beads", "combinatorics", 1,
        numbers(a=(3, 9), b=(3, 9), c=(3, 9)),
        (
            "In how many orders can {a} red, {b} green and {c} blue beads be placed in a row? Beads of one colour look "
            "alike.",
            "How many different words have {a} letters A, {b} letters B, {c} letters C, and no others?",
        ),
        _arrangements,
        "from math import factorial as f\nprint(f({a}+{b}+{c})//f({a})//f({b})//f({c}))",
    ),
    ProblemFamily(
        "paths", "combinatorics", 2,
        _crossing,
        (
            "A walk on a grid goes from (0, 0) to ({m}, {n}) by steps of 1 to the right or 1 up. How many walks do not "
            "pass through ({x}, {y})?",
            "Streets form a grid. How many shortest ways lead from (0, 0) to ({m}, {n}) if the crossing ({x}, {y}) is "
            "closed?",
        ),
        _paths,
        "p=[[0]*({n}+1) for _ in range({m}+1)]\nfor i in range({m}+1):\n    for j in range({n}+1):\n"
        "        if (i,j)==(0,0): p[i][j]=1\n        elif (i,j)!=({x},{y}):\n"
        "            p[i][j]=(p[i-1][j] if i else 0)+(p[i][j-1] if j else 0)\nprint(p[{m}][{n}])",
    ),
    ProblemFamily(
        "coins", "combinatorics", 2,
        _coins,
        (
            "In how many ways can exactly {n} cents be paid with coins of {a}, {b} and {c} cents? The order of the "
            "coins does not matter.",
            "How many triples (x, y, z) of integers, none of them negative, have {a}x + {b}y + {c}z = {n}?",
        ),
        _payments,
        "w=[1]+[0]*{n}\nfor c in ({a},{b},{c}):\n    for s in range(c,{n}+1):\n        w[s]+=w[s-c]\nprint(w[{n}])",
    ),
    ProblemFamily(
        "fixed-points", "combinatorics", 3,
        _fixed,
        (
            "{n} letters go into {n} addressed envelopes, one each. In how many ways do exactly {k} letters reach the "
            "right envelope?",
            "How many permutations of 1, 2, ..., {n} leave exactly {k} numbers in their place?",
        ),
        _with_fixed_points,
        "from math import comb,factorial\nm={n}-{k}\n"
        "print(comb({n},{k})*sum((-1)**i*comb(m,i)*factorial(m-i) for i in range(m+1)))",
    ),
    ProblemFamily(
        "no-long-runs", "combinatorics", 3,
        numbers(n=(12, 40), s=(2, 6), r=(3, 5)),
        (
            "How many strings of length {n} over an alphabet of {s} letters never have the same letter {r} times in a "
            "row?",
            "A row of {n} tiles is painted in {s} colours, and no {r} neighbouring tiles may all have the same colour. "
            "How many paintings are there?",
        ),
        _strings,
        "f=[1]\nfor n in range(1,{n}+1):\n"
        "    f.append({s}**n if n<{r} else ({s}-1)*sum(f[n-i] for i in range(1,{r})))\nprint(f[{n}])",
    ),
)  # fmt: skip
"""The families of combinatorics."""
