"""``Wordle-v0``: guess a word of five letters in six guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, ClassVar

from envsuite.classics.game import COUNTS, Classic, ClassicExpert, ClassicOptions, split_of
from envsuite.core.caches import made_once
from envsuite.core.draws import Draw
from envsuite.core.options import option
from envsuite.core.tools import Tool

GUESSES = 6
WORDS = tuple(files("envsuite.classics").joinpath("words.txt").read_text(encoding="utf-8").split())
"""Common words, roughly the most common first."""
COMPARED = 100
"""Words, of those that fit, which the expert compares."""


@dataclass(frozen=True, kw_only=True)
class WordleOptions(ClassicOptions):
    """The options of ``Wordle-v0``."""

    env_id: ClassVar[str] = "Wordle-v0"
    words: int = option(500, "length of the list of words", minimum=100, maximum=len(WORDS))


@made_once(8)
def hidden_words(count: int, seed: str) -> dict[str, str]:
    """Returns the word of each task: those of its split, in an order that follows from the seed."""
    order = Draw(f"wordle {seed}").sample(WORDS[:count], count)
    decks = {split: [word for word in order if split_of(word) == split] for split in COUNTS}
    return {f"{split}-{n}": word for split, deck in decks.items() for n, word in enumerate(deck)}


@lru_cache(1_000_000)
def marks(guess: str, word: str) -> str:
    """Returns a mark for each letter of a guess: ``g`` in its place, ``y`` elsewhere in the word, ``-`` not in it."""
    leftovers = Counter(right for letter, right in zip(guess, word, strict=True) if letter != right)
    result = ""
    for letter, right in zip(guess, word, strict=True):
        elsewhere = letter != right and leftovers[letter] > 0
        leftovers[letter] -= elsewhere
        result += "g" if letter == right else "y" if elsewhere else "-"
    return result


@lru_cache(10_000)
def best_guess(fitting: tuple[str, ...]) -> str:
    """Returns the word with the most different answers, of those that fit."""
    return max(fitting[:COMPARED], key=lambda guess: len({marks(guess, word) for word in fitting}))


class Wordle(Classic[str, tuple[str, ...]]):
    """A hidden word; the state is the guesses."""

    tools = (Tool.of_string("guess", "Guess a word.", "command", "A word of five letters."),)
    takes = WordleOptions
    options: WordleOptions
    dial = "words"

    def _counts(self) -> Mapping[str, int]:
        self.samples = WORDS[: self.options.words]
        return Counter(map(split_of, self.samples))

    def _puzzle(self, name: str) -> str:
        return hidden_words(self.options.words, self.seed)[name]

    def _facts(self, puzzle: str) -> dict[str, Any]:
        return {"word_sha256": sha256(puzzle.encode()).hexdigest()}

    def _rules(self, puzzle: str) -> str:
        return (
            f"Guess an English word of five letters; you have {GUESSES} guesses. Below each letter of a guess, g says "
            "that it is in its place, y that it is elsewhere in the word, and - that it is not in it."
        )

    def _opening(self) -> tuple[str, ...]:
        return ()

    def _possible(self) -> tuple[str, ...]:
        return ()

    def _refusal(self, command: str) -> str | None:
        valid = f"the {len(self.samples)} common words of five small letters that the list has"
        return None if command in self.samples else f"{command} is not possible here; possible are {valid}"

    def _move(self, command: str) -> tuple[str, ...]:
        return (*self.state, command)

    def _result(self) -> bool | None:
        if self.puzzle in self.state:
            return True
        return None if len(self.state) < GUESSES else False

    def _show(self) -> str:
        lines = [line for guess in self.state for line in (" ".join(guess), " ".join(marks(guess, self.puzzle)))]
        return "\n".join([*lines, f"Guesses left: {GUESSES - len(self.state)}"])

    def best(self) -> str:
        """Returns the :func:`best_guess` of the words that fit all marks."""
        answers = [(guess, marks(guess, self.puzzle)) for guess in self.state]
        return best_guess(tuple(w for w in self.samples if all(marks(guess, w) == answer for guess, answer in answers)))


WordleExpert = partial(ClassicExpert, Wordle)
