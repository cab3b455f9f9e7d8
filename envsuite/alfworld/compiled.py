"""A game made ready to be played: its state is one number, a bit for each fact that matters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from envsuite.alfworld.engine import Turn
from envsuite.alfworld.grammar import Grammar, Symbol, read_grammar
from envsuite.alfworld.grounding import Ground, Rule
from envsuite.alfworld.joins import Frame, Join, Row
from envsuite.alfworld.names import spoken_names
from envsuite.alfworld.pddl import (
    Action,
    Atom,
    Both,
    Condition,
    Domain,
    Either,
    Literal,
    Malformed,
    Some,
    cases,
    read_domain,
    read_problem,
)
from envsuite.alfworld.texts import Piece, Texts, check, form, scene, speak

MEMORIES = 256
"""Sets of facts for which a place remembers the commands."""

_domain = lru_cache(16)(read_domain)
_grammar = lru_cache(64)(read_grammar)


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
        self._numbers[atom] = len(self._numbers)

    def of(self, atom: Atom) -> int:
        """The bit of a fact; 0 if nothing reads it."""
        number = self._numbers.get(atom)
        return 0 if number is None else 1 << number

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


class Move:
    """What an operator does to the state, and what is said then."""

    __slots__ = ("made", "place", "text", "unmade", "when")

    def __init__(self, game: Compiled, way: Way, objects: Sequence[str]) -> None:
        bits = game.bits
        self.made = self.unmade = 0
        self.when: list[tuple[int, int, int, int]] = []
        """Under conditions: bits that are tested, those of them that must be set, bits made and unmade."""
        self.place: int | None = None
        for change in game.ground.changes(way.rule, objects):
            real = bits.of(change.atom)
            if change.required or change.refused:
                need = bits.mask(change.required)
                test = need | bits.mask(change.refused)
                self.when.append((test, need, real, 0) if change.positive else (test, need, 0, real))
            else:
                self._set(real, change.positive)
                if change.positive and change.atom in game.numbers:
                    self.place = game.numbers[change.atom]
            name, rest = change.atom[0], change.atom[1:]
            if name in bits.announced:
                self._set(bits.of((f"announced {name}", *rest)), change.positive)
            if name in bits.unmade:
                self._set(bits.of((f"not_{name}", *rest)), not change.positive)
        action = way.rule.action
        given = scene(action.parameters, objects[: len(action.parameters)])
        self.text: tuple[Piece, ...] = game.texts.prepare(game.grammar.actions[action.name].feedback, given)

    def _set(self, bit: int, on: bool) -> None:
        self.made = self.made | bit if on else self.made & ~bit
        self.unmade = self.unmade & ~bit if on else self.unmade | bit

    def apply(self, state: int) -> int:
        """The state afterwards."""
        made, unmade = self.made, self.unmade
        for test, need, more, less in self.when:
            if state & test == need:
                made |= more
                unmade |= less
        return state ^ (state & unmade) | made


class Way(NamedTuple):
    """One of the operators that a command may mean."""

    command: str
    test: int
    """Bits that matter."""
    need: int
    """Those of them that must be set; the others must not."""
    rule: Rule
    objects: tuple[str, ...]


class Place:
    """What can be typed where the player stands.

    Args:
        game: The game.
        fact: What says that the player is there; ``None`` in a game without places.
    """

    def __init__(self, game: Compiled, fact: Atom | None) -> None:
        self._game = game
        self._fact = fact
        self._anywhere = game.anywhere if fact is not None else {}
        self._here: dict[str, tuple[Way, ...]] = {}
        """By command what is different here."""
        for way in game.ways(fact, here=True):
            before = self._here.get(way.command) or self._anywhere.get(way.command, ())
            self._here[way.command] = (*before, way)
        self._starts: dict[Rule, Row | None] = {}
        for command, ways in self._anywhere.items():
            if any(way.rule.place is not None and self._objects(way) is None for way in ways):
                tried = self._here.get(command, ways)
                self._here[command] = tuple(w for w in tried if w not in ways or self._objects(w) is not None)
        elsewhere = [way for command, ways in self._anywhere.items() if command not in self._here for way in ways]
        self._always = [way.command for way in elsewhere if not way.test]
        self._tests = [way for way in elsewhere if way.test]
        self._tests += [way for ways in self._here.values() for way in ways]
        self._mask = 0
        for way in self._tests:
            self._mask |= way.test
        self._known: dict[int, tuple[str, ...]] = {}
        self._moves: dict[Way, Move] = {}

    def ways(self, command: str) -> tuple[Way, ...]:
        """What a command may mean, in the order in which it is tried."""
        ways = self._here.get(command)
        return self._anywhere.get(command, ()) if ways is None else ways

    def commands(self, state: int) -> tuple[str, ...]:
        """Admissible commands, sorted."""
        key = state & self._mask
        known = self._known.get(key)
        if known is None:
            found = [command for command, test, need, _, _ in self._tests if state & test == need]
            known = tuple(sorted({*found, *self._always}))
            if len(self._known) >= MEMORIES:
                self._known.clear()
            self._known[key] = known
        return known

    def move(self, way: Way) -> Move:
        """What a way does; worked out when it is first gone."""
        move = self._moves.get(way)
        if move is None:
            move = self._moves[way] = Move(self._game, way, self._objects(way) or way.objects)
        return move

    def _objects(self, way: Way) -> tuple[str, ...] | None:
        rule = way.rule
        if rule not in self._starts:
            self._starts[rule] = self._game.ground.arrival(rule, self._fact)
        return self._game.ground.settled(rule, way.objects, self._starts[rule])


class Compiled:
    """A game as its file describes it; shared by all who play it.

    Nothing of it changes but what it remembers, so that any number of threads may play it.

    Args:
        domain: Text of ``pddl_domain``.
        problem: Text of ``pddl_problem``.
        grammar: Text of ``grammar``.

    Raises:
        Malformed: The texts are not those of a game that can be played and won.
    """

    def __init__(self, domain: str, problem: str, grammar: str) -> None:
        digest = hashlib.sha256("\0".join((domain, problem, grammar)).encode("utf-8", "surrogatepass"))
        self.digest = digest.hexdigest()[:16]
        """Of the texts; states of one game mean nothing to another."""
        read = _domain(domain)
        self.grammar = _grammar(grammar)
        check(self.grammar, read)
        self.ground = Ground(read, read_problem(problem, read))
        self.bits = Bits(self.ground, self.grammar)
        self.names = self._names(read)
        """What things are called."""
        objects, bits = self.ground.problem.objects, self.bits
        self.texts = Texts(self.grammar, read, objects, self.names, bits.visible, bits.visible_with, bits.shown)
        self._commands: dict[tuple[str, ...], str] = {}
        self._spoken_of = {
            action.name: self.texts.parameters(self.grammar.actions[action.name].template, action.parameters)
            for action in read.actions
        }
        self._forms = {a.name: form(self.grammar.actions[a.name].template, a.parameters) for a in read.actions}
        atoms = self.ground.places()
        self.numbers: Mapping[Atom, int] = {atom: number for number, atom in enumerate(atoms)}
        """Places by the fact that makes them."""
        self._atoms: Sequence[Atom | None] = atoms or [None]
        self._places: list[Place | None] = [None] * len(self._atoms)
        self.anywhere: dict[str, tuple[Way, ...]] = {}
        """What can be typed at several places, by command, in the order in which it is tried."""
        for way in self.ways(None, here=False):
            self.anywhere[way.command] = (*self.anywhere.get(way.command, ()), way)
        self.start_state = self.bits.start()
        self._goal = _Goal(self)
        self._won: dict[int, bool] = {}
        self.start = self._begin()
        """The turn after a reset."""

    def place_of(self, state: int) -> int:
        """The number of the place at which the player stands."""
        return next((n for atom, n in self.numbers.items() if state & self.bits.of(atom)), 0)

    def place(self, number: int) -> Place:
        """A place; made when someone is there first."""
        place = self._places[number]
        if place is None:
            place = self._places[number] = Place(self, self._atoms[number])
        return place

    def won(self, state: int) -> bool:
        """The goal is reached."""
        key = state & self._goal.mask
        known = self._won.get(key)
        if known is None:
            if len(self._won) >= MEMORIES:
                self._won.clear()
            known = self._won[key] = self._goal.reached(state)
        return known

    def _names(self, domain: Domain) -> dict[str, str]:
        problem = self.ground.problem
        spoken = spoken_names(name for atom in problem.init for name in atom[1:])
        return {name: spoken.get(name, name) for name in problem.objects}

    def ways(self, place: Atom | None, here: bool) -> Iterator[Way]:
        """What may become possible at a place, and at no other; ``here`` false: at several."""
        for rule in self.ground.rules:
            if self._is_local(rule) != here:
                continue
            for _, objects, required, refused in self.ground.operators(rule, place):
                need = self.bits.mask(required)
                test = need | self.bits.mask(refused) if refused else need
                yield Way(self._command(rule.action, objects), test, need, rule, objects)

    def _is_local(self, rule: Rule) -> bool:
        """Whether and how it can be typed depends on the place."""
        if not self.numbers:
            return True
        spoken = {rule.action.parameters[n][0] for n in self._spoken_of[rule.action.name]}
        return rule.place is not None and (rule.elsewhere is None or not rule.own.isdisjoint(spoken))

    def _command(self, action: Action, objects: Sequence[str]) -> str:
        form = self._forms[action.name]
        if form is not None:
            return "".join([part if isinstance(part, str) else self.names[objects[part]] for part in form])
        key = (action.name, *(objects[n] for n in self._spoken_of[action.name]))
        command = self._commands.get(key)
        if command is None:
            spelling = self.grammar.actions[action.name]
            command = self.texts.fixed(spelling.template, scene(action.parameters, objects[: len(action.parameters)]))
            if command is None:
                raise Malformed(f"grammar: the template of {action.name} depends on what has happened in the game")
            self._commands[key] = command
        return command

    def _begin(self) -> Turn:
        text = speak(self.texts.prepare((Symbol("intro"),), scene((), ())), self.start_state)
        commands = self.place(self.place_of(self.start_state)).commands(self.start_state)
        return Turn(text, commands, self.won(self.start_state), True)


class _Goal:
    """What is wanted, as tests of bits: all of them, each in any of its ways."""

    def __init__(self, game: Compiled) -> None:
        self.bits = game.bits
        self.ground = game.ground
        self.mask = 0
        """All bits that matter."""
        found = self._test(game.ground.problem.goal)
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
            for row in join.answers(None, frame.template.copy()):
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
