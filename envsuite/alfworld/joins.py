"""Finds the objects for which atoms hold together: the part of grounding that is about lookup and order of lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from envsuite.alfworld.formulas import Atom, Malformed

Row: TypeAlias = list[str]
"""Objects of the variables, blank where still open, then names that patterns mention, predicates among them."""
Fill: TypeAlias = Callable[[Row], Atom]
"""Makes a pattern's atom from a row."""

MAX_LOOKUPS = 2_000_000
"""Atoms looked at in one game; the largest of ALFWorld's needs 30,000."""


class Facts:
    """A growing set of atoms that are found by predicate and by any one argument."""

    def __init__(self) -> None:
        self.atoms: set[Atom] = set()
        self.by_predicate: dict[str, list[Atom]] = {}
        self.lookups = 0
        """Atoms looked at so far."""
        self._indices: dict[str, dict[int, dict[str, list[Atom]]]] = {}

    def add(self, atom: Atom) -> None:
        """Add an atom that is not in it."""
        self.atoms.add(atom)
        self.by_predicate.setdefault(atom[0], []).append(atom)
        for place, index in self._indices.get(atom[0], {}).items():
            index.setdefault(atom[place], []).append(atom)

    def by_argument(self, predicate: str, place: int) -> Mapping[str, list[Atom]]:
        """The predicate's atoms by their argument number ``place``, counted from 1; grows with the facts."""
        indices = self._indices.setdefault(predicate, {})
        if place not in indices:
            index: dict[str, list[Atom]] = {}
            for atom in self.by_predicate.get(predicate, ()):
                index.setdefault(atom[place], []).append(atom)
            indices.setdefault(place, index)  # when it is whole: another thread may look for it
        return indices[place]

    def looked(self, count: int) -> None:
        """Count what was looked at.

        Raises:
            Malformed: It was too much; what asks for it would not end in time.
        """
        self.lookups += count
        if self.lookups > MAX_LOOKUPS:
            raise Malformed(f"pddl_problem has more than {MAX_LOOKUPS:,} combinations of objects to look at")


class Frame:
    """Numbers the variables of some patterns, and the names in them.

    Args:
        variables: Names of the variables.
        domains: For each the objects of its type; a variable with one object only has it from the start.
    """

    def __init__(self, variables: Sequence[str], domains: Sequence[Set[str]]) -> None:
        self.numbers = {name: number for number, name in enumerate(variables)}
        self.domains = tuple(domains)
        self.template: Row = [next(iter(d)) if len(d) == 1 else "" for d in domains]
        self.given = frozenset(n for n, d in enumerate(domains) if len(d) == 1)
        """Variables that have their object from the start."""

    @property
    def empty(self) -> bool:
        """A variable has no object to be."""
        return not all(self.domains)

    def domain(self, name: str) -> Set[str]:
        """The objects that a variable can be; of another name itself."""
        number = self.numbers.get(name, len(self.domains))
        return self.domains[number] if number < len(self.domains) else {name}

    def number(self, name: str) -> int:
        """Where a row has the variable or name."""
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.template)
            self.template.append(name)
        return number

    def objects(self, row: Row) -> tuple[str, ...]:
        """What the variables are in a row."""
        return tuple(row[: len(self.domains)])

    def row(self, objects: Sequence[str]) -> Row:
        """The row in which the variables are these."""
        return [*objects, *self.template[len(objects) :]]

    def fill(self, atom: Atom) -> Fill:
        """What makes the atom from a row."""
        numbers = [self.number(name) for name in atom]
        if len(numbers) == 1:
            only = numbers[0]
            return lambda row: (row[only],)
        getter: Any = itemgetter(*numbers)
        return getter  # type: ignore[no-any-return]

    def variables(self, atom: Atom) -> set[int]:
        """Numbers of the variables in the atom."""
        return {n for name in atom[1:] if (n := self.number(name)) < len(self.domains)}


@dataclass(frozen=True, slots=True)
class _Lookup:
    fill: Fill
    known: tuple[tuple[int, int, Mapping[str, list[Atom]]], ...]
    """Places of the atom whose object is known by then, its number in the row, and the index to find it by."""
    fresh: tuple[tuple[int, int], ...]
    """Places that give variables their objects."""
    again: tuple[tuple[int, int], ...]
    """Places of a variable that this atom gave its object before."""
    predicate: str


