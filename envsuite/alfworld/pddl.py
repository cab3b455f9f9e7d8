"""PDDL domains and problems as data, and conditions in disjunctive normal form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Atom: TypeAlias = tuple[str, ...]
"""A predicate and its arguments."""
MAX_DISJUNCTS = 256
"""Disjuncts that one condition may expand to; ALFWorld needs 3."""
MAX_LITERALS = 256
"""Literals in one conjunction; ALFWorld needs 9."""


class MalformedPDDL(ValueError):
    """Raised for a text of a game that cannot be parsed or is not supported; the message says where and why."""


class GoalUnreachable(MalformedPDDL):
    """A goal that no sequence of actions reaches."""


@dataclass(frozen=True, slots=True)
class Literal:
    """An atom or its negation."""

    atom: Atom
    positive: bool


@dataclass(frozen=True, slots=True)
class And:
    """A conjunction: all parts hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """A disjunction: at least one part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """An existential quantifier: the part holds for some objects of the variables' types."""

    variables: tuple[tuple[str, str], ...]
    """Name and type of each; the names occur nowhere else in the text."""
    part: Condition


Condition: TypeAlias = "Literal | And | Or | Exists"


@dataclass(frozen=True, slots=True)
class Conjunction:
    """One disjunct of a condition: literals that hold together for some objects of the variables' types."""

    variables: tuple[tuple[str, str], ...]
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of an action, conditional (``when``) or not; the condition is tested in the state before the action."""

    condition: tuple[Conjunction, ...]
    """Its disjuncts; one without literals always holds."""
    atom: Atom
    positive: bool
    """True adds the atom, false deletes it."""

    @property
    def unconditional(self) -> bool:
        """Whether the effect takes place in every state."""
        return any(not disjunct.literals for disjunct in self.condition)


@dataclass(frozen=True, slots=True)
class Action:
    """An action schema."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    """Name, with its question mark, and type of each."""
    precondition: tuple[Conjunction, ...]
    """The disjuncts of the precondition."""
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """A PDDL domain: types, predicates, constants and action schemas."""

    name: str
    supertypes: Mapping[str, tuple[str, ...]]
    """The supertypes of each type, nearest first; the types in the order of the text."""
    predicates: Mapping[str, int]
    """Arity of each."""
    constants: Mapping[str, str]
    """The type of each."""
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class PDDLProblem:
    """A PDDL problem: objects, initial state and goal condition."""

    objects: Mapping[str, str]
    """The type of each, constants of the domain included."""
    init: tuple[Atom, ...]
    goal: Condition


def disjuncts(condition: Condition) -> tuple[Conjunction, ...]:
    """Returns the disjunctive normal form of ``condition``, in the order of the text.

    Raises:
        MalformedPDDL: There are more than ``MAX_DISJUNCTS``.
    """
    if isinstance(condition, Literal):
        return (Conjunction((), (condition,)),)
    if isinstance(condition, Exists):
        return tuple(Conjunction(condition.variables + c.variables, c.literals) for c in disjuncts(condition.part))
    if isinstance(condition, Or):
        result = [disjunct for part in condition.parts for disjunct in disjuncts(part)]
    else:
        result = [Conjunction((), ())]
        for part in condition.parts:
            more = disjuncts(part)
            if not more:
                return ()
            if len(result) * len(more) > MAX_DISJUNCTS:
                raise MalformedPDDL(f"a condition has more than {MAX_DISJUNCTS} disjuncts")
            if max(len(c.literals) for c in result) + max(len(c.literals) for c in more) > MAX_LITERALS:
                raise MalformedPDDL(f"a condition has more than {MAX_LITERALS} literals")
            result = [Conjunction(a.variables + b.variables, a.literals + b.literals) for a in result for b in more]
    if len(result) > MAX_DISJUNCTS:
        raise MalformedPDDL(f"a condition has more than {MAX_DISJUNCTS} disjuncts")
    return tuple(result)
