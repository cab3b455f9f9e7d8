"""Number theory: divisors, primes, remainders, simultaneous congruences."""

from __future__ import annotations

import math

from envsuite.core.draws import Draw
from envsuite.mathematics.problem import Parameters, ProblemFamily, between, numbers

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


def _with_common_factor(draw: Draw) -> Parameters:
    factor = between(draw, 101, 9999)
    return {"a": factor * between(draw, 101, 9999), "b": factor * between(draw, 101, 9999)}


def _with_small_primes(draw: Draw) -> Parameters:
    n = between(draw, 1, 9)
    while n < 10**8:
        n *= draw.choose(_PRIMES)
    return {"n": n}


def _divisors(n: int) -> int:
    """Counts divisors by the exponents of the prime factors, which are below 50 by construction."""
    count = 1
    for prime in _PRIMES:
        exponent = 0
        while n % prime == 0:
            n, exponent = n // prime, exponent + 1
        count *= exponent + 1
    if n > 1:
        raise ValueError("a factor is above 47")
    return count


def _range(draw: Draw) -> Parameters:
    low = between(draw, 1000, 9999)
    return {"a": low, "b": low + between(draw, 500, 3000)}


def _primes_sum(a: int, b: int) -> int:
    sieve = bytearray([1]) * (b + 1)
    sieve[:2] = b"\0\0"
    for n in range(2, math.isqrt(b) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, b + 1, n)))
    return sum(n for n in range(a, b + 1) if sieve[n])


def _congruences(draw: Draw) -> Parameters:
    moduli: list[int] = []
    while len(moduli) < 3:
        m = between(draw, 101, 999)
        if all(math.gcd(m, modulus) == 1 for modulus in moduli):
            moduli.append(m)
    p, q, r = moduli
    return {"p": p, "q": q, "r": r, "a": draw.below(p), "b": draw.below(q), "c": draw.below(r)}


def _chinese(p: int, q: int, r: int, a: int, b: int, c: int) -> int:
    whole = p * q * r
    solution = sum(x * (whole // m) * pow(whole // m, -1, m) for x, m in ((a, p), (b, q), (c, r))) % whole
    return solution or whole


def _trailing_zeros(n: int, b: int) -> int:
    """Counts by Legendre's formula, for each prime of the base."""
    best, p = n, 2
    while b > 1:
        exponent = 0
        while b % p == 0:
            b, exponent = b // p, exponent + 1
        if exponent:
            in_factorial, power = 0, p
            while power <= n:
                in_factorial, power = in_factorial + n // power, power * p
            best = min(best, in_factorial // exponent)
        p += 1
    return best


NUMBER_THEORY = (
    ProblemFamily(
        "common-divisor", "number-theory", 1,
        _with_common_factor,
        (
            "What is the greatest common divisor of {a} and {b}?",
            "Find the largest integer that divides both {a} and {b}.",
        ),
        lambda a, b: math.gcd(a, b),
        "import math\nprint(math.gcd({a},{b}))",
    ),
    ProblemFamily(
        "power-remainder", "number-theory", 1,
        numbers(a=(12, 999), n=(100, 9999), m=(101, 9999)),
        (
            "What is the remainder when {a}^{n} is divided by {m}?",
            "Raise {a} to the power {n} and divide by {m}. What is the remainder?",
        ),
        lambda a, n, m: pow(a, n, m),
        "print(pow({a},{n},{m}))",
    ),
    ProblemFamily(
        "divisor-count", "number-theory", 2,
        _with_small_primes,
        (
            "How many positive divisors does {n} have?",
            "Count the positive integers that divide {n}.",
        ),
        _divisors,
        "n,d,count={n},2,1\nwhile n>1:\n    e=0\n    while n%d==0:\n        n//=d\n        e+=1\n    count*=e+1\n"
        "    d+=1\nprint(count)",
    ),
    ProblemFamily(
        "prime-sum", "number-theory", 2,
        _range,
        (
            "What is the sum of all primes from {a} to {b}?",
            "Add up the prime numbers p with {a} <= p <= {b}. What is the total?",
        ),
        _primes_sum,
        "print(sum(n for n in range({a},{b}+1) if n>1 and all(n%d for d in range(2,int(n**.5)+1))))",
    ),
    ProblemFamily(
        "congruences", "number-theory", 3,
        _congruences,
        (
            "What is the smallest positive integer that leaves remainder {a} when divided by {p}, {b} when divided by "
            "{q}, and {c} when divided by {r}?",
            "Find the least n > 0 with n = {a} (mod {p}), n = {b} (mod {q}) and n = {c} (mod {r}).",
        ),
        _chinese,
        "n,step=0,1\nfor x,m in (({a},{p}),({b},{q}),({c},{r})):\n    while n%m!=x:\n        n+=step\n    step*=m\n"
        "print(n or step)",
    ),
    ProblemFamily(
        "factorial-zeros", "number-theory", 3,
        numbers(n=(200, 1500), b=(12, 360)),
        (
            "The factorial of {n} is written in base {b}. How many zeros are at its end?",
            "What is the largest k for which {b}^k divides {n}!?",
        ),
        _trailing_zeros,
        "import math\nf,k=math.factorial({n}),0\nwhile f%{b}==0:\n    f//={b}\n    k+=1\nprint(k)",
    ),
)  # fmt: skip
"""The families of number theory."""
