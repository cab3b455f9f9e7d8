"""Relaxed reachability: finds the static facts of a problem, and every fluent that may ever hold.

The facts that may hold are those reachable when deletes and negative preconditions are ignored: a fixpoint of joins.
"""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.alfworld.joins import FactIndex, Join, Scope
from envsuite.alfworld.pddl import Action, Atom, Conjunction, Domain, Literal, MalformedPDDL, PDDLProblem

MAX_FACTS = 200_000
"""Reachable facts of one game; ALFWorld's largest has 4,000."""

OF_TYPE = ":"
"""Prefix of the static predicate that states the type of an object."""


class Reachability:
    """The facts of a problem: static ones, and fluents that are reachable under delete relaxation.

    Raises:
        MalformedPDDL: There are too many.
    """

    def __init__(self, domain: Domain, problem: PDDLProblem) -> None:
        self.domain = domain
        self.problem = problem
        self.fluent_predicates = frozenset(e.atom[0] for action in domain.actions for e in action.effects)
        """Predicates that occur in an effect; all others are static."""
        self.objects_of_type = _objects_of_type(domain, problem)
        self.facts = FactIndex()
        """Static facts and reachable fluents."""
        self._add_static_facts()
        self._add_reachable_fluents()

    def is_fluent(self, atom: Atom) -> bool:
        """Whether an atom is a reachable fluent: neither static nor impossible."""
        return atom[0] in self.fluent_predicates and atom in self.facts.facts

    def join(self, action: Action, disjunct: Conjunction, negative: bool, more: Sequence[Atom] = ()) -> Join:
        """Returns the join of the positive literals in a disjunct of an action's precondition, and of ``more``.

        Static literals with a single variable are not joined but restrict that variable's domain.

        Args:
            action: The action.
            disjunct: One disjunct of its precondition.
            negative: Whether negative static literals restrict domains, too.
            more: Further atoms that must hold.
        """
        variables = (*action.parameters, *disjunct.variables)
        domains = {name: self.objects_of_type.get(type_, frozenset()) for name, type_ in variables}
        atoms = []
        for literal in (*disjunct.literals, *(Literal(atom, True) for atom in more)):
            names = set(literal.atom[1:]) & domains.keys()
            if len(names) == 1 and literal.atom[0] not in self.fluent_predicates and literal.positive | negative:
                (name,) = names
                satisfying = self._satisfying(literal.atom, name)
                domains[name] = domains[name] & satisfying if literal.positive else domains[name] - satisfying
            elif literal.positive:
                atoms.append(literal.atom)
        names = {name for atom in atoms for name in atom[1:]}
        atoms += [(OF_TYPE + type_, name) for name, type_ in variables if name not in names]
        return Join(atoms, Scope(list(domains), list(domains.values())), self.facts)

    def _satisfying(self, atom: Atom, name: str) -> frozenset[str]:
        """Returns the objects for which a static atom with the single variable ``name`` holds."""
        positions = [n for n, term in enumerate(atom) if term == name]
        objects = {fact[positions[0]] for fact in self.facts.by_predicate.get(atom[0], ())}
        return frozenset(o for o in objects if tuple(o if term == name else term for term in atom) in self.facts.facts)

    def _add_static_facts(self) -> None:
        for type_ in sorted(self.objects_of_type):
            for name in sorted(self.objects_of_type[type_]):
                self.facts.add((OF_TYPE + type_, name))
        for name in sorted(self.problem.objects):
            self.facts.add(("=", name, name))
        for atom in self.problem.init:
            if atom[0] not in self.fluent_predicates:
                self.facts.add(atom)

    def _add_reachable_fluents(self) -> None:
        """Adds the fluents of the initial state and, up to the fixpoint, those that relaxed rules derive from them."""
        queue = [atom for atom in self.problem.init if atom[0] in self.fluent_predicates]
        known_atoms = set(queue)
        watchers: dict[str, list[tuple[_RelaxedRule, int]]] = {}
        for rule in self._relaxed_rules():
            fluents = [n for n, atom in enumerate(rule.body.atoms) if atom[0] in self.fluent_predicates]
            for number in fluents:
                watchers.setdefault(rule.body.atoms[number][0], []).append((rule, number))
            if not fluents:
                queue += rule.derive(None, None, known_atoms)
        for position, atom in enumerate(queue):  # grows during the iteration
            if position > MAX_FACTS:
                raise MalformedPDDL(f"pddl_problem has more than {MAX_FACTS:,} facts that may hold")
            self.facts.add(atom)
            for rule, number in watchers.get(atom[0], ()):
                queue += rule.derive(number, atom, known_atoms)

    def _relaxed_rules(self) -> list[_RelaxedRule]:
        """Returns the rule of each add effect, without rules that another one subsumes."""
        rules = []
        for action, disjunct in ((a, d) for a in self.domain.actions for d in a.precondition):
            heads: dict[tuple[Atom, ...], list[Atom]] = {}
            for effect in action.effects:
                for when in effect.condition if effect.positive else ():
                    heads.setdefault(tuple(x.atom for x in when.literals if x.positive), []).append(effect.atom)
            for condition, atoms in heads.items():
                body = self.join(action, disjunct, False, condition)
                if not body.scope.unsatisfiable:
                    rules.append(_RelaxedRule(body, tuple(atoms)))
        general_rules: list[_RelaxedRule] = []
        for candidate in sorted(rules, key=lambda rule: len(rule.body.atoms)):
            if not any(rule.subsumes(candidate) for rule in general_rules):
                general_rules.append(candidate)
        return general_rules


