"""A game's state as one number: which bit stands for what, and which bits the goal wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envsuite.alfworld.formulas import Atom, Both, Condition, Either, Literal, Malformed, Some, cases
from envsuite.alfworld.grammar import Grammar
from envsuite.alfworld.grounding import Ground
from envsuite.alfworld.joins import Frame, Join


class Bits:
    """Which bit of the state stands for what.

    A fact has a bit if something reads it. The grammar sees facts as the original shows them: ``not_…`` only after
    something has unmade the fact, and where it is made or unmade under a condition, what was last announced, not what
    happened; those have bits of their own.
    """

    def __init__(self, ground: Ground, grammar: Grammar) -> None:
        self.ground = ground
        asked = {predicate for query in grammar.queries() for predicate, _ in query}
        read = asked | {x.atom[0] for a in ground.domain.actions for case in a.cases for x in case.literals}
        effects = [effect for action in ground.domain.actions for effect in action.effects]
        read |= {x.atom[0] for effect in effects for case in effect.condition for x in case.literals}
        read |= _predicates(ground.problem.goal)
        self.unmade = frozenset(e.atom[0] for e in effects if not e.positive and f"not_{e.atom[0]}" in asked)
        self.announced = frozenset(e.atom[0] for e in effects if not e.always and e.atom[0] in asked)
        self._sorted: dict[str, list[Atom]] = {}
        listed = [(p, self._facts(p)) for p in sorted(read & ground.changing)]
        listed.sort(key=lambda entry: (len(entry[1]), entry[0]))  # what is few has low bits: short numbers
        self._numbers: dict[Atom, int] = {}
        self._listed: list[Atom] = []
        for _, atoms in listed:
            for atom in atoms:
                self._give(atom)
        for predicate in sorted(self.unmade | self.announced):
            for atom in self._facts(predicate):
                if predicate in self.unmade:
                    self._give((f"not_{predicate}", *atom[1:]))
                if predicate in self.announced:
                    self._give((f"announced {predicate}", *atom[1:]))

    def _give(self, atom: Atom) -> None:
        self._numbers[atom] = len(self._listed)
        self._listed.append(atom)

    def of(self, atom: Atom) -> int:
        """The bit of a fact; 0 if nothing reads it."""
        number = self._numbers.get(atom)
        return 0 if number is None else 1 << number

    def atoms(self, mask: int) -> list[Atom]:
        """The facts whose bits these are."""
        found = []
        while mask:
            number = mask.bit_length() - 1
            found.append(self._listed[number])
            mask ^= 1 << number
        return found

    def mask(self, atoms: Iterable[Atom]) -> int:
        """The bits of facts."""
        result = 0
        for atom in atoms:
            result |= self.of(atom)
        return result

    def shown(self, atom: Atom) -> int:
        """The bit by which the grammar sees a fact that may hold; 0 if it always does."""
        if atom[0] in self.announced:
            return self.of((f"announced {atom[0]}", *atom[1:]))
        return self.of(atom)

    def visible(self, predicate: str) -> Sequence[Atom]:
        """Facts of a predicate, ``not_…`` as well, that the grammar may see; sorted."""
        if predicate.startswith("not_"):
            known = predicate[4:] in self.unmade
            return [(predicate, *atom[1:]) for atom in self._facts(predicate[4:])] if known else ()
        return self._facts(predicate)

    def visible_with(self, predicate: str, place: int, thing: str) -> Sequence[Atom]:
        """Those of them that have the object at that place, counted from 1; sorted."""
        real = predicate.removeprefix("not_")
        if real != predicate and real not in self.unmade:
            return ()
        if self.ground.domain.predicates.get(real, 0) < place:
            return ()
        found = sorted(self.ground.facts.by_argument(real, place).get(thing, ()))
        return found if real == predicate else [(predicate, *atom[1:]) for atom in found]

    def _facts(self, predicate: str) -> list[Atom]:
        known = self._sorted.get(predicate)
        if known is None:
            known = self._sorted[predicate] = sorted(self.ground.facts.by_predicate.get(predicate, ()))
        return known

    def start(self) -> int:
        """The state in which the game begins."""
        state = self.mask(self.ground.problem.init)
        for atom in self.ground.problem.init:
            state |= self.shown(atom)
        return state


class Goal:
    """What is wanted, as tests of bits: all of them, each in any of its ways."""

    def __init__(self, bits: Bits) -> None:
        self.bits = bits
        self.ground = bits.ground
        self.mask = 0
        """All bits that matter."""
        found = self._test(self.ground.problem.goal)
        if isinstance(found, bool):
            raise Malformed(
                "pddl_problem has a goal that is reached whatever happens"
                if found
                else "pddl_problem has a goal that can't be reached"
            )
        self._tests = found

    def reached(self, state: int) -> bool:
        """It is so."""
        return _holds(self._tests, state)

    def _test(self, condition: Condition) -> bool | _Tests:
        if isinstance(condition, Both | Either):
            every = isinstance(condition, Both)
            parts = [self._test(part) for part in condition.parts]
            if (not every) in parts:
                return not every
            open_parts = [part for part in parts if not isinstance(part, bool)]
            return (every, open_parts) if open_parts else every
        return self._ways(condition)

    def _ways(self, condition: Literal | Some) -> bool | _Tests:
        ground = self.ground
        ways: dict[tuple[int, int], None] = {}
        for case in cases(condition):
            kinds = [ground.members.get(kind, frozenset()) for _, kind in case.variables]
            frame = Frame([name for name, _ in case.variables], kinds)
            if frame.empty:
                continue
            positive = [x.atom for x in case.literals if x.positive]
            named = {name for atom in positive for name in atom[1:]}
            loose = [(f":{kind}", name) for name, kind in case.variables if name not in named]
            join = Join((*positive, *loose), frame, ground.facts)
            wanted = [frame.fill(atom) for atom in positive]
            unwanted = [frame.fill(x.atom) for x in case.literals if not x.positive]
            for row in join.answers((), frame.template.copy()):
                refused = [fill(row) for fill in unwanted]
                if any(atom in ground.facts.atoms and not ground.varies(atom) for atom in refused):
                    continue
                need = self.bits.mask([fill(row) for fill in wanted])
                test = self.bits.mask(refused)
                if not need & test:
                    ways[need | test, need] = None
        if any(test == 0 for test, _ in ways):
            return True
        for test, _ in ways:
            self.mask |= test
        return list(ways) if ways else False


_Tests = tuple[bool, list["_Tests"]] | list[tuple[int, int]]


def _holds(tests: _Tests, state: int) -> bool:
    if isinstance(tests, list):
        return any(state & test == need for test, need in tests)
    every, parts = tests
    return (all if every else any)(_holds(part, state) for part in parts)


def _predicates(condition: Condition) -> set[str]:
    if isinstance(condition, Literal):
        return {condition.atom[0]}
    if isinstance(condition, Some):
        return _predicates(condition.part)
    return set().union(*map(_predicates, condition.parts))
