"""Arithmetic: integers of two digits, then long ones and fractions, then powers and long sums."""

from __future__ import annotations

from fractions import Fraction

from envsuite.mathematics.problem import ProblemFamily, numbers


def _fractions(a: int, b: int, c: int, d: int) -> Fraction:
    return Fraction(a, b) + Fraction(c, d)


def _digit_sum(a: int, n: int) -> int:
    power, total = a**n, 0
    while power:
        power, digit = divmod(power, 10)
        total += digit
    return total


def _floors(n: int, p: int, q: int) -> int:
    """Sums floor(k p / q) for k = 0..n as Euclid's algorithm does: whole parts first, then with p and q exchanged."""
    total, n, offset = 0, n + 1, 0  # of floor((k p + offset) / q) for k = 0..n-1
    while True:
        total += (n - 1) * n // 2 * (p // q) + n * (offset // q)
        top = p % q * n + offset % q
        if top < q:
            return total
        n, p, q, offset = top // q, q, p % q, top % q


ARITHMETIC = (
    ProblemFamily(
        "product-plus", "arithmetic", 1,
        numbers(a=(11, 99), b=(11, 99), c=(1, 99)),
        (
            "Compute {a} * {b} + {c}.",
            "What is {a} times {b}, plus {c}?",
            "Multiply {a} by {b} and add {c}.",
        ),
        lambda a, b, c: a * b + c,
        "print({a}*{b}+{c})",
    ),
    ProblemFamily(
        "product-minus", "arithmetic", 1,
        numbers(a=(11, 99), b=(11, 99), c=(1, 99)),
        (
            "Compute {a} * {b} - {c}.",
            "What is {a} times {b}, minus {c}?",
            "Multiply {a} by {b} and subtract {c}.",
        ),
        lambda a, b, c: a * b - c,
        "print({a}*{b}-{c})",
    ),
    ProblemFamily(
        "sum-times", "arithmetic", 1,
        numbers(a=(10, 60), b=(10, 60), c=(11, 79)),
        (
            "Compute ({a} + {b}) * {c}.",
            "What is the sum of {a} and {b}, times {c}?",
            "Add {a} and {b} and multiply by {c}.",
        ),
        lambda a, b, c: (a + b) * c,
        "print(({a}+{b})*{c})",
    ),
    ProblemFamily(
        "long-products", "arithmetic", 2,
        numbers(a=(10**6, 10**8), b=(10**6, 10**8), c=(10**6, 10**8), d=(10**6, 10**8)),
        (
            "Compute {a} * {b} - {c} * {d}.",
            "By how much does {a} times {b} exceed {c} times {d}? The result may be negative.",
        ),
        lambda a, b, c, d: a * b - c * d,
        "print({a}*{b}-{c}*{d})",
    ),
    ProblemFamily(
        "fractions", "arithmetic", 2,
        numbers(a=(11, 999), b=(101, 999), c=(11, 999), d=(101, 999)),
        (
            "Write {a}/{b} + {c}/{d} as a fraction in lowest terms.",
            "Add the fractions {a}/{b} and {c}/{d}. Give the sum as a fraction in lowest terms.",
        ),
        _fractions,
        "from fractions import Fraction\nprint(Fraction({a},{b})+Fraction({c},{d}))",
    ),
    ProblemFamily(
        "digit-sum", "arithmetic", 3,
        numbers(a=(3, 99), n=(50, 400)),
        (
            "What is the sum of the decimal digits of {a}^{n}?",
            "Write {a} to the power {n} in decimal and add up its digits. What do you get?",
        ),
        _digit_sum,
        "print(sum(map(int,str({a}**{n}))))",
    ),
    ProblemFamily(
        "floors", "arithmetic", 3,
        numbers(n=(1000, 50_000), p=(2, 999), q=(101, 999)),
        (
            "For each whole number k from 1 to {n}, round k*{p}/{q} down to a whole number. What is the sum of the "
            "results?",
            "Find the sum of floor({p}k/{q}) over k = 1, 2, ..., {n}.",
        ),
        _floors,
        "print(sum(k*{p}//{q} for k in range(1,{n}+1)))",
    ),
)  # fmt: skip
"""The families of arithmetic."""
