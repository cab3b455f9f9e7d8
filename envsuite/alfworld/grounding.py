"""Turns a domain and a problem into what can be so and what can be done.

The facts that may ever hold are found first, without the negative conditions: those are the game's variables. Operators
are made when they are asked for, by the place at which the player stands: in ALFWorld exactly one fact ``atLocation``
holds at any time, and nearly every operator needs one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envsuite.alfworld.formulas import Action, Atom, Case, Domain, Literal, Malformed, Problem
from envsuite.alfworld.joins import Facts, Fill, Frame, Join, Row

MAX_FACTS = 200_000
"""Facts that one game may have; ALFWorld's largest has 4,000."""

OF_TYPE = ":"
"""Begins the predicate that says of what type an object is."""


class Operator(NamedTuple):
    """An action on given objects, in one of the cases of its precondition."""

    objects: tuple[str, ...]
    """Of the action's parameters, then of the variables of the case."""
    required: tuple[Atom, ...]
    """Facts that vary and must hold, besides the place."""
    refused: tuple[Atom, ...]
    """Facts that vary and must not."""


@dataclass(frozen=True, slots=True)
class Change:
    """A fact that an operator makes so, or not so, when all of ``required`` hold and none of ``refused``."""

    atom: Atom
    positive: bool
    required: tuple[Atom, ...]
    refused: tuple[Atom, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """An action in one of the cases of its precondition."""

    action: Action
    join: Join
    places: tuple[Fill, ...]
    """Where the player must stand; more than one place can't be."""
    moving: tuple[Fill, ...]
    """What else must hold and may change."""
    negative: tuple[Fill, ...]
    added: tuple[tuple[Fill, tuple[Fill, ...]], ...] | None
    """What it makes so under no further condition, each with what of the same predicate must hold before.

    ``None`` if some of it can't have held before.
    """
    place: int | None
    """Number of the atom of the join that says where the player stands."""
    elsewhere: Join | None
    """The join without that atom, if the place decides nothing but the place's own variables."""
    own: frozenset[str]
    """Those variables."""
    guard: int | None
    """Number of an atom of which no fact holds in the beginning; what needs one can wait until then."""

    @property
    def guarded(self) -> str | None:
        """Predicate of the guard."""
        return None if self.guard is None else self.join.atoms[self.guard][0]


class Ground:
    """What can be so in a problem, and what can be done.

    Raises:
        Malformed: There is too much of it.
    """

    def __init__(self, domain: Domain, problem: Problem) -> None:
        self.domain = domain
        self.problem = problem
        self.changing = frozenset(e.atom[0] for action in domain.actions for e in action.effects)
        """Predicates that some action changes."""
        self.early = frozenset(atom[0] for atom in problem.init)
        """Predicates of which something holds in the beginning."""
        self.members = _members(domain, problem)
        self.facts = Facts()
        """What holds and never changes, and what may hold at some time."""
        self._add_lasting()
        self._explore()
        self.pivot = self._find_pivot()
        """Of this predicate's facts exactly one holds at any time; ``None`` if no predicate is like that."""
        rules = [self._rule(action, case) for action in domain.actions for case in action.cases]
        self.rules = [rule for rule in rules if not rule.join.frame.empty]

    def places(self) -> list[Atom]:
        """The facts of the pivot, in order."""
        return sorted(self.facts.by_predicate.get(self.pivot, ())) if self.pivot is not None else []

    def operators(self, rule: Rule, place: Atom | None, guard: Atom | None = None) -> Iterator[Operator]:
        """What may become possible by a rule.

        While ``place`` holds; for ``None`` wherever the player stands: then :meth:`settled` says for which objects. If
        the rule has a guard, only while the fact ``guard`` holds.
        """
        join = rule.join
        known = []
        if place is not None and rule.place is not None:
            known.append((rule.place, place))
        elif rule.elsewhere is not None:
            join = rule.elsewhere
        if guard is not None and rule.guard is not None:
            known.append((rule.guard, guard))
        start = join.start(known)
        for row in join.answers(tuple(number for number, _ in known), start) if start is not None else ():
            operator = self._operator(rule, row, place)
            if operator is not None:
                yield operator

    def settled(self, rule: Rule, objects: Sequence[str], start: Row | None) -> tuple[str, ...] | None:
        """The objects of an operator at a place; ``None`` if it is not possible there, or does nothing.

        Args:
            rule: The operator's rule.
            objects: Its objects, blank where the place decides.
            start: What the place decides, from :meth:`arrival`.
        """
        if start is None:
            return None
        row = [there or known for there, known in zip(start, rule.join.frame.row(objects), strict=True)]
        return rule.join.frame.objects(row) if self._effective(rule, row) else None

    def arrival(self, rule: Rule, place: Atom | None) -> Row | None:
        """What a place decides for a rule; ``None`` if the rule does not fit it."""
        return rule.join.start([(rule.place, place)] if place is not None and rule.place is not None else [])

    def varies(self, atom: Atom) -> bool:
        """It may hold at some time, and is not what never changes."""
        return atom[0] in self.changing and atom in self.facts.atoms

    def changes(self, rule: Rule, objects: Sequence[str]) -> tuple[Change, ...]:
        """What an operator does: first what it makes so, then what it makes not so.

        What is so already by the precondition is left out, and what is unmade that is made under the same condition.
        """
        row = rule.join.frame.row(objects)
        holds = {fill(row) for fill in (*rule.places, *rule.moving)}
        fails = {fill(row) for fill in rule.negative}
        found: list[Change] = []
        always: set[Atom] = set()
        for effect in rule.action.effects:
            atom = self._atom(rule, effect.atom, row)
            if effect.positive and effect.always:
                always.add(atom)
            if not self.varies(atom) or atom in (holds if effect.positive else fails):
                continue
            for case in effect.condition:
                condition = self._condition(case, rule, row, holds, fails)
                if condition is not None:
                    found.append(Change(atom, effect.positive, *condition))
        made = tuple(c for c in found if c.positive)
        also = {(c.atom, c.required, c.refused) for c in made}
        unmade = (c for c in found if not c.positive and c.atom not in always and c.atom not in c.refused)
        return (*made, *(c for c in unmade if (c.atom, c.required, c.refused) not in also))

    def _atom(self, rule: Rule, atom: Atom, row: Row) -> Atom:
        numbers = rule.join.frame.numbers
        return (atom[0], *(row[numbers[name]] if name in numbers else name for name in atom[1:]))

    def _condition(
        self, case: Case, rule: Rule, row: Row, holds: set[Atom], fails: set[Atom]
    ) -> tuple[tuple[Atom, ...], tuple[Atom, ...]] | None:
        """What of ``case`` the precondition leaves open: facts that must and that must not hold; ``None``: never."""
        required: list[Atom] = []
        refused: list[Atom] = []
        for literal in case.literals:
            atom = self._atom(rule, literal.atom, row)
            if self.varies(atom):
                if atom in (fails if literal.positive else holds):
                    return None
                if atom not in (holds if literal.positive else fails):
                    (required if literal.positive else refused).append(atom)
            elif (atom in self.facts.atoms) != literal.positive:
                return None
        if not set(required).isdisjoint(refused):
            return None
        return tuple(required), tuple(refused)

    def _operator(self, rule: Rule, row: Row, place: Atom | None) -> Operator | None:
        if place is not None and len(rule.places) > 1 and any(fill(row) != place for fill in rule.places):
            return None  # two places at once
        required = [fill(row) for fill in rule.moving]
        refused = []
        for fill in rule.negative:
            atom = fill(row)
            if self.varies(atom):
                if atom == place or atom in required:
                    return None
                refused.append(atom)
            elif atom in self.facts.atoms:
                return None
        if (place is not None or rule.place is None) and not self._effective(rule, row):
            return None
        return Operator(rule.join.frame.objects(row), tuple(required), tuple(refused))

    def _effective(self, rule: Rule, row: Row) -> bool:
        """It changes something in some state; the original leaves out what does not."""
        if rule.added is None:
            return True
        for fill, before in rule.added:
            atom = fill(row)
            if all(other(row) != atom for other in before):
                return True
        return bool(self.changes(rule, rule.join.frame.objects(row)))

    def _rule(self, action: Action, case: Case) -> Rule:
        join = self._join(action, case, True)
        frame = join.frame
        positive = [atom for atom in join.atoms if not atom[0].startswith(OF_TYPE)]
        added = [e.atom for e in action.effects if e.positive and e.always]
        changed = tuple((frame.fill(atom), tuple(frame.fill(p) for p in positive if p[0] == atom[0])) for atom in added)
        places = [n for n, atom in enumerate(join.atoms) if atom[0] == self.pivot]
        guards = [n for n, atom in enumerate(join.atoms) if atom[0] in self.changing - {self.pivot} - self.early]
        elsewhere = None
        own: frozenset[str] = frozenset()
        if len(places) == 1:
            rest = [atom for n, atom in enumerate(join.atoms) if n not in places]
            read = {name for atom in (*rest, *(x.atom for x in case.literals if not x.positive)) for name in atom[1:]}
            own = frozenset(n for n in join.atoms[places[0]][1:] if len(frame.domain(n)) > 1)
            elsewhere = Join(rest, frame, self.facts) if own.isdisjoint(read) else None
        return Rule(
            action,
            join,
            tuple(frame.fill(atom) for atom in positive if atom[0] == self.pivot),
            tuple(frame.fill(atom) for atom in positive if atom[0] in self.changing and atom[0] != self.pivot),
            tuple(frame.fill(x.atom) for x in case.literals if not x.positive),
            None if any(not before for _, before in changed) else changed,
            places[0] if places else None,
            elsewhere,
            own,
            max(guards, key=lambda n: len(self.facts.by_predicate.get(join.atoms[n][0], ())), default=None),
        )

    def _join(self, action: Action, case: Case, negative: bool, more: Sequence[Atom] = ()) -> Join:
        """What must hold for a case, and ``more``.

        What never changes and is said of one variable only says which objects the variable can be; ``negative``: also
        what must not hold.
        """
        variables = (*action.parameters, *case.variables)
        domains = {name: self.members.get(kind, frozenset()) for name, kind in variables}
        atoms = []
        for literal in (*case.literals, *(Literal(atom, True) for atom in more)):
            named = set(literal.atom[1:]) & domains.keys()
            if len(named) == 1 and literal.atom[0] not in self.changing and literal.positive | negative:
                (name,) = named
                fitting = self._fitting(literal.atom, name)
                domains[name] = domains[name] & fitting if literal.positive else domains[name] - fitting
            elif literal.positive:
                atoms.append(literal.atom)
        named = {name for atom in atoms for name in atom[1:]}
        atoms += [(OF_TYPE + kind, name) for name, kind in variables if name not in named]
        return Join(atoms, Frame(list(domains), list(domains.values())), self.facts)

    def _fitting(self, atom: Atom, name: str) -> frozenset[str]:
        """Objects for which an atom with that variable holds, now and ever."""
        places = [n for n, term in enumerate(atom) if term == name]
        found = {fact[places[0]] for fact in self.facts.by_predicate.get(atom[0], ())}
        return frozenset(o for o in found if tuple(o if term == name else term for term in atom) in self.facts.atoms)

    def _add_lasting(self) -> None:
        """Add what holds and never changes."""
        for kind in sorted(self.members):
            for name in sorted(self.members[kind]):
                self.facts.add((OF_TYPE + kind, name))
        for name in sorted(self.problem.objects):
            self.facts.add(("=", name, name))
        for atom in self.problem.init:
            if atom[0] not in self.changing:
                self.facts.add(atom)

    def _explore(self) -> None:
        """Find everything that may hold: what does, and what follows from it when nothing is ever unmade."""
        queue = [atom for atom in self.problem.init if atom[0] in self.changing]
        seen = set(queue)
        watchers: dict[str, list[tuple[_Consequence, int]]] = {}
        for consequence in self._consequences():
            moving = [n for n, atom in enumerate(consequence.join.atoms) if atom[0] in self.changing]
            for number in moving:
                watchers.setdefault(consequence.join.atoms[number][0], []).append((consequence, number))
            if not moving:
                queue += consequence.heads(None, None, seen)
        for position, atom in enumerate(queue):  # grows while it is gone through
            if position > MAX_FACTS:
                raise Malformed(f"pddl_problem has more than {MAX_FACTS:,} facts that may hold")
            self.facts.add(atom)
            for consequence, number in watchers.get(atom[0], ()):
                queue += consequence.heads(number, atom, seen)

    def _consequences(self) -> list[_Consequence]:
        """What each rule makes so, without those of which another says as much under fewer conditions."""
        result = []
        for action, case in ((a, c) for a in self.domain.actions for c in a.cases):
            heads: dict[tuple[Atom, ...], list[Atom]] = {}
            for effect in action.effects:
                for when in effect.condition if effect.positive else ():
                    heads.setdefault(tuple(x.atom for x in when.literals if x.positive), []).append(effect.atom)
            for condition, atoms in heads.items():
                join = self._join(action, case, False, condition)
                if not join.frame.empty:
                    result.append(_Consequence(join, tuple(atoms)))
        kept: list[_Consequence] = []
        for one in sorted(result, key=lambda c: len(c.join.atoms)):
            if not any(other.says_as_much_as(one) for other in kept):
                kept.append(one)
        return kept

    def _find_pivot(self) -> str | None:
        """The predicate with most facts among those whose facts every action exchanges one for one."""
        best: tuple[int, str] | None = None
        for predicate in sorted(self.changing):
            if sum(atom[0] == predicate for atom in self.problem.init) != 1:
                continue
            if all(_exchanges(action, predicate) for action in self.domain.actions):
                size = len(self.facts.by_predicate[predicate])
                if best is None or size > best[0]:
                    best = (size, predicate)
        return best[1] if best else None


class _Consequence:
    """What follows when the atoms of a join hold, negative conditions left aside."""

    def __init__(self, join: Join, atoms: tuple[Atom, ...]) -> None:
        self.join = join
        self.atoms = atoms
        self._fills = tuple((join.frame.fill(atom), join.frame.variables(atom)) for atom in atoms)
        self._asked: set[tuple[int | None, tuple[str, ...]]] = set()
        self._open: dict[int | None, tuple[Sequence[int], bool]] = {}

    def says_as_much_as(self, other: _Consequence) -> bool:
        """All that follows from the other follows from this."""
        return (
            set(self.join.atoms) <= set(other.join.atoms)
            and set(self.atoms) >= set(other.atoms)
            and all(
                other.join.frame.domain(name) <= self.join.frame.domain(name)
                for atom in (*self.join.atoms, *self.atoms)
                for name in atom[1:]
            )
        )

    def heads(self, first: int | None, fact: Atom | None, seen: set[Atom]) -> list[Atom]:
        """What follows from ``fact``, as atom number ``first``, with the facts known by now, and is not in ``seen``.

        It is added to ``seen``. Facts that differ only in objects that matter neither to the other atoms nor to what
        follows are asked about once.
        """
        row = self.join.start([(first, fact)] if first is not None and fact is not None else [])
        if row is None:
            return []
        if first not in self._open:
            self._open[first] = self._matter(first)
        matter, settled = self._open[first]
        if settled and all(fill(row) in seen for fill, _ in self._fills):
            return []
        key = (first, tuple(row[n] for n in matter))
        if key in self._asked:
            return []
        self._asked.add(key)
        found = []
        for answer in self.join.answers(() if first is None else (first,), row):
            for fill, _ in self._fills:
                atom = fill(answer)
                if atom not in seen:
                    seen.add(atom)
                    found.append(atom)
        return found

    def _matter(self, first: int | None) -> tuple[Sequence[int], bool]:
        """Variables that matter once atom ``first`` is known, and whether that settles all that follows."""
        frame = self.join.frame
        made = set().union(*(variables for _, variables in self._fills))
        others = [atom for n, atom in enumerate(self.join.atoms) if n != first]
        bound = set(frame.given) | (frame.variables(self.join.atoms[first]) if first is not None else set())
        return sorted(made.union(*map(frame.variables, others))), made <= bound


def _members(domain: Domain, problem: Problem) -> dict[str, frozenset[str]]:
    """The objects of each type, those of the types below included."""
    found: dict[str, set[str]] = {}
    for name, kind in problem.objects.items():
        for above in (kind, *domain.above[kind]):
            found.setdefault(above, set()).add(name)
    return {kind: frozenset(names) for kind, names in found.items()}


def _exchanges(action: Action, predicate: str) -> bool:
    """The action leaves the predicate's facts alone, or replaces one that it requires by one."""
    effects = [e for e in action.effects if e.atom[0] == predicate]
    if not effects:
        return True
    made = [e for e in effects if e.positive]
    unmade = [e for e in effects if not e.positive]
    if len(made) != 1 or len(unmade) != 1 or not all(e.always for e in effects):
        return False
    return all(any(x.positive and x.atom == unmade[0].atom for x in case.literals) for case in action.cases)
