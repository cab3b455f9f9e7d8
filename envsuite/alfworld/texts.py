"""Says what a game says: a grammar on one game's facts.

A text is prepared for given objects once: every query in it is answered for all facts that may hold, so that speaking
means testing bits of the state. What a query finds comes in the order of the facts' internal names, predicate by
predicate from the left, and two placeholders never stand for one object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from envsuite.alfworld.formulas import Atom, Domain, Malformed
from envsuite.alfworld.grammar import Grammar, Hole, Part, Query, Rule, Symbol, Value

Thing: TypeAlias = tuple[str, str]
"""An object and its type, or a placeholder and its type."""
Piece: TypeAlias = "str | Listing | Choice"

MAX_ANSWERS = 100_000
"""Ways to answer one query that are prepared; ALFWorld's largest has 500."""
LISTS = ("list_empty", "list_separator", "list_last_separator")


@dataclass(frozen=True, slots=True)
class Scene:
    """What the placeholders of a text stand for."""

    things: Mapping[Thing, Thing]
    """The object of each placeholder."""
    names: Mapping[str, str]
    """The object by the placeholder's name alone."""

    def extended(self, found: Mapping[Thing, Thing]) -> Scene:
        """The same with more placeholders known."""
        return Scene({**self.things, **found}, {**self.names, **{name: thing[0] for (name, _), thing in found.items()}})


def scene(parameters: Sequence[Thing], objects: Sequence[str]) -> Scene:
    """What an action's parameters stand for; those whose object is blank are not known."""
    pairs = zip(parameters, objects, strict=True)
    things = {(name[1:], kind): (thing, kind) for (name, kind), thing in pairs if thing}
    return Scene(things, {name: thing[0] for (name, _), thing in things.items()})


def form(text: Sequence[Part], parameters: Sequence[Thing]) -> tuple[str | int, ...] | None:
    """A text of words and of names, each by the number of its parameter; ``None`` if it is made of more."""
    numbers = {name[1:]: number for number, (name, _) in enumerate(parameters)}
    result: list[str | int] = []
    for part in text:
        if isinstance(part, str):
            result.append(part)
        elif not isinstance(part, Hole) or part.query is not None or not isinstance(part.what, Value):
            return None
        else:
            term = part.what.sums[0][0]
            if len(part.what.sums) > 1 or len(part.what.sums[0]) > 1 or term[1] != "name" or term[0] not in numbers:
                return None
            result.append(numbers[term[0]])
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Listing:
    """Texts of which those count whose bits are set."""

    items: tuple[tuple[int, tuple[Piece, ...]], ...]
    empty: tuple[Piece, ...]
    separator: tuple[Piece, ...]
    last: tuple[Piece, ...]


class Choice:
    """The first text any of whose masks is set counts; prepared when it is first needed."""

    __slots__ = ("_prepared", "branches", "name")

    def __init__(self, name: str, branches: list[tuple[tuple[int, ...], Callable[[], tuple[Piece, ...]]]]) -> None:
        self.name = name
        self.branches = branches
        self._prepared: dict[int, tuple[Piece, ...]] = {}

    def pick(self, state: int) -> tuple[Piece, ...]:
        """The text that counts in ``state``."""
        for number, (masks, prepare) in enumerate(self.branches):
            for mask in masks:
                if state & mask == mask:
                    pieces = self._prepared.get(number)
                    if pieces is None:
                        pieces = self._prepared[number] = prepare()
                    return pieces
        raise Malformed(f"grammar: no rule of {self.name} fits")


def speak(pieces: Sequence[Piece], state: int) -> str:
    """The text in ``state``."""
    said: list[str] = []
    _speak(pieces, state, said)
    return "".join(said)


def _speak(pieces: Sequence[Piece], state: int, said: list[str]) -> None:
    for piece in pieces:
        if isinstance(piece, str):
            said.append(piece)
        elif isinstance(piece, Choice):
            _speak(piece.pick(state), state, said)
        else:
            _speak(_listed(piece, [text for mask, text in piece.items if state & mask == mask]), state, said)


def _listed(listing: Listing, texts: Sequence[tuple[Piece, ...]]) -> list[Piece]:
    """``texts`` as the list says them."""
    if not texts:
        return list(listing.empty)
    pieces = list(texts[0])
    for text in texts[1:-1]:
        pieces += listing.separator
        pieces += text
    if len(texts) > 1:
        pieces += listing.last
        pieces += texts[-1]
    return pieces


