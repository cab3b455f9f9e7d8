"""Joins lifted atoms over the facts of a game: finds the bindings of their variables under which all of them hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from envsuite.alfworld.pddl import Atom, MalformedPDDL

Binding: TypeAlias = list[str]
"""The objects of a scope's variables, empty where unbound, followed by the names that its atoms mention."""
Grounder: TypeAlias = Callable[[Binding], Atom]
"""Substitutes a binding into one lifted atom."""

MAX_LOOKUPS = 2_000_000
"""Facts looked at in one game; the largest of ALFWorld's needs 30,000."""


class FactIndex:
    """A growing set of facts, indexed by predicate and by each argument."""

    def __init__(self) -> None:
        self.facts: set[Atom] = set()
        self.by_predicate: dict[str, list[Atom]] = {}
        self.lookups = 0
        """Facts looked at so far."""
        self._by_argument: dict[str, dict[int, dict[str, list[Atom]]]] = {}

    def add(self, fact: Atom) -> None:
        """Adds a fact that is not in the index yet."""
        self.facts.add(fact)
        self.by_predicate.setdefault(fact[0], []).append(fact)
        for position, index in self._by_argument.get(fact[0], {}).items():
            index.setdefault(fact[position], []).append(fact)

    def by_argument(self, predicate: str, position: int) -> Mapping[str, list[Atom]]:
        """Returns a predicate's facts by their argument at ``position``, counted from 1; grows with the index."""
        indices = self._by_argument.setdefault(predicate, {})
        if position not in indices:
            index: dict[str, list[Atom]] = {}
            for fact in self.by_predicate.get(predicate, ()):
                index.setdefault(fact[position], []).append(fact)
            indices.setdefault(position, index)  # only when complete: another thread may read it
        return indices[position]

    def count_lookups(self, count: int) -> None:
        """Adds ``count`` to the facts looked at.

        Raises:
            MalformedPDDL: They exceed ``MAX_LOOKUPS``; grounding would not end in time.
        """
        self.lookups += count
        if self.lookups > MAX_LOOKUPS:
            raise MalformedPDDL(f"pddl_problem has more than {MAX_LOOKUPS:,} combinations of objects to look at")


class Scope:
    """The variables of some lifted atoms, each with its domain, and the names that the atoms mention.

    Args:
        variables: Names of the variables.
        domains: The objects that each can be bound to; a variable with a single one is bound to it from the start.
    """

    def __init__(self, variables: Sequence[str], domains: Sequence[Set[str]]) -> None:
        self.indices = {name: index for index, name in enumerate(variables)}
        """Index of each variable and name in a binding."""
        self.domains = tuple(domains)
        self.initial: Binding = [next(iter(d)) if len(d) == 1 else "" for d in domains]
        """The binding from which every join starts."""
        self.bound = frozenset(n for n, d in enumerate(domains) if len(d) == 1)
        """Variables that are bound in :attr:`initial`."""

    @property
    def unsatisfiable(self) -> bool:
        """Whether some variable has an empty domain."""
        return not all(self.domains)

    def domain(self, name: str) -> Set[str]:
        """Returns the objects that a variable can be bound to, or the name itself where it is not a variable."""
        index = self.indices.get(name, len(self.domains))
        return self.domains[index] if index < len(self.domains) else {name}

    def index(self, name: str) -> int:
        """Returns the index of a variable or name in a binding; enters a name that is new."""
        index = self.indices.get(name)
        if index is None:
            index = self.indices[name] = len(self.initial)
            self.initial.append(name)
        return index

    def objects(self, binding: Binding) -> tuple[str, ...]:
        """Returns the objects of the variables in a binding."""
        return tuple(binding[: len(self.domains)])

    def binding(self, objects: Sequence[str]) -> Binding:
        """Returns the binding of the variables to ``objects``."""
        return [*objects, *self.initial[len(objects) :]]

    def grounder(self, atom: Atom) -> Grounder:
        """Returns a function that substitutes a binding into ``atom``."""
        indices = [self.index(name) for name in atom]
        if len(indices) == 1:
            only = indices[0]
            return lambda binding: (binding[only],)
        getter: Any = itemgetter(*indices)
        return getter  # type: ignore[no-any-return]

    def variables(self, atom: Atom) -> set[int]:
        """Returns the indices of the variables in ``atom``."""
        return {n for name in atom[1:] if (n := self.index(name)) < len(self.domains)}


@dataclass(frozen=True, slots=True)
class _Lookup:
    """One step of a join's plan: a test of one atom, or an extension of the bindings by its facts."""

    ground: Grounder
    bound: tuple[tuple[int, int, Mapping[str, list[Atom]]], ...]
    """Argument positions bound by then: position, index in the binding, and the facts by that argument."""
    free: tuple[tuple[int, int], ...]
    """Argument positions that bind a variable."""
    repeated: tuple[tuple[int, int], ...]
    """Argument positions of a variable that this atom has bound at an earlier position."""
    predicate: str


