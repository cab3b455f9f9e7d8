"""Renders a game's text from its grammar and state.

A text is prepared once for given objects: every query in it is answered for all reachable facts, so that rendering only
tests bits of the state. The answers of a query come in the order of the facts' internal names, predicate by predicate
from the left, and two placeholders never stand for one object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from envsuite.alfworld.fluents import Fluents
from envsuite.alfworld.grammar import Grammar, GrammarRule, Part, Query, Substitution, Symbol, Value
from envsuite.alfworld.pddl import Atom, Domain, MalformedPDDL

TypedName: TypeAlias = tuple[str, str]
"""An object or a placeholder, and its type."""
Piece: TypeAlias = "str | Listing | FeedbackChoice"

MAX_ANSWERS = 100_000
"""Answers of one query that are prepared; ALFWorld's largest has 500."""
LISTS = ("list_empty", "list_separator", "list_last_separator")


class Bindings:
    """The objects that the placeholders of a text are bound to."""

    __slots__ = ("names", "objects")

    def __init__(self, objects: Mapping[TypedName, TypedName]) -> None:
        self.objects = objects
        """The object of each placeholder."""
        self.names = {name: object_name for (name, _), (object_name, _) in objects.items()}
        """The object by the placeholder's name alone."""


def bind(parameters: Sequence[TypedName], objects: Sequence[str]) -> Bindings:
    """Binds an action's parameters to objects; a parameter whose object is empty stays unbound."""
    pairs = zip(parameters, objects, strict=True)
    return Bindings({(name[1:], type_): (value, type_) for (name, type_), value in pairs if value})


def command_form(text: Sequence[Part], parameters: Sequence[TypedName]) -> tuple[str | int, ...] | None:
    """Returns a template as words and numbers of the parameters named; ``None`` if it has anything else."""
    numbers = {name[1:]: number for number, (name, _) in enumerate(parameters)}
    result: list[str | int] = []
    for part in text:
        if isinstance(part, str):
            result.append(part)
        elif not isinstance(part, Substitution) or part.query is not None or not isinstance(part.what, Value):
            return None
        else:
            term = part.what.sums[0][0]
            if len(part.what.sums) > 1 or len(part.what.sums[0]) > 1 or term[1] != "name" or term[0] not in numbers:
                return None
            result.append(numbers[term[0]])
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of the items whose masks are set in the state."""

    items: tuple[tuple[int, tuple[Piece, ...]], ...]
    empty: tuple[Piece, ...]
    separator: tuple[Piece, ...]
    last: tuple[Piece, ...]


class FeedbackChoice:
    """The first branch of which some mask is set in the state; prepared when first chosen."""

    __slots__ = ("_prepared", "branches", "name")

    def __init__(self, name: str, branches: list[tuple[tuple[int, ...], Callable[[], tuple[Piece, ...]]]]) -> None:
        self.name = name
        self.branches = branches
        self._prepared: dict[int, tuple[Piece, ...]] = {}

    def pick(self, state: int) -> tuple[Piece, ...]:
        """Returns the branch for ``state``.

        Raises:
            MalformedPDDL: None matches.
        """
        for number, (masks, prepare) in enumerate(self.branches):
            for mask in masks:
                if state & mask == mask:
                    pieces = self._prepared.get(number)
                    if pieces is None:
                        pieces = self._prepared[number] = prepare()
                    return pieces
        raise MalformedPDDL(f"grammar: no rule of {self.name} fits")


def render(pieces: Sequence[Piece], state: int) -> str:
    """Returns the text in ``state``."""
    texts: list[str] = []
    _render(pieces, state, texts)
    return "".join(texts)


def _render(pieces: Sequence[Piece], state: int, texts: list[str]) -> None:
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
        elif isinstance(piece, FeedbackChoice):
            _render(piece.pick(state), state, texts)
        else:
            _render(_join_list(piece, [text for mask, text in piece.items if state & mask == mask]), state, texts)


def _join_list(listing: Listing, texts: Sequence[tuple[Piece, ...]]) -> list[Piece]:
    """Joins ``texts`` by the list's separators."""
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


