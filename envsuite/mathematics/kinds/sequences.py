"""Sequences: sums of progressions, then recurrences, then sequences that have to be followed for long."""

from __future__ import annotations

from envsuite.core.draws import Draw
from envsuite.mathematics.problem import Parameters, ProblemFamily, between, numbers


def _geometric(a: int, r: int, n: int) -> int:
    power: int = r**n
    return a * (power - 1) // (r - 1)


def _recurrence(a: int, b: int, p: int, q: int, n: int) -> int:
    for _ in range(n - 1):
        a, b = b, p * b + q * a
    return a


def _remainder(a: int, b: int, p: int, q: int, n: int, m: int) -> int:
    """Returns x_n mod m by powers of the recurrence's matrix."""
    matrix, power, k = (1, 0, 0, 1), (p % m, q % m, 1, 0), n - 1
    while k:
        if k & 1:
            matrix = _product(matrix, power, m)
        power, k = _product(power, power, m), k >> 1
    return (matrix[2] * b + matrix[3] * a) % m


def _product(x: tuple[int, ...], y: tuple[int, ...], m: int) -> tuple[int, int, int, int]:
    return (
        (x[0] * y[0] + x[1] * y[2]) % m,
        (x[0] * y[1] + x[1] * y[3]) % m,
        (x[2] * y[0] + x[3] * y[2]) % m,
        (x[2] * y[1] + x[3] * y[3]) % m,
    )


def _starts(draw: Draw) -> Parameters:
    first = between(draw, 1000, 20_000)
    return {"n": first, "m": first + between(draw, 500, 2000)}


def _collatz(n: int, m: int) -> int:
    """Returns the start from n to m with the most steps, the smallest of several."""
    best, longest = n, -1
    for start in range(n, m + 1):
        x, steps = start, 0
        while x != 1:
            x, steps = (x // 2 if x % 2 == 0 else 3 * x + 1), steps + 1
        if steps > longest:
            best, longest = start, steps
    return best


def _distinct(a: int, c: int, m: int) -> int:
    """Counts by Floyd's tortoise and hare: the steps before the cycle, and the cycle's length."""

    def follow(x: int) -> int:
        return (x * x + c) % m

    slow, fast = follow(a), follow(follow(a))
    while slow != fast:
        slow, fast = follow(slow), follow(follow(fast))
    before, slow = 0, a
    while slow != fast:
        slow, fast, before = follow(slow), follow(fast), before + 1
    length, fast = 1, follow(slow)
    while slow != fast:
        fast, length = follow(fast), length + 1
    return before + length


SEQUENCES = (
    ProblemFamily(
        "arithmetic-sum", "sequences", 1,
        numbers(a=(-999, 999), d=(13, 999), n=(50, 999)),
        (
            "An arithmetic sequence begins with {a}, and each further term is {d} more than the one before. What is "
            "the sum of its first {n} terms?",
            "Find the sum of the first {n} terms of the arithmetic progression with first term {a} and difference {d}.",
        ),
        lambda a, d, n: n * a + d * n * (n - 1) // 2,
        "print(sum({a}+{d}*k for k in range({n})))",
    ),
    ProblemFamily(
        "geometric-sum", "sequences", 1,
        numbers(a=(2, 99), r=(2, 9), n=(10, 25)),
        (
            "A geometric sequence begins with {a}, and each further term is {r} times the one before. What is the sum "
            "of its first {n} terms?",
            "Find the sum of the first {n} terms of the geometric progression with first term {a} and ratio {r}.",
        ),
        _geometric,
        "print(sum({a}*{r}**k for k in range({n})))",
    ),
    ProblemFamily(
        "recurrence", "sequences", 2,
        numbers(a=(0, 9), b=(1, 9), p=(1, 4), q=(1, 5), n=(25, 80)),
        (
            "A sequence has x_1 = {a}, x_2 = {b}, and x_k = {p} x_(k-1) + {q} x_(k-2) for k > 2. Find x_{n}.",
            "The first two terms of a sequence are {a} and {b}. Each later term is {p} times the one before it plus "
            "{q} times the one before that. What is the term number {n}?",
        ),
        _recurrence,
        "x=[{a},{b}]\nwhile len(x)<{n}:\n    x.append({p}*x[-1]+{q}*x[-2])\nprint(x[{n}-1])",
    ),
    ProblemFamily(
        "recurrence-remainder", "sequences", 2,
        numbers(a=(0, 9), b=(1, 9), p=(1, 9), q=(1, 9), n=(1000, 20_000), m=(101, 9999)),
        (
            "A sequence has x_1 = {a}, x_2 = {b}, and x_k = {p} x_(k-1) + {q} x_(k-2) for k > 2. What is the remainder "
            "when x_{n} is divided by {m}?",
            "Let x_1 = {a}, x_2 = {b}, and let every later term be {p} times the previous one plus {q} times the one "
            "before. Find x_{n} modulo {m}.",
        ),
        _remainder,
        "a,b={a},{b}\nfor _ in range({n}-1):\n    a,b=b,({p}*b+{q}*a)%{m}\nprint(a%{m})",
    ),
    ProblemFamily(
        "halving", "sequences", 3,
        _starts,
        (
            "From a number x, go to x/2 if x is even and to 3x + 1 if it is odd, until you reach 1. Which start from "
            "{n} to {m} takes the most steps? If there are several, give the smallest.",
            "A number is halved if it is even, else tripled and increased by 1; this is repeated until it is 1. Which "
            "of the numbers from {n} to {m} needs the most repetitions? Of several such numbers, give the smallest.",
        ),
        _collatz,
        "def steps(x):\n    k=0\n    while x!=1:\n        x=x//2 if x%2==0 else 3*x+1\n        k+=1\n    return k\n"
        "print(max(range({n},{m}+1),key=steps))",
    ),
    ProblemFamily(
        "distinct-terms", "sequences", 3,
        numbers(a=(2, 999), c=(1, 999), m=(10_000, 9_999_999)),
        (
            "Let x_0 = {a}, and let x_(k+1) be the remainder of x_k^2 + {c} when divided by {m}. How many different "
            "numbers are in the sequence x_0, x_1, x_2, ...?",
            "A generator starts at {a} and goes from x to (x^2 + {c}) mod {m} again and again. How many different "
            "values, the first one included, does it visit?",
        ),
        _distinct,
        "x,seen={a},set()\nwhile x not in seen:\n    seen.add(x)\n    x=(x*x+{c})%{m}\nprint(len(seen))",
    ),
)  # fmt: skip
"""The families of sequences."""
