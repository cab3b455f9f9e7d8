"""Errors whose message says what is wrong, where, and what to type instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class EnvsuiteError(Exception):
    """Base class of all errors that a user can correct."""


class UnknownName(EnvsuiteError, KeyError):
    """A name (environment, task, split, method, option …) that does not exist."""

    def __str__(self) -> str:
        """Returns the message without the quotes that ``KeyError`` adds."""
        return str(self.args[0]) if self.args else ""


class UnknownTask(UnknownName):
    """A task id, split or filter that the task set does not have."""


class DataError(EnvsuiteError, ValueError):
    """A file or folder that is missing, truncated, of another kind or corrupt; the message names it."""


class UsageError(EnvsuiteError, RuntimeError):
    """A call that is out of order or has wrong arguments, e.g. ``step`` before ``reset``."""


class MissingExtra(EnvsuiteError, ImportError):
    """A missing optional dependency; the message has the pip command that installs it."""


class WorkerLost(EnvsuiteError, RuntimeError):
    """A worker process that died or hung; its episode is lost, others are not."""


@contextmanager
def require_extra(what: str, extra: str) -> Iterator[None]:
    """Makes an import that fails in the block a :class:`MissingExtra`.

    Args:
        what: What needs which package, e.g. ``"plots need matplotlib"``.
        extra: The extra of envsuite that installs it, e.g. ``"plots"``.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{what} ({error}): pip install 'envsuite[{extra}]'") from error


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns the ``limit`` entries of ``known`` that are most similar to ``name``, its abbreviation (``lr``) first."""
    names = list(known)
    short = [candidate for candidate in names if candidate == _initials(name) or _initials(candidate) == name]
    return list(dict.fromkeys([*short, *difflib.get_close_matches(name, names, limit, 0.4)]))[:limit]


def _initials(name: str) -> str:
    """Returns ``optim.lr`` for ``optim.learning_rate``; nothing for a name of one word."""
    above, dot, last = name.rpartition(".")
    words = last.split("_")
    return f"{above}{dot}{''.join(word[:1] for word in words)}" if len(words) > 1 else ""


def unknown(kind: str, name: str, known: Iterable[str], error: type[UnknownName] = UnknownName) -> UnknownName:
    """Returns an error for an unknown ``name``, which lists the known ones, the most similar first.

    Args:
        kind: Kind of thing that has the name, e.g. ``"estimator"``.
        name: The unknown name.
        known: All known names.
        error: The class of the returned error.
    """
    names = sorted(set(known))
    near = nearest(name, names)
    other_names = [n for n in names if n not in near]
    candidates = near + other_names[: max(0, 20 - len(near))]
    more = f", … ({len(names)} in all)" if len(names) > len(candidates) else ""
    hint = f" Nearest: {near[0]!r}." if near else ""
    text = ", ".join(repr(candidate) if re.search(r"[\s,;'\"]", candidate) else candidate for candidate in candidates)
    return error(f"unknown {kind} {name!r}.{hint} Known: {text or 'none'}{more}")
