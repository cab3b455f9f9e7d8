"""A player that calculates with code, or guesses: demonstrations for a small base model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall


@dataclass(frozen=True)
class Calculator(FallibleTeacher):
    """Runs the code of a generated problem and answers what it printed; now and then it guesses, or forgets to print.

    Problems from files have no code; their right answers are given at once.
    """

    rash: float = 0.0
    """Probability that the player answers an episode at once with a number of about the right size, which it has not
    calculated."""
    careless: float = 0.0
    """Probability that its first code has no ``print``: a slip, which is context for imitation and not its target."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        from envsuite.mathematics.env import PythonMathEnv

        inner = unwrap_local_env(env, "PythonMath-v0", PythonMathEnv)
        problem = inner.problem
        if self.rash > 0.0 and rng.random() < self.rash:
            yield _answer(_guess(problem.answer, rng))
            return
        if not problem.code:
            yield _answer(problem.answer)
            return
        if self.careless > 0.0 and rng.random() < self.careless:
            yield Move("", (ToolCall("python", {"code": _silent(problem.code)}),), slip=True)
        yield Move("", (ToolCall("python", {"code": problem.code}),))
        yield _answer(inner.observation["text"].strip())


def _answer(text: str) -> Move:
    return Move("", (ToolCall("answer", {"text": text}),))


def _silent(code: str) -> str:
    """Returns ``code`` with its last ``print`` replaced by an assignment."""
    before, argument = code.rsplit("print(", 1)
    return f"{before}x=({argument}"


def _guess(answer: str, rng: random.Random) -> str:
    """Returns an integer with as many digits as the right one has before its point or stroke."""
    digits = len(answer.lstrip("-").partition("/")[0].partition(".")[0])
    return ("-" if answer.startswith("-") else "") + str(rng.randrange(10 ** (digits - 1), 10**digits))
