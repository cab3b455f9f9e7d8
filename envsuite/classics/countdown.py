"""``Countdown-v0``: make a target from a few numbers, one operation at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, ClassVar

from envsuite.classics.game import Classic, ClassicExpert, ClassicOptions, deal
from envsuite.core.caches import made_once
from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.core.options import option
from envsuite.core.tools import Tool

CARDS = (*range(1, 11), 25, 50, 75, 100)
Numbers = tuple[int, ...]
"""Numbers in order."""


@dataclass(frozen=True, kw_only=True)
class CountdownOptions(ClassicOptions):
    """The options of ``Countdown-v0``."""

    env_id: ClassVar[str] = "Countdown-v0"
    numbers: int = option(4, "how many numbers there are", minimum=3, maximum=6)
    target: Sequence[int] = option(
        (10, 100), "smallest and largest target", minItems=2, maxItems=2, items={"minimum": 1, "maximum": 1000}
    )


def operations(numbers: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yields each operation on two of the numbers, with the numbers after it."""
    for small, large in sorted({*combinations(numbers, 2)}):
        remainder = [*numbers]
        remainder.remove(small)
        remainder.remove(large)
        results = {f"{large} + {small}": large + small, f"{large} * {small}": large * small}
        results |= {f"{large} - {small}": large - small} if large > small else {}
        results |= {f"{large} / {small}": large // small} if large % small == 0 else {}
        yield from ((command, tuple(sorted([*remainder, result]))) for command, result in results.items())


@lru_cache(200_000)
def solution(numbers: Numbers, target: int) -> tuple[str, ...] | None:
    """Returns the fewest operations that make the target, by trying all; ``None`` if none do."""
    if target in numbers:
        return ()
    ways = ((command, solution(after, target)) for command, after in operations(numbers))
    return min(((command, *way) for command, way in ways if way is not None), key=len, default=None)


@made_once(8)
def puzzles(count: int, low: int, high: int, seed: str) -> dict[str, tuple[int, Numbers]]:
    """Returns target and numbers of each task; some operations on all of the numbers make the target."""

    def draw(source: Draw) -> tuple[int, Numbers] | None:
        cards = numbers = tuple(sorted(source.choose(CARDS) for _ in range(count)))
        while len(numbers) > 1:
            numbers = source.choose([*operations(numbers)])[1]
        (target,) = numbers
        return (target, cards) if low <= target <= high and target not in cards else None

    return deal(draw, f"countdown {count} {low} {high} {seed}")


class Countdown(Classic[tuple[int, Numbers], Numbers]):
    """Operations on numbers until one is the target; the state is the numbers that are left."""

    tools = (Tool.of_string("calculate", "Replace two numbers by their result.", "command", "E.g. 75 - 4."),)
    takes = CountdownOptions
    options: CountdownOptions
    dial, samples = "numbers", ("2 + 1",)

    def _puzzle(self, name: str) -> tuple[int, Numbers]:
        low, high = self.options.target
        return puzzles(self.options.numbers, low, high, self.seed)[name]

    def _facts(self, puzzle: tuple[int, Numbers]) -> dict[str, Any]:
        return {"target": puzzle[0], "numbers": [*puzzle[1]]}

    def _rules(self, puzzle: tuple[int, Numbers]) -> str:
        return (
            f"Make {puzzle[0]} from the numbers. An operation (+, -, * or /, the larger number first) replaces two of "
            "them by its result, which must be whole and above 0. Not all need be used."
        )

    def _opening(self) -> Numbers:
        return self.puzzle[1]

    def _possible(self) -> tuple[str, ...]:
        return tuple(command for command, _ in operations(self.state))

    def _move(self, command: str) -> Numbers:
        return dict(operations(self.state))[command]

    def _result(self) -> bool | None:
        if self.puzzle[0] in self.state:
            return True
        return None if len(self.state) > 1 else False

    def _show(self) -> str:
        return f"Target {self.puzzle[0]}. Numbers: {' '.join(map(str, self.state))}."

    def best(self) -> str:
        """Returns the first of the fewest operations that make the target.

        Raises:
            UsageError: None do.
        """
        way = solution(self.state, self.puzzle[0])
        if way is None:
            raise UsageError(f"no operations on {self.state} make {self.puzzle[0]}; reset() or restore()")
        return way[0]


CountdownExpert = partial(ClassicExpert, Countdown)