class Join:
    """Atoms with variables that must hold together.

    Args:
        atoms: What must hold.
        frame: Numbers its variables.
        facts: Where to look; may grow between questions.
    """

    def __init__(self, atoms: Sequence[Atom], frame: Frame, facts: Facts) -> None:
        self.atoms = tuple(atoms)
        self.frame = frame
        self.facts = facts
        self._plans: dict[tuple[int, ...], tuple[_Lookup, ...]] = {}
        for atom in self.atoms:
            for name in atom:
                frame.number(name)

    def start(self, known: Sequence[tuple[int, Atom]]) -> Row | None:
        """A row in which some atoms, by their numbers, are facts; ``None`` if they can't be."""
        row = self.frame.template.copy()
        for first, fact in known:
            for name, value in zip(self.atoms[first][1:], fact[1:], strict=True):
                number = self.frame.numbers[name]
                if row[number]:
                    if row[number] != value:
                        return None
                elif value in self.frame.domains[number]:
                    row[number] = value
                else:
                    return None
        return row

    def answers(self, first: tuple[int, ...], row: Row) -> list[Row]:
        """All ways to complete a row from :meth:`start`.

        Args:
            first: Numbers of the atoms that are known.
            row: What they are known to be.

        Raises:
            Malformed: There are too many.
        """
        plan = self._plans.get(first)
        if plan is None:
            plan = self._plans[first] = self._plan(first)
        atoms = self.facts.atoms
        rows = [row]
        for lookup in plan:
            if not lookup.fresh:
                fill = lookup.fill
                rows = [row for row in rows if fill(row) in atoms]
            else:
                rows = self._extend(lookup, rows)
            if not rows:
                break
        return rows

    def _extend(self, lookup: _Lookup, rows: list[Row]) -> list[Row]:
        """``rows`` with the variables that the lookup gives their objects."""
        domains = self.frame.domains
        result = []
        looked = 0
        simple = len(lookup.known) < 2 and len(lookup.fresh) == 1 and not lookup.again
        for row in rows:
            candidates = self._candidates(lookup, row)
            looked += len(candidates)
            if simple:
                place, number = lookup.fresh[0]
                domain = domains[number]
                for atom in candidates:
                    if atom[place] in domain:
                        new = row.copy()
                        new[number] = atom[place]
                        result.append(new)
                continue
            for atom in candidates:
                if any(atom[place] != row[number] for place, number, _ in lookup.known):
                    continue
                new = row.copy()
                for place, number in lookup.fresh:
                    new[number] = atom[place]
                if all(new[number] in domains[number] for _, number in lookup.fresh) and all(
                    atom[place] == new[number] for place, number in lookup.again
                ):
                    result.append(new)
        self.facts.looked(looked)
        return result

    def _candidates(self, lookup: _Lookup, row: Row) -> Sequence[Atom]:
        """Atoms found by the known argument that fewest atoms have."""
        if not lookup.known:
            return self.facts.by_predicate.get(lookup.predicate, ())
        _, number, index = lookup.known[0]
        best = index.get(row[number], ())
        for _, number, index in lookup.known[1:]:
            found = index.get(row[number], ())
            if len(found) < len(best):
                best = found
        return best

    def _plan(self, first: tuple[int, ...]) -> tuple[_Lookup, ...]:
        """Lookups in an order in which each knows as much as possible."""
        frame = self.frame
        bound = set(frame.given).union(*(frame.variables(self.atoms[number]) for number in first))
        left = [n for n in range(len(self.atoms)) if n not in first]
        plan = []
        while left:
            best = min(left, key=lambda n: (*self._unknown(self.atoms[n], bound), n))
            left.remove(best)
            atom = self.atoms[best]
            known, fresh, again = [], [], []
            new: set[int] = set()
            for place, name in enumerate(atom[1:], 1):
                number = frame.number(name)
                if number >= len(frame.domains) or number in bound:
                    known.append((place, number))
                elif number in new:
                    again.append((place, number))
                else:
                    fresh.append((place, number))
                    new.add(number)
            bound |= new
            indexed = tuple((p, n, self.facts.by_argument(atom[0], p)) for p, n in known) if fresh else ()
            plan.append(_Lookup(frame.fill(atom), indexed, tuple(fresh), tuple(again), atom[0]))
        return tuple(plan)

    def _unknown(self, atom: Atom, bound: set[int]) -> tuple[bool, bool, int]:
        """What an early lookup should not be: open, open in all places, and in how many variables."""
        unknown = self.frame.variables(atom) - bound
        return bool(unknown), len(unknown) == len(atom) - 1, len(unknown)