class FeedbackRenderer:
    """Renders the texts of one game.

    Args:
        grammar: The game's grammar.
        fluents: Its fluents.
        names: The display name of each object; only these can be mentioned.
    """

    def __init__(self, grammar: Grammar, fluents: Fluents, names: Mapping[str, str]) -> None:
        self.grammar = grammar
        self.fluents = fluents
        self.objects = fluents.grounding.problem.objects
        self.names = names
        domain = fluents.grounding.domain
        self._subtypes = {type_: _subtypes_of(domain, type_) for type_ in domain.supertypes}
        self._matches: dict[tuple[str, tuple[str, ...], int, str], list[Atom]] = {}
        self._orders: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._symbols: dict[tuple[object, ...], tuple[Piece, ...]] = {}
        self._known_dependencies: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._argument_types: dict[str, frozenset[str]] = {}

    def prepare(self, text: Sequence[Part], bindings: Bindings) -> tuple[Piece, ...]:
        """Prepares ``text`` under ``bindings``, for :func:`render`."""
        pieces: list[Piece] = []
        for part in text:
            if isinstance(part, str):
                pieces.append(part)
            elif isinstance(part, Symbol):
                pieces += self._symbol(part.name, bindings)
            elif part.query is None:
                pieces += self._prepare_value(part.what, bindings)
            else:
                answers = self._query(part.query, bindings)
                items = tuple((mask, self._prepare_value(part.what, Bindings(objects))) for mask, objects in answers)
                empty, separator, last = (self._symbol(n, bindings) if part.listed else () for n in LISTS)
                listing = Listing(items, empty, separator, last)
                if any(mask for mask, _ in items):
                    pieces.append(listing)
                else:
                    pieces += _join_list(listing, [text for _, text in items])
        return _merge_texts(pieces)

    def constant(self, text: Sequence[Part], bindings: Bindings) -> str | None:
        """Returns ``text`` where it is the same in every state; ``None`` if it depends on the state."""
        pieces = self.prepare(text, bindings)
        texts = [piece for piece in pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(pieces) else None

    def _prepare_value(self, what: Value | Symbol, bindings: Bindings) -> tuple[Piece, ...]:
        if isinstance(what, Symbol):
            return self._symbol(what.name, bindings)
        texts = ("".join([self._term(*term, bindings) for term in terms]) for terms in what.sums)
        return (next(filter(None, texts), ""),)

    def _term(self, variable: str, attribute: str, bindings: Bindings) -> str:
        if not variable:
            return attribute
        if attribute == "name":
            return self.names[bindings.names[variable]]
        if attribute == "id":
            return bindings.names[variable]
        return "a" if attribute == "indefinite" else "the"

    def _symbol(self, name: str, bindings: Bindings) -> tuple[Piece, ...]:
        placeholders, types = self._dependencies(name)
        key = (
            name,
            *((v, t) for v, t in bindings.names.items() if v in placeholders),
            *((p, t) for p, t in bindings.objects.items() if p[0] in placeholders or self.objects[t[0]] in types),
        )
        pieces = self._symbols.get(key)
        if pieces is None:
            pieces = self._symbols[key] = self._rules(name, self.grammar.rules[name], bindings)
        return pieces

    def _rules(self, name: str, rules: Sequence[GrammarRule], bindings: Bindings) -> tuple[Piece, ...]:
        branches: list[tuple[tuple[int, ...], Callable[[], tuple[Piece, ...]]]] = []
        for rule in rules:
            masks: tuple[int, ...] = (0,)
            if rule.condition is not None:
                masks = tuple(dict.fromkeys(mask for mask, _ in self._query(rule.condition, bindings)))
            if not masks:
                continue
            if 0 in masks and not branches:
                return self.prepare(rule.parts, bindings)
            branches.append((masks, lambda rule=rule: self.prepare(rule.parts, bindings)))  # type: ignore[misc]
            if 0 in masks:
                break
        return (FeedbackChoice(name, branches),)

    def _query(self, query: Query, bindings: Bindings) -> list[tuple[int, dict[TypedName, TypedName]]]:
        """Returns the possible answers in order: the bits that each requires, and the bindings of all placeholders."""
        result: list[tuple[int, dict[TypedName, TypedName]]] = []
        used = set(bindings.objects.values())
        for answer in self._solve(query, 0, dict(bindings.objects), used, 0):
            result.append(answer)
            if len(result) > MAX_ANSWERS:
                raise MalformedPDDL(f"grammar: a query has more than {MAX_ANSWERS:,} answers")
        return result

    def _solve(
        self, query: Query, step: int, bound: dict[TypedName, TypedName], used: set[TypedName], mask: int
    ) -> Iterator[tuple[int, dict[TypedName, TypedName]]]:
        if step == len(query):
            yield mask, bound.copy()
            return
        predicate, placeholders = query[step]
        for atom in self._candidates(predicate, placeholders, bound):
            fresh: list[TypedName] = []
            for placeholder, object_name in zip(placeholders, atom[1:], strict=True):
                value = (object_name, self.objects[object_name])
                binding = bound.get(placeholder)
                if binding is None:
                    if value in used:
                        break
                    bound[placeholder] = value
                    used.add(value)
                    fresh.append(placeholder)
                elif binding != value:
                    break
            else:
                yield from self._solve(query, step + 1, bound, used, mask | self.fluents.visible_bit(atom))
            for placeholder in fresh:
                used.discard(bound.pop(placeholder))

    def _candidates(
        self, predicate: str, placeholders: Sequence[TypedName], bound: Mapping[TypedName, TypedName]
    ) -> list[Atom]:
        """Returns the facts that may match, grouped by combinations of the types asked for and their subtypes."""
        position, object_name = next(((n, bound[p][0]) for n, p in enumerate(placeholders, 1) if p in bound), (0, ""))
        types = tuple(type_ for _, type_ in placeholders)
        key = (predicate, types, position, object_name)
        atoms = self._matches.get(key)
        if atoms is None:
            by_types: dict[tuple[str, ...], list[Atom]] = {}
            visible = self.fluents.visible
            for atom in self.fluents.visible_with(predicate, position, object_name) if position else visible(predicate):
                by_types.setdefault(tuple([self.objects[name] for name in atom[1:]]), []).append(atom)
            atoms = [atom for k in self._type_combinations(types) for atom in by_types.get(k, ())]
            self._matches[key] = atoms
        return atoms

    def _type_combinations(self, types: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Returns ``types`` and all combinations of their subtypes, breadth first; may repeat one."""
        combinations = self._orders.get(types)
        if combinations is None:
            combinations = [types]
            queue = deque(self._with_subtype(types))
            queued_types: set[tuple[str, ...]] = set()
            while queue:
                combinations.append(queue[0])
                for combination in self._with_subtype(queue.popleft()):
                    if combination not in queued_types:
                        queued_types.add(combination)
                        queue.append(combination)
            self._orders[types] = combinations
        return combinations

    def _with_subtype(self, types: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for position, type_ in enumerate(types):
            for subtype in self._subtypes.get(type_, ()):
                yield (*types[:position], subtype, *types[position + 1 :])

    def parameters(self, text: Sequence[Part], parameters: Sequence[TypedName]) -> tuple[int, ...]:
        """Returns the numbers of the parameters that ``text`` depends on."""
        names, types = self._dependencies_of_text(text)
        bindings = {(name[1:], type_) for name, type_ in parameters}
        substitutions = [part for part in text if isinstance(part, Substitution)]
        placeholders = {p for s in substitutions for _, terms in s.query or () for p in terms}
        has_symbol = any(isinstance(part, Symbol) for part in (*text, *(s.what for s in substitutions)))
        if placeholders <= bindings and not has_symbol:
            types = frozenset()  # no query binds a new placeholder, so other parameters cannot exclude an object
        return tuple(n for n, (name, _) in enumerate(parameters) if name[1:] in names or types)

    def _dependencies(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the placeholders that a symbol mentions, and the types of the objects that its queries search."""
        dependencies = self._known_dependencies.get(name)
        if dependencies is None:
            rules = self.grammar.rules[name]
            conditions = [rule.condition for rule in rules if rule.condition is not None]
            parts = [part for rule in rules for part in rule.parts]
            dependencies = self._known_dependencies[name] = self._dependencies_of_text(parts, conditions)
        return dependencies

    def _dependencies_of_text(
        self, text: Sequence[Part], queries: Sequence[Query] = ()
    ) -> tuple[frozenset[str], frozenset[str]]:
        names: set[str] = set()
        types: set[str] = set()
        symbols: set[str] = set()
        queries = list(queries)
        for part in text:
            if isinstance(part, Symbol):
                symbols.add(part.name)
            elif isinstance(part, Substitution):
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
                types |= self._types_in(predicate)
        for symbol in symbols:
            more_names, more_types = self._dependencies(symbol)
            names |= more_names
            types |= more_types
        return frozenset(names), frozenset(types)

    def _types_in(self, predicate: str) -> frozenset[str]:
        """Returns the types of the arguments in a predicate's facts."""
        types = self._argument_types.get(predicate)
        if types is None:
            names = {name for atom in self.fluents.visible(predicate) for name in atom[1:]}
            types = self._argument_types[predicate] = frozenset(self.objects[name] for name in names)
        return types


def _subtypes_of(domain: Domain, type_: str) -> list[str]:
    return sorted(name for name, supertypes in domain.supertypes.items() if type_ in supertypes)


def _merge_texts(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Concatenates adjacent texts."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)
