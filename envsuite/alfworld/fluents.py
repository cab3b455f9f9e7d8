"""Numbers the fluents of a game, so that a state is one integer with a bit for each fluent that holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envsuite.alfworld.grammar import Grammar
from envsuite.alfworld.grounding import Grounding
from envsuite.alfworld.pddl import Atom, Condition, Exists, Literal


class Fluents:
    """The bit of each fluent.

    A fluent has a bit if a precondition, the condition of an effect, the goal or the grammar reads it. The grammar sees
    fluents as the original shows them: ``not_…`` only after an action has deleted the fluent, and a fluent with
    conditional effects as these were last announced, whether their condition held or not. Both have bits of their own.
    """

    def __init__(self, grounding: Grounding, grammar: Grammar) -> None:
        self.grounding = grounding
        visible = {predicate for query in grammar.queries() for predicate, _ in query}
        actions = grounding.domain.actions
        predicates = visible | {x.atom[0] for a in actions for disjunct in a.precondition for x in disjunct.literals}
        effects = [effect for action in actions for effect in action.effects]
        predicates |= {x.atom[0] for effect in effects for disjunct in effect.condition for x in disjunct.literals}
        predicates |= _predicates(grounding.problem.goal)
        self.deleted = frozenset(e.atom[0] for e in effects if not e.positive and f"not_{e.atom[0]}" in visible)
        """Predicates whose deletes the grammar asks for."""
        self.announced = frozenset(e.atom[0] for e in effects if not e.unconditional and e.atom[0] in visible)
        """Predicates with conditional effects that the grammar asks for."""
        self._sorted: dict[str, list[Atom]] = {}
        # Predicates with few facts get low bits: small masks.
        order = sorted(predicates & grounding.fluent_predicates, key=lambda p: (len(self._facts(p)), p))
        self._bits: dict[Atom, int] = {}
        self._fluents: list[Atom] = []
        for predicate in order:
            for atom in self._facts(predicate):
                self._number(atom)
        for predicate in sorted(self.deleted | self.announced):
            for atom in self._facts(predicate):
                if predicate in self.deleted:
                    self._number((f"not_{predicate}", *atom[1:]))
                if predicate in self.announced:
                    self._number((f"announced {predicate}", *atom[1:]))

    def _number(self, fluent: Atom) -> None:
        self._bits[fluent] = len(self._fluents)
        self._fluents.append(fluent)

    def bit(self, fluent: Atom) -> int:
        """Returns the mask of one fluent; 0 if nothing reads it."""
        number = self._bits.get(fluent)
        return 0 if number is None else 1 << number

    def in_state(self, state: int) -> list[Atom]:
        """Returns the fluents whose bits are set."""
        fluents = []
        while state:
            number = state.bit_length() - 1
            fluents.append(self._fluents[number])
            state ^= 1 << number
        return fluents

    def mask(self, fluents: Iterable[Atom]) -> int:
        """Returns the bits of several fluents."""
        result = 0
        for fluent in fluents:
            result |= self.bit(fluent)
        return result

    def visible_bit(self, fact: Atom) -> int:
        """Returns the bit by which the grammar sees a reachable fact; 0 if the fact is static."""
        if fact[0] in self.announced:
            return self.bit((f"announced {fact[0]}", *fact[1:]))
        return self.bit(fact)

    def visible(self, predicate: str) -> Sequence[Atom]:
        """Returns the facts of a predicate, also of ``not_…``, that the grammar may see; sorted."""
        if predicate.startswith("not_"):
            has_negation = predicate[4:] in self.deleted
            return [(predicate, *atom[1:]) for atom in self._facts(predicate[4:])] if has_negation else ()
        return self._facts(predicate)

    def visible_with(self, predicate: str, position: int, name: str) -> Sequence[Atom]:
        """Returns those of :meth:`visible` whose argument at ``position``, counted from 1, is ``name``; sorted."""
        positive = predicate.removeprefix("not_")
        if positive != predicate and positive not in self.deleted:
            return ()
        if self.grounding.domain.predicates.get(positive, 0) < position:
            return ()
        facts = sorted(self.grounding.facts.by_argument(positive, position).get(name, ()))
        return facts if positive == predicate else [(predicate, *atom[1:]) for atom in facts]

    def _facts(self, predicate: str) -> list[Atom]:
        facts = self._sorted.get(predicate)
        if facts is None:
            facts = self._sorted[predicate] = sorted(self.grounding.facts.by_predicate.get(predicate, ()))
        return facts

    def initial_state(self) -> int:
        """Returns the initial state."""
        init = self.grounding.problem.init
        state = self.mask(init)
        for atom in init:
            state |= self.visible_bit(atom)
        return state


def _predicates(condition: Condition) -> set[str]:
    if isinstance(condition, Literal):
        return {condition.atom[0]}
    if isinstance(condition, Exists):
        return _predicates(condition.part)
    return set().union(*map(_predicates, condition.parts))