class _RelaxedRule:
    """A rule of the delete relaxation: where the body's atoms hold, so may the heads."""

    def __init__(self, body: Join, heads: tuple[Atom, ...]) -> None:
        self.body = body
        self.heads = heads
        self._grounders = tuple((body.scope.grounder(atom), body.scope.variables(atom)) for atom in heads)
        self._matched: set[tuple[int | None, tuple[str, ...]]] = set()
        self._relevant: dict[int | None, tuple[Sequence[int], bool]] = {}

    def subsumes(self, rule: _RelaxedRule) -> bool:
        """Whether this rule derives everything that ``rule`` derives."""
        return (
            set(self.body.atoms) <= set(rule.body.atoms)
            and set(self.heads) >= set(rule.heads)
            and all(
                rule.body.scope.domain(name) <= self.body.scope.domain(name)
                for atom in (*self.body.atoms, *self.heads)
                for name in atom[1:]
            )
        )

    def derive(self, number: int | None, fact: Atom | None, known_atoms: set[Atom]) -> list[Atom]:
        """Returns the facts that follow when ``fact`` matches atom ``number`` of the body.

        Leaves out those in ``known_atoms``, and adds the others to it. Facts that differ only in objects that neither
        the other atoms nor the heads mention are matched once.
        """
        binding = self.body.unify([(number, fact)] if number is not None and fact is not None else [])
        if binding is None:
            return []
        if number not in self._relevant:
            self._relevant[number] = self._relevant_variables(number)
        relevant, is_determined = self._relevant[number]
        if is_determined and all(ground(binding) in known_atoms for ground, _ in self._grounders):
            return []
        key = (number, tuple(binding[n] for n in relevant))
        if key in self._matched:
            return []
        self._matched.add(key)
        atoms = []
        for solution in self.body.solutions(() if number is None else (number,), binding):
            for ground, _ in self._grounders:
                atom = ground(solution)
                if atom not in known_atoms:
                    known_atoms.add(atom)
                    atoms.append(atom)
        return atoms

    def _relevant_variables(self, number: int | None) -> tuple[Sequence[int], bool]:
        """Returns the variables of the heads and of the atoms besides ``number``, and whether it binds all heads."""
        scope = self.body.scope
        in_heads = set().union(*(variables for _, variables in self._grounders))
        other_atoms = [atom for n, atom in enumerate(self.body.atoms) if n != number]
        bound_variables = set(scope.bound) | (scope.variables(self.body.atoms[number]) if number is not None else set())
        return sorted(in_heads.union(*map(scope.variables, other_atoms))), in_heads <= bound_variables


def _objects_of_type(domain: Domain, problem: PDDLProblem) -> dict[str, frozenset[str]]:
    """Returns the objects of each type, those of its subtypes included."""
    objects: dict[str, set[str]] = {}
    for name, type_ in problem.objects.items():
        for supertype in (type_, *domain.supertypes[type_]):
            objects.setdefault(supertype, set()).add(name)
    return {type_: frozenset(names) for type_, names in objects.items()}
