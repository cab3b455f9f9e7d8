"""Geometry on the lattice of points with integer coordinates."""

from __future__ import annotations

import math
from fractions import Fraction

from envsuite.core.draws import Draw
from envsuite.mathematics.problem import Parameters, ProblemFamily, between, numbers


def _segment(draw: Draw) -> Parameters:
    steps = between(draw, 11, 120)
    x, y = between(draw, -500, 500), between(draw, -500, 500)
    across, up = between(draw, 1, 40), between(draw, -40, 40)
    return {"x": x, "y": y, "u": x + steps * across, "v": y + steps * up}


def _corners(draw: Draw, most: int) -> Parameters:
    """Draws the corners of a triangle, with coordinates from ``-most`` to ``most``."""
    while True:
        corners = {name: between(draw, -most, most) for name in ("a", "b", "c", "d", "e", "f")}
        if _doubled_area(**corners):
            return corners


def _doubled_area(a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    return abs((c - a) * (f - b) - (e - a) * (d - b))


def _triangle_area(a: int, b: int, c: int, d: int, e: int, f: int) -> Fraction:
    return Fraction(_doubled_area(a, b, c, d, e, f), 2)


def _inside(a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    """Counts by Pick's theorem."""
    border = math.gcd(c - a, d - b) + math.gcd(e - c, f - d) + math.gcd(a - e, b - f)
    return (_doubled_area(a, b, c, d, e, f) - border + 2) // 2


def _disc(n: int) -> int:
    """Counts column by column."""
    return sum(2 * math.isqrt(n - x * x) + 1 for x in range(-math.isqrt(n), math.isqrt(n) + 1))


def _visible(n: int, m: int) -> int:
    """Counts by Moebius inversion."""
    mobius = [0, 1, *[0] * (min(n, m) - 1)]
    for i in range(1, len(mobius)):
        for multiple in range(2 * i, len(mobius), i):
            mobius[multiple] -= mobius[i]
    return sum(mobius[d] * (n // d) * (m // d) for d in range(1, len(mobius)))


def _squares(n: int, m: int) -> int:
    """Each square, tilted or not, has an upright one of side s around it, which has s squares of this kind inside."""
    return sum(s * (n - s) * (m - s) for s in range(1, min(n, m)))


LATTICE = (
    ProblemFamily(
        "segment", "lattice", 1,
        _segment,
        (
            "How many points with integer coordinates lie on the segment from ({x}, {y}) to ({u}, {v}), both ends "
            "included?",
            "A straight line is drawn from ({x}, {y}) to ({u}, {v}). Through how many points with two integer "
            "coordinates does it go, its ends included?",
        ),
        lambda x, y, u, v: math.gcd(u - x, v - y) + 1,
        "import math\nprint(math.gcd({u}-({x}),{v}-({y}))+1)",
    ),
    ProblemFamily(
        "triangle-area", "lattice", 1,
        lambda draw: _corners(draw, 400),
        (
            "What is the area of the triangle with corners ({a}, {b}), ({c}, {d}) and ({e}, {f})?",
            "The corners of a triangle are ({a}, {b}), ({c}, {d}) and ({e}, {f}). Find its area.",
        ),
        _triangle_area,
        "print(abs({a}*({d}-({f}))+{c}*({f}-({b}))+{e}*({b}-({d})))/2)",
    ),
    ProblemFamily(
        "inside-triangle", "lattice", 2,
        lambda draw: _corners(draw, 40),
        (
            "How many points with integer coordinates lie strictly inside the triangle with corners ({a}, {b}), "
            "({c}, {d}) and ({e}, {f})?",
            "A triangle has the corners ({a}, {b}), ({c}, {d}) and ({e}, {f}). Count the points with integer "
            "coordinates in its interior, without its sides.",
        ),
        _inside,
        "P=[({a},{b}),({c},{d}),({e},{f})]\ncount=0\nfor x in range(-40,41):\n    for y in range(-40,41):\n"
        "        s=[(q[0]-p[0])*(y-p[1])-(q[1]-p[1])*(x-p[0]) for p,q in zip(P,P[1:]+P[:1])]\n"
        "        count+=all(v>0 for v in s) or all(v<0 for v in s)\nprint(count)",
    ),
    ProblemFamily(
        "disc", "lattice", 2,
        numbers(n=(400, 20_000)),
        (
            "How many pairs of integers (x, y) satisfy x^2 + y^2 <= {n}?",
            "A circle around the origin has the radius sqrt({n}). How many points with integer coordinates are inside "
            "it or on it?",
        ),
        _disc,
        "r=int({n}**.5)+1\nprint(sum(x*x+y*y<={n} for x in range(-r,r+1) for y in range(-r,r+1)))",
    ),
    ProblemFamily(
        "visible", "lattice", 3,
        numbers(n=(200, 900), m=(200, 900)),
        (
            "A tree stands at each point (x, y) with integers 1 <= x <= {n} and 1 <= y <= {m}. How many of them are "
            "seen from (0, 0), if a tree hides all that are behind it on the same ray?",
            "How many pairs (x, y) with 1 <= x <= {n} and 1 <= y <= {m} have no common divisor greater than 1?",
        ),
        _visible,
        "from math import gcd\nprint(sum(gcd(x,y)==1 for x in range(1,{n}+1) for y in range(1,{m}+1)))",
    ),
    ProblemFamily(
        "squares", "lattice", 3,
        numbers(n=(12, 60), m=(12, 60)),
        (
            "Pegs are placed at the points (x, y) with integers 0 <= x < {n} and 0 <= y < {m}. How many squares, "
            "tilted ones included, have all four corners at pegs?",
            "A rectangular array has {n} columns and {m} rows of points, one unit apart. How many squares have their "
            "corners at these points? Count squares that are turned, too.",
        ),
        _squares,
        "count=0\nfor a in range(1,{n}):\n    for b in range({n}):\n"
        "        if a+b<{n} and a+b<{m}:\n            count+=({n}-a-b)*({m}-a-b)\nprint(count)",
    ),
)  # fmt: skip
"""The families of geometry on the lattice."""
