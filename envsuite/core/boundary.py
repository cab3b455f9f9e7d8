"""The boundary around code of others: environments, rewards, agents.

However such code ends, the caller gets an exception that names task, function and reason; and what it returns is a
number where a number is wanted, and text that can be encoded.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium

from envsuite.core.errors import EnvsuiteError, UsageError

_ROOMS = ("core", "remote", "adapters", "vector", "serving")
_LIBRARIES = (gymnasium.__path__[0], *(str(Path(__file__).parents[1] / room) for room in _ROOMS))
"""Folders whose functions call code of others."""


class CodeError(UsageError):
    """Code of others that left its caller, as ``sys.exit`` does, or returned what is no result."""


class Overdue(BaseException):
    """Raised in a call past its deadline; no world catches it by mistake."""


def _place(error: BaseException) -> str:
    """Returns function, file and line of others' code in which ``error`` was raised; empty for none."""
    frames = traceback.extract_tb(error.__traceback__)
    callers = 2 if frames[0].name == boundary.__name__ else 1  # whoever has the block, or the except clause
    frame = next((call for call in frames[callers:] if not call.filename.startswith(_LIBRARIES)), None)
    return "" if frame is None else f"in {frame.name} of {Path(frame.filename).name}, line {frame.lineno}"


def settle(error: BaseException, where: str) -> None:
    """Notes in an error where it was raised; makes a :class:`CodeError` of one that would end the program.

    Args:
        error: The error, as it was caught. ``KeyboardInterrupt`` is left alone.
        where: What was played, e.g. a task.

    Raises:
        CodeError: ``error`` is no :class:`Exception`, such as ``SystemExit`` or ``CancelledError``.
    """
    says_all = isinstance(error, EnvsuiteError) and not isinstance(error, CodeError)
    if says_all or isinstance(error, KeyboardInterrupt | GeneratorExit | Overdue):
        return
    ordinary = isinstance(error, Exception)
    failure = error if ordinary else CodeError(f"{type(error).__name__} was raised: {error}")
    for note in filter(None, (_place(error), where)):
        failure.add_note(note)
    if ordinary:
        return
    raise failure.with_traceback(error.__traceback__) from error


@contextmanager
def boundary(where: str) -> Iterator[None]:
    """Runs code of others in the block, as :func:`settle` says."""
    try:
        yield
    except BaseException as error:
        settle(error, where)
        raise


def number(value: object, what: str) -> float:
    """Returns a number that code of others has returned.

    Args:
        value: What it returned.
        what: Names it in the message, e.g. ``reward``.

    Raises:
        CodeError: It is no number, or not a finite one.
    """
    if type(value) is float and math.isfinite(value):
        return value
    try:
        result = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise CodeError(f"{what} is {value!r}, which is no finite number")
    return result


def text(value: str) -> str:
    """Returns a text in which halves of surrogate pairs, which cannot be encoded, are joined or replaced."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def without_task(reason: str) -> str:
    """Returns a :func:`reason` of an episode without its task, so that equal reasons can be counted."""
    return re.sub(r" \(task .* of \S+\)", "", reason)


def reason(error: BaseException) -> str:
    """Returns class and message of ``error`` in one line, the message in at most 500 characters, and its notes.

    Of a group of errors they are those of the first one.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    line = " ".join(text(f"{type(error).__name__}: {error}").split())
    notes = vars(error).get("__notes__", ())
    return "".join([line if len(line) <= 500 else line[:499] + "…", *(f" ({text(note)})" for note in notes)])
