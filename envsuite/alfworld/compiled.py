"""Compiles a game: its applicable actions by location, their commands, effects and answers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.fluents import Fluents
from envsuite.alfworld.goal_test import GoalTest
from envsuite.alfworld.grammar import Symbol, parse_grammar
from envsuite.alfworld.grammar_check import check
from envsuite.alfworld.grounding import Grounding, Schema
from envsuite.alfworld.joins import Binding
from envsuite.alfworld.names import spoken_names
from envsuite.alfworld.pddl import Action, Atom, MalformedPDDL
from envsuite.alfworld.pddl_parser import parse_domain, parse_problem
from envsuite.alfworld.rendering import FeedbackRenderer, Piece, bind, command_form, render

MAX_CACHED = 256
"""Sets of fluents for which a location caches the applicable commands, and a game whether it is won."""

_domain = lru_cache(16)(parse_domain)
_grammar = lru_cache(64)(parse_grammar)


class GroundOperator(NamedTuple):
    """A grounded operator with its preconditions as bits. Several may share one command."""

    command: str
    mask: int
    """Bits of the fluents in its preconditions."""
    value: int
    """Those of them that must be set; the others must not be."""
    schema: Schema
    objects: tuple[str, ...]


class Transition:
    """The effects of an operator as bits, and the answer to its command."""

    __slots__ = ("added", "conditional", "deleted", "feedback", "location")

    def __init__(self, game: CompiledGame, operator: GroundOperator, objects: Sequence[str]) -> None:
        fluents = game.fluents
        self.added = self.deleted = 0
        self.conditional: list[tuple[int, int, int, int]] = []
        """Conditional effects: mask and value of the condition, bits added and deleted."""
        self.location: int | None = None
        """Number of the location to which the player goes."""
        for effect in game.grounding.effects(operator.schema, objects):
            bit = fluents.bit(effect.fluent)
            if effect.positive_conditions or effect.negative_conditions:
                value = fluents.mask(effect.positive_conditions)
                mask = value | fluents.mask(effect.negative_conditions)
                self.conditional.append((mask, value, bit, 0) if effect.positive else (mask, value, 0, bit))
            else:
                self._set(bit, effect.positive)
                if effect.positive and effect.fluent in game.location_numbers:
                    self.location = game.location_numbers[effect.fluent]
            name, arguments = effect.fluent[0], effect.fluent[1:]
            if name in fluents.announced:
                self._set(fluents.bit((f"announced {name}", *arguments)), effect.positive)
            if name in fluents.deleted:
                self._set(fluents.bit((f"not_{name}", *arguments)), not effect.positive)
        action = operator.schema.action
        bindings = bind(action.parameters, objects[: len(action.parameters)])
        self.feedback: tuple[Piece, ...] = game.renderer.prepare(game.grammar.actions[action.name].feedback, bindings)

    def _set(self, bit: int, on: bool) -> None:
        self.added = self.added | bit if on else self.added & ~bit
        self.deleted = self.deleted & ~bit if on else self.deleted | bit

    def apply(self, state: int) -> int:
        """Returns the successor of ``state``."""
        adds, deletes = self.added, self.deleted
        for mask, value, more, less in self.conditional:
            if state & mask == value:
                adds |= more
                deletes |= less
        return state ^ (state & deletes) | adds


class _Operators(NamedTuple):
    """The operators of a location that are grounded so far."""

    here: Mapping[str, tuple[GroundOperator, ...]]
    """By command, where they differ from those for any location."""
    always: Sequence[str]
    """Commands that are applicable in every state."""
    tested: Sequence[GroundOperator]
    """Operators whose applicability depends on the state."""
    mask: int
    """All bits in the preconditions of ``tested``."""
    late: int
    """Bits of the late preconditions for which operators are grounded."""
    commands: dict[int, tuple[str, ...]]
    """Cache of the applicable commands, by the bits in ``mask``."""


class Location:
    """The operators at one location of the player.

    Operators with a late precondition are grounded when it first holds: what can be done with an object, when it is
    held.

    Args:
        game: The game.
        fact: The fact that the player is there; ``None`` in a game without locations.
    """

    def __init__(self, game: CompiledGame, fact: Atom | None) -> None:
        self._game = game
        self._fact = fact
        self._lock = threading.Lock()
        self._anywhere = game.anywhere if fact is not None else {}
        self._bindings: dict[Schema, Binding | None] = {}
        self._transitions: dict[GroundOperator, Transition] = {}
        here: dict[str, tuple[GroundOperator, ...]] = {}
        for command, operators in self._anywhere.items():
            if any(o.schema.location is not None and self._objects(o) is None for o in operators):
                here[command] = tuple(o for o in operators if self._objects(o) is not None)
        self._operators = self._add(here, game.operators(fact), 0)

    def operators(self, command: str) -> tuple[GroundOperator, ...]:
        """Returns the operators of a command in the order in which to try them; ask :meth:`commands` first."""
        operators = self._operators.here.get(command)
        return self._anywhere.get(command, ()) if operators is None else operators

    def commands(self, state: int) -> tuple[str, ...]:
        """Returns the commands of all applicable operators, sorted."""
        operators = self._operators
        if state & self._game.late & ~operators.late:
            operators = self._ground_late(state)
        key = state & operators.mask
        commands = operators.commands.get(key)
        if commands is None:
            matches = [command for command, mask, value, _, _ in operators.tested if state & mask == value]
            commands = tuple(sorted({*matches, *operators.always}))
            if len(operators.commands) >= MAX_CACHED:
                operators.commands.clear()
            operators.commands[key] = commands
        return commands

    def _ground_late(self, state: int) -> _Operators:
        """Grounds the operators of the late preconditions that hold in ``state``."""
        with self._lock:
            operators = self._operators
            fresh = state & self._game.late & ~operators.late
            late = self._game.fluents.in_state(fresh)
            new = [operator for fluent in late for operator in self._game.operators(self._fact, fluent)]
            self._operators = self._add(dict(operators.here), new, operators.late | fresh)
            return self._operators

    def _add(self, here: dict[str, tuple[GroundOperator, ...]], new: Iterable[GroundOperator], late: int) -> _Operators:
        for operator in new:
            before = here.get(operator.command, self._anywhere.get(operator.command, ()))
            here[operator.command] = tuple(sorted((*before, operator), key=self._game.order)) if before else (operator,)
        anywhere = [o for command, operators in self._anywhere.items() if command not in here for o in operators]
        candidates = [o for o in anywhere if o.mask] + [o for operators in here.values() for o in operators]
        mask = 0
        for operator in candidates:
            mask |= operator.mask
        return _Operators(here, [o.command for o in anywhere if not o.mask], candidates, mask, late, {})

    def transition(self, operator: GroundOperator) -> Transition:
        """Returns the transition of an applicable operator; compiled on first use."""
        transition = self._transitions.get(operator)
        if transition is None:
            objects = self._objects(operator) or operator.objects
            transition = self._transitions[operator] = Transition(self._game, operator, objects)
        return transition

    def _objects(self, operator: GroundOperator) -> tuple[str, ...] | None:
        schema = operator.schema
        if schema not in self._bindings:
            self._bindings[schema] = self._game.grounding.unify_location(schema, self._fact)
        return self._game.grounding.bind_location(schema, operator.objects, self._bindings[schema])


class CompiledGame:
    """A game as its file describes it, shared by all who play it.

    Only its caches change, so any number of threads may use it.

    Args:
        domain: Text of ``pddl_domain``.
        problem: Text of ``pddl_problem``.
        grammar: Text of ``grammar``.

    Raises:
        MalformedPDDL: The texts are not those of a game that can be played and won.
    """

    def __init__(self, domain: str, problem: str, grammar: str) -> None:
        digest = hashlib.sha256("\0".join((domain, problem, grammar)).encode("utf-8", "surrogatepass"))
        self.digest = digest.hexdigest()[:16]
        """Identifies the texts, and so the meaning of a state."""
        parsed_domain = _domain(domain)
        self.grammar = _grammar(grammar)
        check(self.grammar, parsed_domain)
        self.grounding = Grounding(parsed_domain, parse_problem(problem, parsed_domain))
        self.fluents = Fluents(self.grounding, self.grammar)
        names = spoken_names(name for atom in self.grounding.problem.init for name in atom[1:])
        self.names = {name: names.get(name, name) for name in self.grounding.problem.objects}
        """The display name of each object."""
        self.renderer = FeedbackRenderer(self.grammar, self.fluents, self.names)
        self._commands: dict[tuple[str, ...], str] = {}
        templates = [(action, self.grammar.actions[action.name].template) for action in parsed_domain.actions]
        self._named_parameters = {a.name: self.renderer.parameters(text, a.parameters) for a, text in templates}
        self._forms = {a.name: command_form(text, a.parameters) for a, text in templates}
        facts = self.grounding.locations()
        self.location_numbers: Mapping[Atom, int] = {fact: number for number, fact in enumerate(facts)}
        """Numbers of the locations, by the fact that the player is there."""
        self._location_facts: Sequence[Atom | None] = facts or [None]
        self._locations: list[Location | None] = [None] * len(self._location_facts)
        self._order = {schema: number for number, schema in enumerate(self.grounding.schemas)}
        self._local: dict[str | None, list[Schema]] = {}
        """Schemas that are grounded for each location, by the predicate of their late precondition."""
        for schema in (schema for schema in self.grounding.schemas if self._is_local(schema)):
            self._local.setdefault(schema.late_predicate, []).append(schema)
        late = (self.grounding.facts.by_predicate.get(p, ()) for p in self._local if p is not None)
        self.late = self.fluents.mask(fluent for fluents in late for fluent in fluents)
        """Bits of all late preconditions."""
        self.anywhere: dict[str, tuple[GroundOperator, ...]] = {}
        """Operators for several locations, by command, in the order in which they are tried."""
        for operator in self._ground((s for s in self.grounding.schemas if not self._is_local(s)), None, None):
            operators = (*self.anywhere.get(operator.command, ()), operator)
            self.anywhere[operator.command] = tuple(sorted(operators, key=self.order))
        self.initial_state = self.fluents.initial_state()
        self.initial_location = self.location_of(self.initial_state)
        """Number of the location where the player begins."""
        self._goal = GoalTest(self.fluents)
        self._won: dict[int, bool] = {}
        intro = render(self.renderer.prepare((Symbol("intro"),), bind((), ())), self.initial_state)
        commands = self.location(self.initial_location).commands(self.initial_state)
        self.start = GameTurn(intro, commands, self.won(self.initial_state), True)
        """The turn after a reset."""

    def location_of(self, state: int) -> int:
        """Returns the number of the player's location."""
        return next((n for fact, n in self.location_numbers.items() if state & self.fluents.bit(fact)), 0)

    def location(self, number: int) -> Location:
        """Returns a location; compiled on first use."""
        location = self._locations[number]
        if location is None:
            location = self._locations[number] = Location(self, self._location_facts[number])
        return location

    def won(self, state: int) -> bool:
        """Whether the goal is reached."""
        key = state & self._goal.mask
        won = self._won.get(key)
        if won is None:
            if len(self._won) >= MAX_CACHED:
                self._won.clear()
            won = self._won[key] = self._goal.holds(state)
        return won

    def operators(self, location: Atom | None, late: Atom | None = None) -> Iterator[GroundOperator]:
        """Yields the operators at a location, of the schemas that are grounded for each location.

        Args:
            location: The fact that the player is there.
            late: The late precondition of the schemas; ``None`` for schemas without one.
        """
        return self._ground(self._local.get(None if late is None else late[0], ()), location, late)

    def _ground(self, schemas: Iterable[Schema], location: Atom | None, late: Atom | None) -> Iterator[GroundOperator]:
        for schema in schemas:
            for objects, positive, negative in self.grounding.operators(schema, location, late):
                value = self.fluents.mask(positive)
                mask = value | self.fluents.mask(negative) if negative else value
                yield GroundOperator(self._command(schema.action, objects), mask, value, schema, objects)

    def order(self, operator: GroundOperator) -> tuple[int, tuple[str, ...]]:
        """Sorts the operators of one command by the order in which they are tried."""
        return self._order[operator.schema], operator.objects

    def _is_local(self, schema: Schema) -> bool:
        """Whether applicability or command of the schema's operators depend on the location."""
        if not self.location_numbers:
            return True
        names = {schema.action.parameters[n][0] for n in self._named_parameters[schema.action.name]}
        return schema.location is not None and (schema.elsewhere is None or bool(schema.location_variables & names))

    def _command(self, action: Action, objects: Sequence[str]) -> str:
        form = self._forms[action.name]
        if form is not None:
            return "".join([part if isinstance(part, str) else self.names[objects[part]] for part in form])
        key = (action.name, *(objects[n] for n in self._named_parameters[action.name]))
        command = self._commands.get(key)
        if command is None:
            template = self.grammar.actions[action.name].template
            command = self.renderer.constant(template, bind(action.parameters, objects[: len(action.parameters)]))
            if command is None:
                raise MalformedPDDL(f"grammar: the template of {action.name} depends on the state of the game")
            self._commands[key] = command
        return command
