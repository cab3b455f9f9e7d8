"""Which call of this project's public API stands for which recorded case.

A handler is known by (peer, estimator) and the functions it stands for. It takes every parameter by name; one
that it does not know makes the case "not covered" rather than wrongly covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.golden_data import Json, NotCovered, TokenRows


@dataclass(frozen=True)
class Rounding:
    """What rounding can do to (r - mean) / (std + epsilon) in the original, row by row.

    Where a group's values differ by little, or by nothing, the rounding of r and of the mean is divided by almost zero.
    """

    bound: NDArray[np.float64]
    """Largest effect that rounding can have, shape (N,); inf where only :attr:`as_original` can tell."""
    as_original: NDArray[np.float64]
    """The same formula computed by torch in the number format of the case, as the original does, shape (N,)."""
    every_dtype: bool = False
    """Float64 can do it too, since the original asks whether a difference is exactly zero."""

    def times(self, weight: float) -> Rounding:
        """That of the quotient times ``weight``."""
        return Rounding(weight * self.bound, weight * self.as_original)

    def plus(self, term: Rounding, weight: float) -> Rounding:
        """That of a sum with ``weight`` times another quotient."""
        return Rounding(self.bound + weight * term.bound, self.as_original + weight * term.as_original)


@dataclass(frozen=True)
class Outcome:
    """What this project gives for a case."""

    values: Mapping[str, Any]
    options: str
    """The settings used, as one would type them."""
    rounding: Mapping[str, Rounding] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    """(quantity, why it is not covered)."""


@dataclass(frozen=True)
class Case:
    """One recorded case with its input."""

    record: Json
    peer: str
    """Name of the peer in lower case."""
    data: Json
    siblings: list[Json]
    left: Json
    """The parameters that nobody has taken yet."""

    @property
    def id(self) -> str:
        """Its name in the file."""
        return str(self.record["id"])

    @property
    def function(self) -> str:
        """The original's function."""
        return str(self.record["function"])

    @property
    def origin(self) -> str:
        """``peer-code`` or ``paper-reference``."""
        return str(self.record.get("origin"))

    @property
    def dtype(self) -> str:
        """The number format that the original computed in."""
        return str(self.record["dtype"])

    @property
    def expect(self) -> Json:
        """The recorded quantities."""
        found: Json = self.record["expect"]
        return found

    @property
    def rows(self) -> TokenRows:
        """The tokens of the input, in the case's number format."""
        return TokenRows.of(self.data, self.dtype)

    def take(self, name: str, default: Any = None) -> Any:
        """The parameter ``name``, or ``default`` where the case has none."""
        return self.left.pop(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        """The same as a number."""
        return float(self.take(name, default))

    def one_of(self, name: str, choices: Mapping[Any, Any], default: Any = None) -> Any:
        """What ``choices`` makes of the parameter; a value that is not there is not covered."""
        value = self.take(name, default)
        if value not in choices:
            raise NotCovered(f"{name}={value!r} is not known to the runner")
        return choices[value]

    def flag(self, name: str, default: bool | None = None) -> bool:
        """The parameter, which has to be true or false."""
        return bool(self.one_of(name, {True: True, False: False}, default))


Handler = Callable[[Case], Outcome]
HANDLERS: dict[tuple[str, str], tuple[tuple[str, ...], Handler]] = {}
Unit = Callable[[Json, list[Json]], Outcome]
UNITS: dict[frozenset[str], Unit] = {}
"""What computes a unit case, by keys that it has."""


def handles(peers: str, estimators: str, *functions: str) -> Callable[[Handler], Handler]:
    """Enter a handler for every pair of the given peers and estimators (each a list separated by blanks)."""

    def enter(handler: Handler) -> Handler:
        for peer in peers.split():
            for estimator in estimators.split():
                HANDLERS[peer.lower(), estimator] = (functions, handler)
        return handler

    return enter


def computes_unit(*keys: str) -> Callable[[Unit], Unit]:
    """Enter what computes unit cases with these keys."""

    def enter(unit: Unit) -> Unit:
        UNITS[frozenset(keys)] = unit
        return unit

    return enter


def run_case(case: Json, peer: str, data: Json, siblings: list[Json]) -> Outcome:
    """Compute ``case``.

    Raises:
        NotCovered: This project does not reproduce it; the message says why.
    """
    key = peer.lower(), str(case["estimator"])
    if key not in HANDLERS:
        if any(estimator == key[1] for _, estimator in HANDLERS):
            raise NotCovered(f"{key[1]!r} of peer {peer!r} is not known to the runner")
        raise NotCovered("no such method or loss here yet")
    functions, handler = HANDLERS[key]
    if not any(case["function"].endswith(function) for function in functions):
        raise NotCovered(f"function {case['function']!r} is not known to the runner")
    computed = Case(case, key[0], data, siblings, dict(case["params"]))
    outcome = handler(computed)
    if computed.left:
        raise NotCovered(f"parameter {', '.join(sorted(computed.left))} is not known to the runner")
    return outcome
