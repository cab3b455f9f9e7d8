"""A game made ready to be played: what can be typed where, what it does, and what is said then."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from envsuite.alfworld.bits import Bits, Goal
from envsuite.alfworld.engine import Turn
from envsuite.alfworld.formulas import Action, Atom, Domain, Malformed
from envsuite.alfworld.grammar import Symbol, read_grammar
from envsuite.alfworld.grammar_check import check
from envsuite.alfworld.grounding import Ground, Rule
from envsuite.alfworld.joins import Row
from envsuite.alfworld.names import spoken_names
from envsuite.alfworld.pddl import read_domain, read_problem
from envsuite.alfworld.texts import Piece, Texts, form, scene, speak

MEMORIES = 256
"""Sets of facts for which a place remembers the commands."""

_domain = lru_cache(16)(read_domain)
_grammar = lru_cache(64)(read_grammar)


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


class _Offer(NamedTuple):
    """What is known of a place so far."""

    here: Mapping[str, tuple[Way, ...]]
    """By command what is different from what can be typed anywhere."""
    always: Sequence[str]
    tests: Sequence[Way]
    mask: int
    """All bits that matter to ``tests``."""
    guards: int
    """Bits of guards that have been seen set."""
    known: dict[int, tuple[str, ...]]
    """Commands by what those bits are."""


class Place:
    """What can be typed where the player stands.

    What needs a guard is worked out when the guard is first seen: what can be done with a thing, when it is held.

    Args:
        game: The game.
        fact: What says that the player is there; ``None`` in a game without places.
    """

    def __init__(self, game: Compiled, fact: Atom | None) -> None:
        self._game = game
        self._fact = fact
        self._lock = threading.Lock()
        self._anywhere = game.anywhere if fact is not None else {}
        self._starts: dict[Rule, Row | None] = {}
        self._moves: dict[Way, Move] = {}
        here: dict[str, tuple[Way, ...]] = {}
        for command, ways in self._anywhere.items():
            if any(way.rule.place is not None and self._objects(way) is None for way in ways):
                here[command] = tuple(way for way in ways if self._objects(way) is not None)
        self._offer = self._with(here, game.ways(fact), 0)

    def ways(self, command: str) -> tuple[Way, ...]:
        """What a command may mean in the state for which :meth:`commands` was asked, in the order of trying."""
        ways = self._offer.here.get(command)
        return self._anywhere.get(command, ()) if ways is None else ways

    def commands(self, state: int) -> tuple[str, ...]:
        """Admissible commands, sorted."""
        offer = self._offer
        if state & self._game.guards & ~offer.guards:
            offer = self._grown(state)
        key = state & offer.mask
        known = offer.known.get(key)
        if known is None:
            found = [command for command, test, need, _, _ in offer.tests if state & test == need]
            known = tuple(sorted({*found, *offer.always}))
            if len(offer.known) >= MEMORIES:
                offer.known.clear()
            offer.known[key] = known
        return known

    def _grown(self, state: int) -> _Offer:
        """With what the guards in ``state`` make possible."""
        with self._lock:
            offer = self._offer
            fresh = state & self._game.guards & ~offer.guards
            ways = [way for atom in self._game.bits.atoms(fresh) for way in self._game.ways(self._fact, atom)]
            self._offer = self._with(dict(offer.here), ways, offer.guards | fresh)
            return self._offer

    def _with(self, here: dict[str, tuple[Way, ...]], ways: Iterable[Way], guards: int) -> _Offer:
        for way in ways:
            before = here.get(way.command)
            if before is None:
                before = self._anywhere.get(way.command, ())
            here[way.command] = tuple(sorted((*before, way), key=self._game.order)) if before else (way,)
        elsewhere = [way for command, ways in self._anywhere.items() if command not in here for way in ways]
        tests = [way for way in elsewhere if way.test] + [way for ways in here.values() for way in ways]
        mask = 0
        for way in tests:
            mask |= way.test
        return _Offer(here, [way.command for way in elsewhere if not way.test], tests, mask, guards, {})

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
        self._order = {rule: number for number, rule in enumerate(self.ground.rules)}
        self._local: dict[str | None, list[Rule]] = {}
        """Rules that are worked out for each place, by the predicate of their guard."""
        for rule in (rule for rule in self.ground.rules if self._is_local(rule)):
            self._local.setdefault(rule.guarded, []).append(rule)
        guards = (self.ground.facts.by_predicate.get(p, ()) for p in self._local if p is not None)
        self.guards = self.bits.mask(atom for atoms in guards for atom in atoms)
        """Bits of the guards."""
        self.anywhere: dict[str, tuple[Way, ...]] = {}
        """What can be typed at several places, by command, in the order in which it is tried."""
        for way in self._ways((r for r in self.ground.rules if not self._is_local(r)), None, None):
            ways = (*self.anywhere.get(way.command, ()), way)
            self.anywhere[way.command] = tuple(sorted(ways, key=self.order))
        self.start_state = self.bits.start()
        self.start_place = self.place_of(self.start_state)
        """Number of the place where the player begins."""
        self._goal = Goal(self.bits)
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

    def ways(self, place: Atom | None, guard: Atom | None = None) -> Iterator[Way]:
        """What may become possible at a place, by the rules that are worked out for each place.

        Args:
            place: What says that the player is there.
            guard: Of the rules with this guard; ``None``: of those without.
        """
        return self._ways(self._local.get(None if guard is None else guard[0], ()), place, guard)

    def _ways(self, rules: Iterable[Rule], place: Atom | None, guard: Atom | None) -> Iterator[Way]:
        for rule in rules:
            for objects, required, refused in self.ground.operators(rule, place, guard):
                need = self.bits.mask(required)
                test = need | self.bits.mask(refused) if refused else need
                yield Way(self._command(rule.action, objects), test, need, rule, objects)

    def order(self, way: Way) -> tuple[int, tuple[str, ...]]:
        """In which order ways of one command are tried."""
        return self._order[way.rule], way.objects

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
        commands = self.place(self.start_place).commands(self.start_state)
        return Turn(text, commands, self.won(self.start_state), True)
