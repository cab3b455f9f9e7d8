"""Problems from a seed: drawn numbers in families of problems, with answers that are computed, not looked up.

The levels of difficulty, within each kind:

1. One expression: code of a line gives the answer. In arithmetic the answer has at most four digits.
2. A loop, a library's function, or exact fractions; numbers that nobody multiplies in the head.
3. Several lines of code, or a formula that must be found first; a long way by hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.mathematics.kinds import FAMILIES
from envsuite.mathematics.problem import MathProblem, Parameters, ProblemFamily

GENERATOR = "mathematics-1"
"""Version of the generator: the same arguments give the same problems."""
KINDS = tuple(dict.fromkeys(family.kind for family in FAMILIES))
"""The kinds of problems."""
LEVELS = (1, 2, 3)
"""The levels of difficulty."""
SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
"""The :func:`share` of a split's problems, so that no two splits have one in common, even in other words."""
_ATTEMPTS = 10_000


def stratum(kind: str, level: int) -> str:
    """Returns the task type of a kind's level, e.g. ``"arithmetic-1"``."""
    return f"{kind}-{level}"


BY_STRATUM: dict[str, tuple[ProblemFamily, ...]] = {
    stratum(kind, level): tuple(f for f in FAMILIES if (f.kind, f.level) == (kind, level))
    for kind in KINDS
    for level in LEVELS
}
"""The families of each task type."""


def share(content: str) -> int:
    """Returns a number from 0 to 99 that depends on a problem's content alone."""
    return int.from_bytes(hashlib.sha256(f"{GENERATOR} {content}".encode()).digest()[:8], "big") % 100


def draw_problem(
    draw: Draw, task_type: str, split: str, besides: Collection[str] = ()
) -> tuple[ProblemFamily, Parameters, int]:
    """Draws the family, the numbers and the wording of a problem.

    Args:
        draw: The source of randomness.
        task_type: A key of :data:`BY_STRATUM`.
        split: A key of :data:`SHARES`.
        besides: Contents that it must not have; see :meth:`~envsuite.mathematics.problem.ProblemFamily.content`.

    Raises:
        UsageError: All that was drawn is in ``besides``.
    """
    for _ in range(_ATTEMPTS):
        family = draw.choose(BY_STRATUM[task_type])
        parameters, wording = family.draw(draw), draw.below(len(family.wordings))
        content = family.content(parameters)
        if share(content) in SHARES[split] and content not in besides:
            return family, parameters, wording
    raise UsageError(f"no further problem of type {task_type} for {split} found; ask for fewer problems")


@lru_cache(maxsize=4096)
def generate_problem(key: str, task_type: str, split: str) -> MathProblem:
    """Returns the problem that ``key`` draws."""
    family, parameters, wording = draw_problem(Draw(f"{GENERATOR} {key}"), task_type, split)
    return family.problem(parameters, wording)
