"""Compiles a goal condition into tests of a state's bits."""

from __future__ import annotations

from envsuite.alfworld.fluents import Fluents
from envsuite.alfworld.joins import Join, Scope
from envsuite.alfworld.pddl import And, Condition, Exists, GoalUnreachable, Literal, MalformedPDDL, Or, disjuncts
from envsuite.alfworld.reachability import OF_TYPE

_Test = tuple[bool, list["_Test"]] | list[tuple[int, int]]
"""All (true) or any (false) of several tests; or pairs of a mask and its value, of which any must match."""


class GoalTest:
    """The goal condition of a problem, grounded.

    Raises:
        MalformedPDDL: The goal holds in every state.
        GoalUnreachable: It holds in no state that is reachable.
    """

    def __init__(self, fluents: Fluents) -> None:
        self.fluents = fluents
        self.grounding = fluents.grounding
        self.mask = 0
        """The bits that the goal depends on."""
        test = self._compile(self.grounding.problem.goal)
        if isinstance(test, bool):
            if test:
                raise MalformedPDDL("pddl_problem has a goal that is reached whatever happens")
            raise GoalUnreachable("pddl_problem has a goal that can't be reached")
        self._test = test

    def holds(self, state: int) -> bool:
        """Whether the goal holds in ``state``."""
        return _holds(self._test, state)

    def _compile(self, condition: Condition) -> bool | _Test:
        if isinstance(condition, And | Or):
            every = isinstance(condition, And)
            parts = [self._compile(part) for part in condition.parts]
            if (not every) in parts:
                return not every
            open_parts = [part for part in parts if not isinstance(part, bool)]
            return (every, open_parts) if open_parts else every
        return self._ground(condition)

    def _ground(self, condition: Literal | Exists) -> bool | _Test:
        grounding = self.grounding
        tests: dict[tuple[int, int], None] = {}
        for disjunct in disjuncts(condition):
            domains = [grounding.objects_of_type.get(type_, frozenset()) for _, type_ in disjunct.variables]
            scope = Scope([name for name, _ in disjunct.variables], domains)
            if scope.unsatisfiable:
                continue
            positive = [x.atom for x in disjunct.literals if x.positive]
            names = {name for atom in positive for name in atom[1:]}
            type_atoms = [(OF_TYPE + type_, name) for name, type_ in disjunct.variables if name not in names]
            join = Join((*positive, *type_atoms), scope, grounding.facts)
            positive_grounders = [scope.grounder(atom) for atom in positive]
            negative_grounders = [scope.grounder(x.atom) for x in disjunct.literals if not x.positive]
            for binding in join.solutions((), scope.initial.copy()):
                negative = [ground(binding) for ground in negative_grounders]
                if any(atom in grounding.facts.facts and not grounding.is_fluent(atom) for atom in negative):
                    continue
                value = self.fluents.mask([ground(binding) for ground in positive_grounders])
                mask = self.fluents.mask(negative)
                if not value & mask:
                    tests[value | mask, value] = None
        if any(mask == 0 for mask, _ in tests):
            return True
        for mask, _ in tests:
            self.mask |= mask
        return list(tests) if tests else False


def _holds(test: _Test, state: int) -> bool:
    if isinstance(test, list):
        return any(state & mask == value for mask, value in test)
    every, parts = test
    return (all if every else any)(_holds(part, state) for part in parts)
