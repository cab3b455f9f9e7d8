"""Grounds the action schemas of a problem, one location of the player at a time.

In ALFWorld exactly one fact ``atLocation`` holds in every state, and nearly every action has it as a precondition. So
operators are grounded on demand, for the location at which the player is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envsuite.alfworld.joins import Binding, Grounder, Join
from envsuite.alfworld.pddl import Action, Atom, Conjunction, Domain, PDDLProblem
from envsuite.alfworld.reachability import OF_TYPE, Reachability


class Operator(NamedTuple):
    """A grounded operator: a schema applied to objects. Its static preconditions hold and are left out."""

    objects: tuple[str, ...]
    """The objects of the action's parameters, then of the disjunct's variables."""
    positive_preconditions: tuple[Atom, ...]
    """Fluents that must hold, besides the location."""
    negative_preconditions: tuple[Atom, ...]
    """Fluents that must not hold."""


@dataclass(frozen=True, slots=True)
class GroundEffect:
    """An effect of an operator, with the conditions that its preconditions leave open."""

    fluent: Atom
    positive: bool
    """True adds the fluent, false deletes it."""
    positive_conditions: tuple[Atom, ...]
    negative_conditions: tuple[Atom, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """An action schema with one disjunct of its precondition, prepared for grounding."""

    action: Action
    join: Join
    """The positive preconditions."""
    locations: tuple[Grounder, ...]
    """Location preconditions; more than one location at a time is impossible."""
    fluents: tuple[Grounder, ...]
    """The other positive preconditions that are fluents."""
    negative: tuple[Grounder, ...]
    """Negative preconditions."""
    added: tuple[tuple[Grounder, tuple[Grounder, ...]], ...] | None
    """Unconditional add effects, each with the positive preconditions of the same predicate.

    ``None`` if some effect has no such precondition: then every operator may change something.
    """
    location: int | None
    """Number of the join's atom that is the location precondition."""
    elsewhere: Join | None
    """The join without that atom, where the location decides about the location's own variables only."""
    location_variables: frozenset[str]
    """Those variables."""
    late: int | None
    """Number of an atom whose predicate has no fact in the initial state: grounding waits until it has one."""

    @property
    def late_predicate(self) -> str | None:
        """Predicate of the late precondition."""
        return None if self.late is None else self.join.atoms[self.late][0]


