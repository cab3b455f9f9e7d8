"""What a domain and a problem say, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Atom: TypeAlias = tuple[str, ...]
"""A predicate and its arguments."""
MAX_CASES = 256
"""Conjunctions that one condition may stand for; ALFWorld needs 3."""
MAX_LITERALS = 256
"""Literals in one conjunction; ALFWorld needs 9."""


class Malformed(ValueError):
    """A text of a game is not what it should be; the message says where and how."""


@dataclass(frozen=True, slots=True)
class Literal:
    """An atom that must hold, or must not."""

    atom: Atom
    positive: bool


@dataclass(frozen=True, slots=True)
class Both:
    """All parts hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """At least one part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """The part holds for some objects of the variables' types."""

    variables: tuple[tuple[str, str], ...]
    """Name and type of each; the names occur nowhere else in the text."""
    part: Condition


Condition: TypeAlias = "Literal | Both | Either | Some"


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which a condition holds: for some objects, all of these literals do."""

    variables: tuple[tuple[str, str], ...]
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action changes when the condition held before it."""

    condition: tuple[Case, ...]
    """Any of them; one without literals always holds."""
    atom: Atom
    positive: bool

    @property
    def always(self) -> bool:
        """It depends on nothing."""
        return any(not case.literals for case in self.condition)


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    """Name, with its question mark, and type of each."""
    cases: tuple[Case, ...]
    """The precondition."""
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """What there may be and what can be done."""

    name: str
    above: Mapping[str, tuple[str, ...]]
    """The types, and all types above each, in the order of the text."""
    predicates: Mapping[str, int]
    """Number of arguments of each."""
    constants: Mapping[str, str]
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Problem:
    """What there is and what is wanted."""

    objects: Mapping[str, str]
    """The type of each, constants of the domain included."""
    init: tuple[Atom, ...]
    goal: Condition


def cases(condition: Condition) -> tuple[Case, ...]:
    """``condition`` as alternatives, in the order of the text.

    Raises:
        Malformed: There are more than ``MAX_CASES``.
    """
    if isinstance(condition, Literal):
        return (Case((), (condition,)),)
    if isinstance(condition, Some):
        return tuple(Case(condition.variables + c.variables, c.literals) for c in cases(condition.part))
    if isinstance(condition, Either):
        result = [case for part in condition.parts for case in cases(part)]
    else:
        result = [Case((), ())]
        for part in condition.parts:
            more = cases(part)
            if not more:
                return ()
            if len(result) * len(more) > MAX_CASES:
                raise Malformed(f"a condition has more than {MAX_CASES} cases")
            if max(len(c.literals) for c in result) + max(len(c.literals) for c in more) > MAX_LITERALS:
                raise Malformed(f"a condition has more than {MAX_LITERALS} literals")
            result = [Case(a.variables + b.variables, a.literals + b.literals) for a in result for b in more]
    if len(result) > MAX_CASES:
        raise Malformed(f"a condition has more than {MAX_CASES} cases")
    return tuple(result)
