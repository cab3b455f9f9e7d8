"""Checks before play that a grammar covers every text that a game can ask for."""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.alfworld.grammar import Grammar, Part, Substitution, Symbol
from envsuite.alfworld.pddl import Domain, MalformedPDDL
from envsuite.alfworld.rendering import LISTS

MAX_DEPTH = 40
"""Nesting of symbols; ALFWorld needs 4."""


def check(grammar: Grammar, domain: Domain) -> None:
    """Checks that the grammar covers every text that a game of the domain can ask for.

    Raises:
        MalformedPDDL: An action has no template; a symbol, type or placeholder is undefined; a symbol expands to
            itself; a template depends on more than the action's objects.
    """
    for query in grammar.queries():
        for predicate, placeholders in query:
            for _, type_ in placeholders:
                if type_ not in domain.supertypes:
                    raise MalformedPDDL(f"grammar: {predicate} is asked about a {type_}, a type the domain lacks")
    checker = _Checker(grammar)
    checker.text((Symbol("intro"),), frozenset(), ())
    for action in domain.actions:
        texts = grammar.actions.get(action.name)
        if texts is None:
            raise MalformedPDDL(f"grammar: the action {action.name} has no template and feedback")
        parameters = frozenset(name[1:] for name, _ in action.parameters)
        checker.text(texts.template, parameters, ())
        checker.text(texts.feedback, parameters, ())


class _Checker:
    """Visits everything that a text may expand to."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.checked: set[tuple[str, frozenset[str]]] = set()

    def text(self, text: Sequence[Part], scope: frozenset[str], enclosing: tuple[str, ...]) -> None:
        for part in text:
            if isinstance(part, Symbol):
                self.symbol(part.name, scope, enclosing)
            elif isinstance(part, Substitution):
                inner = scope
                if part.query is not None:
                    inner = scope | {name for _, placeholders in part.query for name, _ in placeholders}
                    for name in LISTS if part.listed else ():
                        self.symbol(name, scope, enclosing)
                if isinstance(part.what, Symbol):
                    self.symbol(part.what.name, inner, enclosing)
                    continue
                for variable in (v for terms in part.what.sums for v, _ in terms if v and v not in inner):
                    where = f"the text of {enclosing[-1]}" if enclosing else "a template or feedback"
                    raise MalformedPDDL(f"grammar: {where} speaks of {variable}, which stands for nothing there")

    def symbol(self, name: str, scope: frozenset[str], enclosing: tuple[str, ...]) -> None:
        if not self.grammar.rules.get(name):
            raise MalformedPDDL(f"grammar: there is no rule for #{name}#")
        if name in enclosing:
            raise MalformedPDDL(f"grammar: #{name}# expands to itself")
        if len(enclosing) > MAX_DEPTH:
            raise MalformedPDDL(f"grammar: #{enclosing[0]}# needs symbols more than {MAX_DEPTH} deep")
        if (name, scope) not in self.checked:
            for rule in self.grammar.rules[name]:
                self.text(rule.parts, scope, (*enclosing, name))
            self.checked.add((name, scope))
