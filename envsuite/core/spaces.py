"""Gymnasium spaces for text observations and tool-call actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envsuite.core.tools import Action, Tool, ToolCall, check_action

T = TypeVar("T")


class UnboundedSpace(spaces.Space[T]):
    """A space of values of any size, which no array can hold; all spaces of one class are equal."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Values of any size cannot be flattened."""
        return False

    def __eq__(self, other: object) -> bool:
        """Spaces of one class are equal."""
        return type(other) is type(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """The class, e.g. ``AnyText()``."""
        return f"{type(self).__name__}()"


class AnyText(UnboundedSpace[str]):
    """The space of all strings; :meth:`sample` draws short lower-case words."""

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Returns a few random lower-case words."""
        lengths = self.np_random.integers(1, 8, size=int(self.np_random.integers(1, 6)))
        return " ".join("".join(chr(97 + int(c)) for c in self.np_random.integers(0, 26, size=int(n))) for n in lengths)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string."""
        return isinstance(x, str)


class TextTuple(UnboundedSpace[tuple[str, ...]]):
    """The space of all tuples of strings, of any length."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed)
        self._text = AnyText()

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[str, ...]:
        """Returns zero to four random texts."""
        self._text.seed(int(self.np_random.integers(2**31)))
        return tuple(self._text.sample() for _ in range(int(self.np_random.integers(0, 5))))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a tuple of strings."""
        return isinstance(x, tuple) and all(isinstance(item, str) for item in x)


class ToolCalls(UnboundedSpace[Action]):
    """The space of all actions that a set of tools accepts: 1 to ``max_calls`` calls with valid arguments.

    Args:
        tools: The tools that may be called.
        max_calls: Maximum number of calls in one action.
        propose: Draws one valid call from a random generator; used by :meth:`sample`. Without it, ``sample`` needs
            a mask: a sequence of calls (for instance the admissible commands) to choose from.
        seed: Seed of :meth:`sample`.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        max_calls: int = 1,
        propose: Callable[[np.random.Generator], ToolCall] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(seed)
        self.tools = tuple(tools)
        self.max_calls = max_calls
        self.propose = propose

    def sample(self, mask: Sequence[ToolCall] | None = None, probability: NDArray[np.float64] | None = None) -> Action:
        """Returns a valid action of one call: from ``mask`` if it is given, else drawn by ``propose``."""
        if mask:
            return (mask[int(self.np_random.choice(len(mask), p=probability))],)
        if self.propose is None:
            raise ValueError("this action space samples from a mask only: action_space.sample(mask=[ToolCall(…), …])")
        return (self.propose(self.np_random),)

    def contains(self, x: Any) -> bool:
        """Whether every call of ``x`` names a tool and fits its schema."""
        return check_action(x, self.tools, self.max_calls) is None

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolCalls:
        """Returns a space of the same tools that continues with the same random numbers.

        ``propose`` is shared, not copied: it is usually a method of an environment, which may not be copyable.
        """
        space = memo[id(self)] = ToolCalls(self.tools, self.max_calls, self.propose)
        space._np_random = deepcopy(self._np_random, memo)
        return space

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the space without ``propose``, usually an environment's method; the copy samples from masks only."""
        return ToolCalls, (self.tools, self.max_calls, None, self._np_random)

    def __eq__(self, other: object) -> bool:
        """Spaces are equal if their tools and numbers of calls are."""
        return isinstance(other, ToolCalls) and (self.tools, self.max_calls) == (other.tools, other.max_calls)

    __hash__ = None

    def __repr__(self) -> str:
        """Shows the names of the tools."""
        return f"ToolCalls({', '.join(tool.name for tool in self.tools)}; max_calls={self.max_calls})"
