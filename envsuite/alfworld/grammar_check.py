"""Makes sure that a grammar can say whatever a game asks of it, before anybody plays."""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.alfworld.formulas import Domain, Malformed
from envsuite.alfworld.grammar import Grammar, Hole, Part, Symbol
from envsuite.alfworld.texts import LISTS

MAX_DEPTH = 40
"""Symbols within symbols; ALFWorld needs 4."""


def check(grammar: Grammar, domain: Domain) -> None:
    """Make sure that the grammar can say whatever a game of the domain asks of it.

    Raises:
        Malformed: An action has no spelling; a symbol, type or placeholder is used that there is not; a symbol needs
            itself; a template depends on more than the action's objects.
    """
    for query in grammar.queries():
        for predicate, placeholders in query:
            for _, kind in placeholders:
                if kind not in domain.above:
                    raise Malformed(f"grammar: {predicate} is asked about a {kind}, a type the domain does not have")
    walk = _Walk(grammar)
    walk.text((Symbol("intro"),), frozenset(), ())
    for action in domain.actions:
        spelling = grammar.actions.get(action.name)
        if spelling is None:
            raise Malformed(f"grammar: the action {action.name} has no template and feedback")
        known = frozenset(name[1:] for name, _ in action.parameters)
        walk.text(spelling.template, known, ())
        walk.text(spelling.feedback, known, ())


class _Walk:
    """Goes through all that a text may need."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.done: set[tuple[str, frozenset[str]]] = set()

    def text(self, text: Sequence[Part], known: frozenset[str], above: tuple[str, ...]) -> None:
        for part in text:
            if isinstance(part, Symbol):
                self.symbol(part.name, known, above)
            elif isinstance(part, Hole):
                inner = known
                if part.query is not None:
                    inner = known | {name for _, placeholders in part.query for name, _ in placeholders}
                    for name in LISTS if part.listed else ():
                        self.symbol(name, known, above)
                if isinstance(part.what, Symbol):
                    self.symbol(part.what.name, inner, above)
                    continue
                for variable in (v for terms in part.what.sums for v, _ in terms if v and v not in inner):
                    where = f"the text of {above[-1]}" if above else "a template or feedback"
                    raise Malformed(f"grammar: {where} speaks of {variable}, which stands for nothing there")

    def symbol(self, name: str, known: frozenset[str], above: tuple[str, ...]) -> None:
        if not self.grammar.rules.get(name):
            raise Malformed(f"grammar: there is no rule for #{name}#")
        if name in above:
            raise Malformed(f"grammar: #{name}# needs itself to be written")
        if len(above) > MAX_DEPTH:
            raise Malformed(f"grammar: #{above[0]}# needs symbols more than {MAX_DEPTH} deep")
        if (name, known) not in self.done:
            for rule in self.grammar.rules[name]:
                self.text(rule.parts, known, (*above, name))
            self.done.add((name, known))
