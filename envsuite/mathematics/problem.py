"""Problems, and families of generated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from envsuite.core.draws import Draw

Parameters = dict[str, int]
"""The numbers of a generated problem, by name."""


@dataclass(frozen=True)
class MathProblem:
    """A problem with one right answer."""

    text: str
    """The question."""
    answer: str
    """The right answer: a number, or LaTeX."""
    code: str = ""
    """Python code that computes and prints the answer; empty for a problem from a file."""


@dataclass(frozen=True)
class ProblemFamily:
    """Generated problems that differ in their numbers and their wording alone."""

    name: str
    kind: str
    """``"arithmetic"``, ``"number-theory"``, ``"combinatorics"``, ``"lattice"`` or ``"sequences"``."""
    level: int
    """Difficulty: 1, 2 or 3; see :mod:`envsuite.mathematics.generate`."""
    draw: Callable[[Draw], Parameters]
    """Draws the numbers."""
    wordings: tuple[str, ...]
    """Ways to ask, with the numbers' names in braces."""
    answer: Callable[..., int | Fraction]
    """Computes the answer from the numbers."""
    code: str
    """Python code that computes the answer, often by another route; written as the wordings."""

    def content(self, parameters: Mapping[str, int]) -> str:
        """Returns what two problems have in common if they differ in their wording alone."""
        return f"{self.name} {' '.join(f'{name}={value}' for name, value in sorted(parameters.items()))}"

    def problem(self, parameters: Mapping[str, int], wording: int = 0) -> MathProblem:
        """Returns the problem with these numbers, in one of the wordings."""
        text, code = self.wordings[wording].format(**parameters), self.code.format(**parameters)
        return MathProblem(text, str(self.answer(**parameters)), code)


def between(draw: Draw, least: int, most: int) -> int:
    """Returns an integer from ``least`` to ``most``, all equally likely."""
    return least + draw.below(most - least + 1)


def numbers(**ranges: tuple[int, int]) -> Callable[[Draw], Parameters]:
    """Returns what draws each number from its range, both ends included."""
    return lambda draw: {name: between(draw, *bounds) for name, bounds in ranges.items()}