class Join:
    """A conjunction of lifted atoms, to be matched against facts.

    Args:
        atoms: The conjunction.
        scope: Its variables.
        facts: The facts; may grow between calls.
    """

    def __init__(self, atoms: Sequence[Atom], scope: Scope, facts: FactIndex) -> None:
        self.atoms = tuple(atoms)
        self.scope = scope
        self.facts = facts
        self._plans: dict[tuple[int, ...], tuple[_Lookup, ...]] = {}
        for atom in self.atoms:
            for name in atom:
                scope.index(name)

    def unify(self, matches: Sequence[tuple[int, Atom]]) -> Binding | None:
        """Returns the binding that unifies some atoms, by their numbers, with facts; ``None`` if there is none."""
        binding = self.scope.initial.copy()
        for number, fact in matches:
            for name, value in zip(self.atoms[number][1:], fact[1:], strict=True):
                index = self.scope.indices[name]
                if binding[index]:
                    if binding[index] != value:
                        return None
                elif value in self.scope.domains[index]:
                    binding[index] = value
                else:
                    return None
        return binding

    def solutions(self, matched_atoms: tuple[int, ...], binding: Binding) -> list[Binding]:
        """Returns all completions of a binding from :meth:`unify` under which every atom is a fact.

        Args:
            matched_atoms: Numbers of the atoms that :meth:`unify` has matched.
            binding: What it returned.

        Raises:
            MalformedPDDL: Too many facts had to be looked at.
        """
        plan = self._plans.get(matched_atoms)
        if plan is None:
            plan = self._plans[matched_atoms] = self._plan(matched_atoms)
        facts = self.facts.facts
        bindings = [binding]
        for lookup in plan:
            if not lookup.free:
                ground = lookup.ground
                bindings = [binding for binding in bindings if ground(binding) in facts]
            else:
                bindings = self._extend(lookup, bindings)
            if not bindings:
                break
        return bindings

    def _extend(self, lookup: _Lookup, bindings: list[Binding]) -> list[Binding]:
        """Returns ``bindings`` extended by the variables that the lookup binds."""
        domains = self.scope.domains
        result = []
        looked_at = 0
        simple = len(lookup.bound) < 2 and len(lookup.free) == 1 and not lookup.repeated
        for binding in bindings:
            candidates = self._candidates(lookup, binding)
            looked_at += len(candidates)
            if simple:
                position, index = lookup.free[0]
                domain = domains[index]
                for fact in candidates:
                    if fact[position] in domain:
                        new = binding.copy()
                        new[index] = fact[position]
                        result.append(new)
                continue
            for fact in candidates:
                if any(fact[position] != binding[index] for position, index, _ in lookup.bound):
                    continue
                new = binding.copy()
                for position, index in lookup.free:
                    new[index] = fact[position]
                if all(new[index] in domains[index] for _, index in lookup.free) and all(
                    fact[position] == new[index] for position, index in lookup.repeated
                ):
                    result.append(new)
        self.facts.count_lookups(looked_at)
        return result

    def _candidates(self, lookup: _Lookup, binding: Binding) -> Sequence[Atom]:
        """Returns the facts with the bound argument that fewest facts have."""
        if not lookup.bound:
            return self.facts.by_predicate.get(lookup.predicate, ())
        _, index, facts = lookup.bound[0]
        best = facts.get(binding[index], ())
        for _, index, facts in lookup.bound[1:]:
            candidates = facts.get(binding[index], ())
            if len(candidates) < len(best):
                best = candidates
        return best

    def _plan(self, matched_atoms: tuple[int, ...]) -> tuple[_Lookup, ...]:
        """Orders the lookups greedily, so that each has as few unbound variables as possible."""
        scope = self.scope
        bound_variables = set(scope.bound).union(*(scope.variables(self.atoms[number]) for number in matched_atoms))
        open_atoms = [n for n in range(len(self.atoms)) if n not in matched_atoms]
        plan = []
        while open_atoms:
            best = min(open_atoms, key=lambda n: (*self._unbound(self.atoms[n], bound_variables), n))
            open_atoms.remove(best)
            atom = self.atoms[best]
            bound_positions, free, repeats = [], [], []
            new: set[int] = set()
            for position, name in enumerate(atom[1:], 1):
                index = scope.index(name)
                if index >= len(scope.domains) or index in bound_variables:
                    bound_positions.append((position, index))
                elif index in new:
                    repeats.append((position, index))
                else:
                    free.append((position, index))
                    new.add(index)
            bound_variables |= new
            indexes = tuple((p, n, self.facts.by_argument(atom[0], p)) for p, n in bound_positions) if free else ()
            plan.append(_Lookup(scope.grounder(atom), indexes, tuple(free), tuple(repeats), atom[0]))
        return tuple(plan)

    def _unbound(self, atom: Atom, bound: set[int]) -> tuple[bool, bool, int]:
        """Returns whether any variable of ``atom`` is unbound, whether all arguments are, and how many variables."""
        unbound = self.scope.variables(atom) - bound
        return bool(unbound), len(unbound) == len(atom) - 1, len(unbound)
