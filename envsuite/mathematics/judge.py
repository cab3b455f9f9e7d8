"""Compares mathematical expressions with math-verify, in a process of its own.

math-verify limits its time by a signal, which only a program's main thread can get, and environments run in threads.
And what it reads was written by models. So one confined process per program, opened when the first expression is
compared, does it with little memory and little processor time; when either is used up it ends, and the next comparison
opens another. The limit is one of processor time, since verdicts must not depend on how busy the machine is.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cache
from importlib import metadata
from typing import Any

from envsuite.core.errors import WorkerLost, require_extra
from envsuite.interpreter.confined import PATIENCE, CodeFailed, ConfinedProcess, LoadedCode, ProcessLost, origin

SECONDS = 2.0
"""Processor time of a comparison."""
_PRECISION = 100
"""Digits to which numbers are compared that have no exact form."""


def version() -> str:
    """Returns the version of math-verify.

    Raises:
        MissingExtra: It is not installed.
    """
    with require_extra("PythonMath-v0 checks answers with math-verify", "mathematics"):
        return metadata.version("math-verify")


def same_expression(right: str, answer: str, prose: bool = False) -> bool:
    """Returns whether two expressions in LaTeX have the same value; False if finding out takes too much time or memory.

    Args:
        right: One expression.
        answer: The other; with ``prose``, a sentence whose last number or formula it is.
        prose: Whether ``answer`` is a sentence.

    Raises:
        WorkerLost: The process that compares was lost twice, for reasons that are not the answer's.
    """
    return _judge().same(right, answer, prose)


def is_right(right: str, answer: str) -> bool:
    """Returns math-verify's own verdict: the value counts, of whatever is left to be evaluated, too."""
    return same_expression(right, answer, prose=True)


class Judge:
    """The process that compares, and the right to ask it. Any thread may ask; one is answered at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ConfinedProcess | None = None

    def same(self, right: str, answer: str, prose: bool) -> bool:
        """Asks the process; see :func:`same_expression`."""
        with self._lock:
            for _ in range(2):
                try:
                    if self._process is None:  # confined where the machine can: math-verify evaluates no text
                        self._process = origin("envsuite.mathematics.judge:load").open({}, confined=None)
                    return self._process.ask([right, answer, prose], SECONDS, PATIENCE) is True
                except ProcessLost as error:
                    self._process = None
                    if not error.by_others:
                        return False
                except CodeFailed:  # whatever sympy raises over a text, MemoryError too: it is not the right answer
                    return False
            raise WorkerLost("the process that compares answers was lost twice; is the machine out of memory?")

    def close(self) -> int | None:
        """Ends the process, if there is one; returns its exit code, which is negative for a signal."""
        process, self._process = self._process, None
        return None if process is None else process.close()


_judge = cache(Judge)
"""Returns the judge of this program."""
os.register_at_fork(after_in_child=_judge.cache_clear)  # the one there is belongs to the parent


def load(settings: object) -> LoadedCode:
    """Loads math-verify in the process from which those that compare are forked."""
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    def same(request: tuple[str, str, bool]) -> bool:
        right, answer, prose = request
        rights = parse(f"${right}$", parsing_timeout=None)
        answers = parse(answer if prose else f"${answer}$", parsing_timeout=None)
        same_number = bool(rights and answers) and _same_number(rights[0], answers[0])
        if same_number is not None:
            return same_number
        # an inequality may be answered where an interval is asked for, as the other way round
        return bool(verify(rights, answers, 6, _PRECISION, allow_set_relation_comp=True, timeout_seconds=None))

    same((r"\sqrt{2}", "2", False))  # what it loads when it is first used
    return LoadedCode(None, same)


def _same_number(right: Any, answer: Any) -> bool | None:
    """Compares two numbers, complex ones too, of any size; returns ``None`` where one of them is no number.

    Numbers that are not rational are compared to :data:`_PRECISION` digits, or to six where one has a decimal.
    """
    from sympy import Expr, Float, I  # type: ignore[import-untyped]

    if not isinstance(right, Expr) or not isinstance(answer, Expr):
        return None
    first, second = (
        number.subs({symbol: I for symbol in number.free_symbols if symbol.name == "i"}).doit()
        for number in (right, answer)
    )
    if not first.is_number or not second.is_number:
        return None
    if first == second or (first.is_Rational and second.is_Rational) or first.is_infinite or second.is_infinite:
        return bool(first == second)
    a, b = first.evalf(_PRECISION), second.evalf(_PRECISION)
    return bool(abs(a - b) <= abs(a) * Float(10) ** (-6 if first.has(Float) or second.has(Float) else 10 - _PRECISION))