class Grounding:
    """The reachable facts of a problem, and its operators on demand.

    Raises:
        MalformedPDDL: There are too many facts.
    """

    def __init__(self, domain: Domain, problem: PDDLProblem) -> None:
        self.domain = domain
        self.problem = problem
        self.reachability = Reachability(domain, problem)
        self.facts = self.reachability.facts
        self.fluent_predicates = self.reachability.fluent_predicates
        self.objects_of_type = self.reachability.objects_of_type
        self.is_fluent = self.reachability.is_fluent
        self.initial_predicates = frozenset(atom[0] for atom in problem.init)
        """Predicates that have a fact in the initial state."""
        self.location_predicate = self._find_location_predicate()
        """The predicate of which exactly one fact holds in every state; ``None`` if there is none."""
        schemas = [self._schema(action, disjunct) for action in domain.actions for disjunct in action.precondition]
        self.schemas = [schema for schema in schemas if not schema.join.scope.unsatisfiable]

    def locations(self) -> list[Atom]:
        """Returns the location facts, sorted."""
        if self.location_predicate is None:
            return []
        return sorted(self.facts.by_predicate.get(self.location_predicate, ()))

    def operators(self, schema: Schema, location: Atom | None, late: Atom | None = None) -> Iterator[Operator]:
        """Yields the operators of a schema whose static preconditions hold.

        Args:
            schema: The schema.
            location: The location fact that holds; ``None`` grounds for any location, and :meth:`bind_location` then
                says which objects the operator has at one.
            late: The fact that matches the schema's late precondition, where it has one.
        """
        join = schema.join
        matches = []
        if location is not None and schema.location is not None:
            matches.append((schema.location, location))
        elif schema.elsewhere is not None:
            join = schema.elsewhere
        if late is not None and schema.late is not None:
            matches.append((schema.late, late))
        start = join.unify(matches)
        for binding in join.solutions(tuple(number for number, _ in matches), start) if start is not None else ():
            operator = self._operator(schema, binding, location)
            if operator is not None:
                yield operator

    def bind_location(self, schema: Schema, objects: Sequence[str], location: Binding | None) -> tuple[str, ...] | None:
        """Returns the objects of an operator at a location; ``None`` if it is inapplicable or without effect there.

        Args:
            schema: The operator's schema.
            objects: Its objects, empty where the location decides.
            location: The binding of the location, from :meth:`unify_location`.
        """
        if location is None:
            return None
        scope = schema.join.scope
        binding = [local or own for local, own in zip(location, scope.binding(objects), strict=True)]
        return scope.objects(binding) if self._has_effect(schema, binding) else None

    def unify_location(self, schema: Schema, location: Atom | None) -> Binding | None:
        """Returns the binding by which a location meets a schema's precondition; ``None`` if it does not."""
        matches = [(schema.location, location)] if location is not None and schema.location is not None else []
        return schema.join.unify(matches)

    def effects(self, schema: Schema, objects: Sequence[str]) -> tuple[GroundEffect, ...]:
        """Returns the effects of an operator, those that add first.

        Leaves out effects that the preconditions make void, and deletes of what is added under the same condition.
        """
        binding = schema.join.scope.binding(objects)
        holds = {ground(binding) for ground in (*schema.locations, *schema.fluents)}
        fails = {ground(binding) for ground in schema.negative}
        effects: list[GroundEffect] = []
        always: set[Atom] = set()
        for effect in schema.action.effects:
            atom = self._substitute(schema, effect.atom, binding)
            if effect.positive and effect.unconditional:
                always.add(atom)
            if not self.is_fluent(atom) or atom in (holds if effect.positive else fails):
                continue
            for disjunct in effect.condition:
                condition = self._open_condition(disjunct, schema, binding, holds, fails)
                if condition is not None:
                    effects.append(GroundEffect(atom, effect.positive, *condition))
        adds = tuple(e for e in effects if e.positive)
        keys = {(e.fluent, e.positive_conditions, e.negative_conditions) for e in adds}
        deletes = (e for e in effects if not (e.positive or e.fluent in always or e.fluent in e.negative_conditions))
        return (*adds, *(e for e in deletes if (e.fluent, e.positive_conditions, e.negative_conditions) not in keys))

    def _substitute(self, schema: Schema, atom: Atom, binding: Binding) -> Atom:
        indices = schema.join.scope.indices
        return (atom[0], *(binding[indices[name]] if name in indices else name for name in atom[1:]))

    def _open_condition(
        self, condition: Conjunction, schema: Schema, binding: Binding, holds: set[Atom], fails: set[Atom]
    ) -> tuple[tuple[Atom, ...], tuple[Atom, ...]] | None:
        """Returns the fluents of ``condition`` that the preconditions leave open, positive and negative ones.

        Returns ``None`` where the condition can never hold together with the preconditions.
        """
        positive: list[Atom] = []
        negative: list[Atom] = []
        for literal in condition.literals:
            atom = self._substitute(schema, literal.atom, binding)
            if self.is_fluent(atom):
                if atom in (fails if literal.positive else holds):
                    return None
                if atom not in (holds if literal.positive else fails):
                    (positive if literal.positive else negative).append(atom)
            elif (atom in self.facts.facts) != literal.positive:
                return None
        if not set(positive).isdisjoint(negative):
            return None
        return tuple(positive), tuple(negative)

    def _operator(self, schema: Schema, binding: Binding, location: Atom | None) -> Operator | None:
        if location is not None and len(schema.locations) > 1 and any(g(binding) != location for g in schema.locations):
            return None  # it needs two locations at once
        positive = [ground(binding) for ground in schema.fluents]
        negative = []
        for ground in schema.negative:
            atom = ground(binding)
            if self.is_fluent(atom):
                if atom == location or atom in positive:
                    return None
                negative.append(atom)
            elif atom in self.facts.facts:
                return None
        if (location is not None or schema.location is None) and not self._has_effect(schema, binding):
            return None
        return Operator(schema.join.scope.objects(binding), tuple(positive), tuple(negative))

    def _has_effect(self, schema: Schema, binding: Binding) -> bool:
        """Whether the operator changes some state; ALFWorld does not offer those that do not."""
        if schema.added is None:
            return True
        for ground, before in schema.added:
            atom = ground(binding)
            if all(grounder(binding) != atom for grounder in before):
                return True
        return bool(self.effects(schema, schema.join.scope.objects(binding)))

    def _schema(self, action: Action, disjunct: Conjunction) -> Schema:
        join = self.reachability.join(action, disjunct, True)
        scope = join.scope
        positive = [atom for atom in join.atoms if not atom[0].startswith(OF_TYPE)]
        adds = [e.atom for e in action.effects if e.positive and e.unconditional]
        add_grounders = tuple(
            (scope.grounder(atom), tuple(scope.grounder(p) for p in positive if p[0] == atom[0])) for atom in adds
        )
        locations = [n for n, atom in enumerate(join.atoms) if atom[0] == self.location_predicate]
        fluents = self.fluent_predicates - {self.location_predicate}
        late = [n for n, atom in enumerate(join.atoms) if atom[0] in fluents - self.initial_predicates]
        elsewhere = None
        own: frozenset[str] = frozenset()
        if len(locations) == 1:
            other_atoms = [atom for n, atom in enumerate(join.atoms) if n not in locations]
            negative = (x.atom for x in disjunct.literals if not x.positive)
            used = {name for atom in (*other_atoms, *negative) for name in atom[1:]}
            own = frozenset(n for n in join.atoms[locations[0]][1:] if len(scope.domain(n)) > 1)
            elsewhere = Join(other_atoms, scope, self.facts) if own.isdisjoint(used) else None
        return Schema(
            action=action,
            join=join,
            locations=tuple(scope.grounder(atom) for atom in positive if atom[0] == self.location_predicate),
            fluents=tuple(scope.grounder(atom) for atom in positive if atom[0] in fluents),
            negative=tuple(scope.grounder(x.atom) for x in disjunct.literals if not x.positive),
            added=None if any(not before for _, before in add_grounders) else add_grounders,
            location=locations[0] if locations else None,
            elsewhere=elsewhere,
            location_variables=own,
            late=max(late, key=lambda n: len(self.facts.by_predicate.get(join.atoms[n][0], ())), default=None),
        )

    def _find_location_predicate(self) -> str | None:
        """Returns, of the predicates of which exactly one fact holds in every state, the one with most facts."""
        candidates = [
            predicate
            for predicate in sorted(self.fluent_predicates)
            if sum(atom[0] == predicate for atom in self.problem.init) == 1
            and all(_exchanges(action, predicate) for action in self.domain.actions)
        ]
        return max(candidates, key=lambda predicate: len(self.facts.by_predicate[predicate]), default=None)


def _exchanges(action: Action, predicate: str) -> bool:
    """Whether the action leaves the predicate's facts alone, or replaces one that it requires by another."""
    effects = [e for e in action.effects if e.atom[0] == predicate]
    if not effects:
        return True
    adds = [e for e in effects if e.positive]
    deletes = [e for e in effects if not e.positive]
    if len(adds) != 1 or len(deletes) != 1 or not all(e.unconditional for e in effects):
        return False
    return all(any(x.positive and x.atom == deletes[0].atom for x in d.literals) for d in action.precondition)