class Texts:
    """A grammar on one game.

    Args:
        grammar: How the game talks.
        domain: Its types.
        objects: The type of each object.
        names: What things are called; only these can be spoken of.
        atoms: For each predicate that queries may have (``not_…`` as well) the facts that may hold, sorted.
        atoms_with: The same, those only that have the object at that place, counted from 1.
        mask: The bits of a fact: 0 if it always holds.
    """

    def __init__(
        self,
        grammar: Grammar,
        domain: Domain,
        objects: Mapping[str, str],
        names: Mapping[str, str],
        atoms: Callable[[str], Sequence[Atom]],
        atoms_with: Callable[[str, int, str], Sequence[Atom]],
        mask: Callable[[Atom], int],
    ) -> None:
        self.grammar = grammar
        self.objects = objects
        self.names = names
        self._atoms = atoms
        self._atoms_with = atoms_with
        self._mask = mask
        self._below = {kind: _descendants(domain, kind) for kind in domain.above}
        self._found: dict[tuple[str, tuple[str, ...], int, str], list[Atom]] = {}
        self._orders: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._symbols: dict[tuple[object, ...], tuple[Piece, ...]] = {}
        self._reads: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._kinds: dict[str, frozenset[str]] = {}

    def prepare(self, text: Sequence[Part], given: Scene) -> tuple[Piece, ...]:
        """``text`` with its placeholders filled in."""
        pieces: list[Piece] = []
        for part in text:
            if isinstance(part, str):
                pieces.append(part)
            elif isinstance(part, Symbol):
                pieces += self._symbol(part.name, given)
            elif part.query is None:
                pieces += self._what(part.what, given)
            else:
                items = tuple(
                    (m, self._what(part.what, given.extended(f))) for m, f in self._answers(part.query, given)
                )
                empty, separator, last = (self._symbol(n, given) if part.listed else () for n in LISTS)
                listing = Listing(items, empty, separator, last)
                if any(mask for mask, _ in items):
                    pieces.append(listing)
                else:
                    pieces += _listed(listing, [text for _, text in items])
        return _joined(pieces)

    def fixed(self, text: Sequence[Part], given: Scene) -> str | None:
        """``text`` as it always is; ``None`` if it depends on the state."""
        pieces = self.prepare(text, given)
        said = [piece for piece in pieces if isinstance(piece, str)]
        return "".join(said) if len(said) == len(pieces) else None

    def _what(self, what: Value | Symbol, given: Scene) -> tuple[Piece, ...]:
        return self._symbol(what.name, given) if isinstance(what, Symbol) else (self._value(what, given),)

    def _value(self, value: Value, given: Scene) -> str:
        text = ""
        for terms in value.sums:
            if len(terms) == 1:
                text = self._term(*terms[0], given)
            else:
                text = "".join([self._term(variable, attribute, given) for variable, attribute in terms])
            if text:
                break
        return text

    def _term(self, variable: str, attribute: str, given: Scene) -> str:
        if not variable:
            return attribute
        if attribute == "name":
            return self.names[given.names[variable]]
        if attribute == "id":
            return given.names[variable]
        return "a" if attribute == "indefinite" else "the"

    def _symbol(self, name: str, given: Scene) -> tuple[Piece, ...]:
        reads, kinds = self._reads_of(name)
        key = (
            name,
            *((v, t) for v, t in given.names.items() if v in reads),
            *((p, t) for p, t in given.things.items() if p[0] in reads or self.objects[t[0]] in kinds),
        )
        pieces = self._symbols.get(key)
        if pieces is None:
            pieces = self._symbols[key] = self._rules(name, self.grammar.rules[name], given)
        return pieces

    def _rules(self, name: str, rules: Sequence[Rule], given: Scene) -> tuple[Piece, ...]:
        branches: list[tuple[tuple[int, ...], Callable[[], tuple[Piece, ...]]]] = []
        for rule in rules:
            masks: tuple[int, ...] = (0,)
            if rule.condition is not None:
                masks = tuple(dict.fromkeys(mask for mask, _ in self._answers(rule.condition, given)))
            if not masks:
                continue
            if 0 in masks and not branches:
                return self.prepare(rule.parts, given)
            branches.append((masks, lambda rule=rule: self.prepare(rule.parts, given)))  # type: ignore[misc]
            if 0 in masks:
                break
        return (Choice(name, branches),)

    def _answers(self, query: Query, given: Scene) -> list[tuple[int, dict[Thing, Thing]]]:
        """What the query may find, in order: the bits that it takes, and what the new placeholders stand for."""
        result: list[tuple[int, dict[Thing, Thing]]] = []
        used = set(given.things.values())
        for answer in self._solve(query, 0, dict(given.things), used, 0):
            result.append(answer)
            if len(result) > MAX_ANSWERS:
                raise Malformed(f"grammar: a query has more than {MAX_ANSWERS:,} answers")
        return result

    def _solve(
        self, query: Query, step: int, things: dict[Thing, Thing], used: set[Thing], mask: int
    ) -> Iterator[tuple[int, dict[Thing, Thing]]]:
        if step == len(query):
            yield mask, things.copy()
            return
        predicate, placeholders = query[step]
        for atom in self._candidates(predicate, placeholders, things):
            fresh: list[Thing] = []
            for placeholder, thing in zip(placeholders, atom[1:], strict=True):
                value = (thing, self.objects[thing])
                known = things.get(placeholder)
                if known is None:
                    if value in used:
                        break
                    things[placeholder] = value
                    used.add(value)
                    fresh.append(placeholder)
                elif known != value:
                    break
            else:
                yield from self._solve(query, step + 1, things, used, mask | self._mask(atom))
            for placeholder in fresh:
                used.discard(things.pop(placeholder))

    def _candidates(self, predicate: str, placeholders: Sequence[Thing], things: Mapping[Thing, Thing]) -> list[Atom]:
        """Facts that may answer, a group for each combination of types at or below those asked for."""
        place, thing = next(((n, things[p][0]) for n, p in enumerate(placeholders, 1) if p in things), (0, ""))
        kinds = tuple(kind for _, kind in placeholders)
        key = (predicate, kinds, place, thing)
        known = self._found.get(key)
        if known is None:
            by_kinds: dict[tuple[str, ...], list[Atom]] = {}
            for atom in self._atoms_with(predicate, place, thing) if place else self._atoms(predicate):
                by_kinds.setdefault(tuple([self.objects[name] for name in atom[1:]]), []).append(atom)
            known = [atom for k in self._combinations(kinds) for atom in by_kinds.get(k, ())]
            self._found[key] = known
        return known

    def _combinations(self, kinds: tuple[str, ...]) -> list[tuple[str, ...]]:
        """``kinds`` and the combinations of types below, breadth first; one that is in reach twice may come twice."""
        known = self._orders.get(kinds)
        if known is None:
            known = [kinds]
            queue = deque(self._lower(kinds))
            seen: set[tuple[str, ...]] = set()
            while queue:
                known.append(queue[0])
                for lower in self._lower(queue.popleft()):
                    if lower not in seen:
                        seen.add(lower)
                        queue.append(lower)
            self._orders[kinds] = known
        return known

    def _lower(self, kinds: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for place, kind in enumerate(kinds):
            for below in self._below.get(kind, ()):
                yield (*kinds[:place], below, *kinds[place + 1 :])

    def parameters(self, text: Sequence[Part], parameters: Sequence[Thing]) -> tuple[int, ...]:
        """Numbers of the parameters that ``text`` depends on."""
        names, kinds = self._reads_of_text(text)
        given = {(name[1:], kind) for name, kind in parameters}
        holes = [part for part in text if isinstance(part, Hole)]
        asked = {p for hole in holes for _, placeholders in hole.query or () for p in placeholders}
        if (
            asked <= given
            and not any(isinstance(hole.what, Symbol) for hole in holes)
            and Symbol not in map(type, text)
        ):
            kinds = frozenset()  # nothing new is looked for, so that it does not matter what else is taken
        return tuple(n for n, (name, _) in enumerate(parameters) if name[1:] in names or kinds)

    def _reads_of(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        """Names of placeholders that the symbol mentions, and types of what its queries look through."""
        known = self._reads.get(name)
        if known is None:
            rules = self.grammar.rules[name]
            conditions = [rule.condition for rule in rules if rule.condition is not None]
            known = self._reads[name] = self._reads_of_text([p for rule in rules for p in rule.parts], conditions)
        return known

    def _reads_of_text(
        self, text: Sequence[Part], queries: Sequence[Query] = ()
    ) -> tuple[frozenset[str], frozenset[str]]:
        names: set[str] = set()
        kinds: set[str] = set()
        symbols: set[str] = set()
        queries = list(queries)
        for part in text:
            if isinstance(part, Symbol):
                symbols.add(part.name)
            elif isinstance(part, Hole):
                if part.query is not None:
                    queries.append(part.query)
                    symbols.update(LISTS if part.listed else ())
                if isinstance(part.what, Value):
                    names |= {variable for terms in part.what.sums for variable, _ in terms}
                else:
                    symbols.add(part.what.name)
        for query in queries:
            for predicate, placeholders in query:
                names |= {name for name, _ in placeholders}
                kinds |= self._kinds_of(predicate)
        for symbol in symbols:
            more_names, more_kinds = self._reads_of(symbol)
            names |= more_names
            kinds |= more_kinds
        return frozenset(names), frozenset(kinds)

    def _kinds_of(self, predicate: str) -> frozenset[str]:
        """Types of what the predicate's facts are about."""
        known = self._kinds.get(predicate)
        if known is None:
            things = {thing for atom in self._atoms(predicate) for thing in atom[1:]}
            known = self._kinds[predicate] = frozenset(self.objects[thing] for thing in things)
        return known


def _descendants(domain: Domain, kind: str) -> list[str]:
    return sorted(name for name, above in domain.above.items() if kind in above)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The same with texts that follow each other made one."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)
