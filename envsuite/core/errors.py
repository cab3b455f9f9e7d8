"""Errors whose message says what is wrong, to what, and what to type instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnvsuiteError(Exception):
    """Base of all errors that a user can mend."""


class UnknownName(EnvsuiteError, KeyError):
    """A name (environment, task, split, method, option …) that does not exist."""

    def __str__(self) -> str:
        """The message as written, without the quotes that ``KeyError`` puts around it."""
        return str(self.args[0]) if self.args else ""


class UnknownTask(UnknownName):
    """A task id, split or filter that the task set does not have."""


class DataError(EnvsuiteError, ValueError):
    """A file or folder that is missing, truncated, foreign or corrupt; the message names it."""


class UsageError(EnvsuiteError, RuntimeError):
    """The programmer called something out of order, e.g. ``step`` before ``reset``."""


class MissingExtra(EnvsuiteError, ImportError):
    """An optional dependency is not installed; the message has the pip command that mends it."""


class WorkerLost(EnvsuiteError, RuntimeError):
    """A process that an environment plays its world in has died or hung; this episode is lost, others are not."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The ``limit`` entries of ``known`` that look most like ``name``, nearest first."""
    return difflib.get_close_matches(name, list(known), n=limit, cutoff=0.4)


def unknown(kind: str, name: str, known: Iterable[str], error: type[UnknownName] = UnknownName) -> UnknownName:
    """An error for an unknown ``name``: lists what exists, the nearest first.

    Args:
        kind: What the name is of, e.g. ``"estimator"``.
        name: The name that was given.
        known: Every name that exists.
        error: The class of the returned error.
    """
    names = sorted(set(known))
    near = nearest(name, names)
    rest = [n for n in names if n not in near]
    shown = near + rest[: max(0, 20 - len(near))]
    more = f", … ({len(names)} in all)" if len(names) > len(shown) else ""
    hint = f" Nearest: {near[0]!r}." if near else ""
    return error(f"unknown {kind} {name!r}.{hint} Known: {', '.join(shown)}{more}")
