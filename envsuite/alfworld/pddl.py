"""Reads PDDL: the part of it that ALFWorld's domain and problems use.

Typing, ``and``, ``or``, ``not``, ``exists``, ``when`` and ``=``; ``increase`` and functions are read over. Anything
else is refused with the name of the construct. Names are lower case, as PDDL has it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from envsuite.alfworld.formulas import (
    Action,
    Atom,
    Both,
    Condition,
    Domain,
    Effect,
    Either,
    Literal,
    Malformed,
    Problem,
    Some,
    cases,
)

Expression: TypeAlias = "str | list[Expression]"
"""A name, or a list in parentheses."""

MAX_DEPTH = 64
"""Parentheses within parentheses; ALFWorld needs 9."""
MAX_TYPES = 256
"""Types of a domain; ALFWorld has 6."""


def parse(text: str, what: str) -> list[Expression]:
    """The list that ``text`` writes down; ``what`` names it in errors.

    Raises:
        Malformed: It is not one list in balanced parentheses.
    """
    plain = re.sub(r";.*", "", text).lower()
    if not plain.isascii():
        odd = next(c for c in plain if not c.isascii())
        raise Malformed(f"{what} has a character {odd!r}; PDDL is written in ASCII")
    top: list[Expression] = []
    stack = [top]
    known: dict[str, str] = {}  # one object for each name, however often it is written
    for token in re.findall(r"[()]|\?[^\s()?]*|[^\s()?]+", plain):
        if token == "(":
            if len(stack) > MAX_DEPTH:
                raise Malformed(f"{what} nests parentheses more than {MAX_DEPTH} deep")
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == ")":
            if len(stack) == 1:
                raise Malformed(f"{what} closes a parenthesis that is not open")
            stack.pop()
        else:
            stack[-1].append(known.setdefault(token, token))
    if len(stack) > 1:
        raise Malformed(f"{what} ends with {len(stack) - 1} parentheses open (is it truncated?)")
    if len(top) != 1 or isinstance(top[0], str):
        raise Malformed(f"{what} is not one list in parentheses")
    return top[0]


def read_domain(text: str) -> Domain:
    """The domain that ``text`` describes.

    Raises:
        Malformed: It is not one, or uses what is not supported.
    """
    sections = _sections(parse(text, "pddl_domain"), "domain")
    above: dict[str, tuple[str, ...]] = {"object": ()}
    predicates = {"=": 2}
    constants: dict[str, str] = {}
    described: list[list[Expression]] = []
    name = ""
    for key, body in sections:
        if key == "domain":
            name = _word(body[0], "domain") if body else ""
        elif key == ":types":
            above = _types(body)
        elif key == ":constants":
            constants = _members(body, above, "constant")
        elif key == ":predicates":
            for entry in body:
                head, *rest = _list(entry, ":predicates")
                predicates[_word(head, ":predicates")] = len(_typed(rest, ":predicates"))
        elif key == ":action":
            described.append(body)
        elif key not in (":requirements", ":functions"):
            raise Malformed(f"pddl_domain has {key}, which is not supported")
    for predicate in predicates:
        if predicate.startswith("not_"):
            raise Malformed(f"pddl_domain names a predicate {predicate}: names must not begin with not_")
    if not described:
        raise Malformed("pddl_domain has no actions")
    reader = _Conditions(predicates)
    actions = tuple(reader.action(body) for body in described)
    for known, count in Counter(action.name for action in actions).items():
        if count > 1:
            raise Malformed(f"pddl_domain has two actions {known}")
    return Domain(name, above, predicates, constants, tuple(a for a in actions if a.effects))


def read_problem(text: str, domain: Domain) -> Problem:
    """The problem of ``domain`` that ``text`` describes.

    Raises:
        Malformed: It is not one, or speaks of objects, types or predicates that there are not.
    """
    sections = _sections(parse(text, "pddl_problem"), "problem")
    found: dict[str, list[Expression]] = {}
    for key, body in sections:
        if key in found:
            raise Malformed(f"pddl_problem has two sections {key}")
        if key not in ("problem", ":domain", ":requirements", ":objects", ":init", ":goal", ":metric"):
            raise Malformed(f"pddl_problem has {key}, which is not supported")
        found[key] = body
    for key in (":domain", ":objects", ":init", ":goal"):
        if key not in found:
            raise Malformed(f"pddl_problem has no section {key}")
    if found[":domain"] != [domain.name]:
        raise Malformed(f"pddl_problem is for the domain {found[':domain']}, not {domain.name}")
    objects = dict(domain.constants)
    for name, kind in _members(found[":objects"], domain.above, "object").items():
        if name in objects:
            raise Malformed(f"pddl_problem names the object {name} twice")
        objects[name] = kind
    init = tuple(dict.fromkeys(_facts(found[":init"], domain, objects)))
    if len(found[":goal"]) != 1:
        raise Malformed("pddl_problem has a :goal that is not one condition")
    goal = _Conditions(domain.predicates).condition(found[":goal"][0], {}, ":goal")
    return Problem(objects, init, goal)


class _Conditions:
    """Reads conditions and effects; gives each quantified variable a name of its own."""

    def __init__(self, predicates: Mapping[str, int]) -> None:
        self.predicates = predicates
        self.numbers = itertools.count()

    def action(self, body: Sequence[Expression]) -> Action:
        if not body:
            raise Malformed("pddl_domain has an action without a name")
        name = _word(body[0], ":action")
        parts: dict[str, Expression] = {}
        rest = list(body[1:])
        while rest:
            key = _word(rest[0], f"action {name}")
            if key not in (":parameters", ":precondition", ":effect") or key in parts or len(rest) < 2:
                raise Malformed(f"action {name} has {key} where :parameters, :precondition or :effect should be")
            parts[key] = rest[1]
            rest = rest[2:]
        parameters = tuple(_typed(_list(parts.get(":parameters", []), f"action {name}"), f"action {name}"))
        scope = {v: v for v, _ in parameters}
        if len(scope) < len(parameters) or not all(v.startswith("?") for v in scope):
            raise Malformed(f"action {name} has parameters that are no variables, or the same twice")
        where = f"action {name}"
        given = parts.get(":precondition", [])
        condition = self.condition(given, scope, where) if given else Both(())
        effect = parts.get(":effect", [])
        effects = tuple(self.effects(effect, scope, (), where)) if effect else ()
        return Action(name, parameters, cases(condition), effects)

    def condition(self, text: Expression, scope: Mapping[str, str], where: str, negated: bool = False) -> Condition:
        items = _list(text, where)
        if not items:
            raise Malformed(f"{where} has an empty condition ()")
        word = _word(items[0], where)
        if word == "not":
            if len(items) != 2:
                raise Malformed(f"{where} has a not of {len(items) - 1} conditions")
            return self.condition(items[1], scope, where, not negated)
        if word in ("and", "or"):
            parts = tuple(self.condition(item, scope, where, negated) for item in items[1:])
            return Both(parts) if (word == "and") != negated else Either(parts)
        if word == "exists" and not negated:
            if len(items) != 3:
                raise Malformed(f"{where} has an exists that is not (exists (variables) condition)")
            inner = dict(scope)
            variables = []
            for variable, kind in _typed(_list(items[1], where), where):
                if not variable.startswith("?"):
                    raise Malformed(f"{where} has an exists over {variable}, which is no variable")
                inner[variable] = f"{variable}~{next(self.numbers)}"
                variables.append((inner[variable], kind))
            return Some(tuple(variables), self.condition(items[2], inner, where))
        if word in ("exists", "forall", "imply", "when", "increase"):
            raise Malformed(f"{where} has {'not ' if negated else ''}{word} in a condition, which is not supported")
        return Literal(self.atom(items, scope, where), not negated)

    def atom(self, items: Sequence[Expression], scope: Mapping[str, str], where: str) -> Atom:
        words = [_word(item, where) for item in items]
        if words[0] not in self.predicates:
            raise Malformed(f"{where} has the predicate {words[0]}, which :predicates does not list")
        if len(words) - 1 != self.predicates[words[0]]:
            raise Malformed(f"{where} gives {words[0]} {len(words) - 1} arguments, not {self.predicates[words[0]]}")
        for argument in words[1:]:
            if argument.startswith("?") and argument not in scope:
                raise Malformed(f"{where} has the variable {argument}, which nothing introduces")
        return (words[0], *(scope.get(argument, argument) for argument in words[1:]))

    def effects(
        self, text: Expression, scope: Mapping[str, str], given: tuple[Condition, ...], where: str
    ) -> Iterator[Effect]:
        items = _list(text, where)
        if not items:
            raise Malformed(f"{where} has an empty effect ()")
        word = _word(items[0], where)
        if word == "and":
            for item in items[1:]:
                yield from self.effects(item, scope, given, where)
        elif word == "when":
            if len(items) != 3:
                raise Malformed(f"{where} has a when that is not (when condition effect)")
            yield from self.effects(items[2], scope, (*given, self.condition(items[1], scope, where)), where)
        elif word == "forall":
            raise Malformed(f"{where} has forall in an effect, which is not supported")
        elif word != "increase":
            positive = word != "not"
            if not positive and len(items) != 2:
                raise Malformed(f"{where} has a not of {len(items) - 1} effects")
            condition = cases(Both(given))
            if any(case.variables for case in condition):
                raise Malformed(f"{where} has exists in a when, which is not supported")
            atom = self.atom(items if positive else _list(items[1], where), scope, where)
            if atom[0] == "=":
                raise Malformed(f"{where} has = as an effect")
            yield Effect(condition, atom, positive)


def _sections(define: Sequence[Expression], kind: str) -> list[tuple[str, list[Expression]]]:
    if len(define) < 2 or define[0] != "define":
        raise Malformed(f"pddl_{kind} does not begin with (define")
    sections = []
    for entry in define[1:]:
        head, *body = _list(entry, f"pddl_{kind}") or [""]
        sections.append((_word(head, f"pddl_{kind}"), body))
    if sections[0][0] != kind:
        raise Malformed(f"pddl_{kind} does not begin with (define ({kind} …)")
    return sections


def _word(item: Expression, where: str) -> str:
    if not isinstance(item, str):
        raise Malformed(f"{where} has a list where a name should be")
    return item


def _list(item: Expression, where: str) -> list[Expression]:
    if isinstance(item, str):
        raise Malformed(f"{where} has {item} where a list should be")
    return item


def _typed(items: Sequence[Expression], where: str) -> list[tuple[str, str]]:
    """``a b - kind c`` as pairs of name and type; what has no type is an ``object``."""
    result: list[tuple[str, str]] = []
    waiting: list[str] = []
    words = iter(items)
    for item in words:
        word = _word(item, where)
        if word == "-":
            kind = _word(next(words, []), f"{where}, after a -,")
            result += [(name, kind) for name in waiting]
            waiting = []
        else:
            waiting.append(word)
    return result + [(name, "object") for name in waiting]


def _types(body: Sequence[Expression]) -> dict[str, tuple[str, ...]]:
    """All types above each type, nearest first."""
    base: dict[str, str] = {}
    for name, kind in _typed(body, ":types"):
        if name in base and name != "object":
            raise Malformed(f":types has {name} twice")
        if name != "object":
            base[name] = kind
    if len(base) > MAX_TYPES:
        raise Malformed(f":types has more than {MAX_TYPES} types")
    above: dict[str, tuple[str, ...]] = {"object": ()}
    for name in base:
        chain: list[str] = []
        kind = base[name]
        while kind not in chain and kind != name:
            chain.append(kind)
            if kind not in base:
                break
            kind = base[kind]
        above[name] = tuple(chain)
    return above


def _members(body: Sequence[Expression], above: Mapping[str, object], what: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, kind in _typed(body, f"the list of {what}s"):
        if name in result:
            raise Malformed(f"the {what} {name} is named twice")
        if kind not in above:
            raise Malformed(f"the {what} {name} is of a type {kind}, which the domain does not have")
        if "{" in name or "}" in name:
            raise Malformed(f"the {what} {name} has a brace in its name")
        result[name] = kind
    return result


def _facts(body: Sequence[Expression], domain: Domain, objects: Mapping[str, str]) -> Iterator[Atom]:
    for entry in body:
        items = _list(entry, ":init")
        if not items:
            raise Malformed(":init has an empty fact ()")
        if items[0] == "=":
            continue  # the value of a function, such as a distance
        positive = items[0] != "not"
        if not positive and len(items) != 2:
            raise Malformed(":init has a not of more than one fact")
        words = [_word(item, ":init") for item in (items if positive else _list(items[1], ":init"))]
        if not words or words[0] not in domain.predicates:
            raise Malformed(f":init has the predicate {words[0] if words else '()'}, which the domain does not have")
        if len(words) - 1 != domain.predicates[words[0]]:
            raise Malformed(f":init gives {words[0]} {len(words) - 1} arguments, not {domain.predicates[words[0]]}")
        for name in words[1:]:
            if name not in objects:
                raise Malformed(f":init says {words[0]} of {name}, which is not among the objects")
        if positive:
            yield tuple(words)
