"""Imitation of an environment by a small model: a teacher to imitate, and the words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import Player
from envsuite.core.tools import Action, Move


class Teacher(Protocol):
    """Plays an environment from its state, and says why."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``.

        The caller steps ``env`` with each action before it asks for the next.
        """
        ...


@dataclass(frozen=True)
class ExpertTeacher:
    """Makes the moves of a player that knows the next one in any state, until it knows none any more."""

    expert: Player

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        while True:
            try:
                action = self.expert.act(env)
            except UsageError:
                return
            yield Move("", action)


@dataclass(frozen=True)
class FallibleTeacher:
    """A teacher that makes mistakes, whose probabilities are its fields.

    Raises:
        UsageError: One is not from 0 to 1.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name}={value} is not a probability; give a number from 0 to 1")


@dataclass(frozen=True)
class Spelling:
    """How words are cut into tokens; by default each is one.

    Raises:
        UsageError: There are parts, and codes or splits.
    """

    codes: bool = False
    """Fold to lower case, and split words of letters and digits, words with a hyphen, and numbers above 99; decoding
    joins them again."""
    splits: str = ""
    """Regular expression of further positions at which words are split and joined again."""
    key: str = ""
    """With ``codes``, a capital that stays one before a digit, as in ``P3166267``."""
    parts: Sequence[str] = ()
    """Syllables, such as names are made of. A word or number that is not in the texts is split into these, the longest
    first, and for the rest into letters and pairs of digits; decoding joins them again."""

    def __post_init__(self) -> None:
        if self.parts and (self.codes or self.splits):
            raise UsageError("a spelling has either parts, or codes and splits")


WORDS = Spelling()
"""Each word is one token."""


@dataclass(frozen=True)
class Practice:
    """The teacher to imitate and the vocabulary of an environment."""

    teacher: Callable[..., Teacher]
    """Makes the teacher, from the arguments of a game in the mixture."""
    texts: Callable[[], list[str]] | None = None
    """Returns texts with every word of the environment at least once, and every kind of sentence. ``None``: the
    vocabulary is learnt from games that the teacher plays."""
    fresh: str = ""
    """Argument of the environment that is increased every few hundred games, for a new world; empty if the number of
    tasks is an argument, too."""
    spelling: Spelling = WORDS
    """How the words are cut into tokens."""
