"""Parses the subset of PDDL that ALFWorld's domain and problems use.

Supports typing, ``and``, ``or``, ``not``, ``exists``, ``when`` and ``=``; skips ``increase`` and functions. Any other
construct is refused by name. Names are folded to lower case, as PDDL is case-insensitive.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from envsuite.alfworld.pddl import (
    Action,
    And,
    Atom,
    Condition,
    Domain,
    Effect,
    Exists,
    Literal,
    MalformedPDDL,
    Or,
    PDDLProblem,
    disjuncts,
)

Expression: TypeAlias = "str | list[Expression]"
"""An s-expression: a name, or a list in parentheses."""

MAX_DEPTH = 64
"""Nesting of parentheses; ALFWorld needs 9."""
MAX_TYPES = 256
"""Types of a domain; ALFWorld has 6."""


def parse_expression(text: str, what: str) -> list[Expression]:
    """Returns the s-expression in ``text``; errors call it ``what``.

    Raises:
        MalformedPDDL: ``text`` is not one list in balanced parentheses.
    """
    plain = re.sub(r";.*", "", text).lower()
    if not plain.isascii():
        odd = next(c for c in plain if not c.isascii())
        raise MalformedPDDL(f"{what} has a character {odd!r}; PDDL is written in ASCII")
    top: list[Expression] = []
    stack = [top]
    names: dict[str, str] = {}  # interns names: each is one object, however often it is written
    for token in re.findall(r"[()]|\?[^\s()?]*|[^\s()?]+", plain):
        if token == "(":
            if len(stack) > MAX_DEPTH:
                raise MalformedPDDL(f"{what} nests parentheses more than {MAX_DEPTH} deep")
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == ")":
            if len(stack) == 1:
                raise MalformedPDDL(f"{what} closes a parenthesis that is not open")
            stack.pop()
        else:
            stack[-1].append(names.setdefault(token, token))
    if len(stack) > 1:
        raise MalformedPDDL(f"{what} ends with {len(stack) - 1} parentheses open (is it truncated?)")
    if len(top) != 1 or isinstance(top[0], str):
        raise MalformedPDDL(f"{what} is not one list in parentheses")
    return top[0]


def parse_domain(text: str) -> Domain:
    """Parses a PDDL domain.

    Raises:
        MalformedPDDL: ``text`` is not a domain, or uses a construct that is not supported.
    """
    sections = _parse_sections(parse_expression(text, "pddl_domain"), "domain")
    supertypes: dict[str, tuple[str, ...]] = {"object": ()}
    predicates = {"=": 2}
    constants: dict[str, str] = {}
    action_texts: list[list[Expression]] = []
    name = ""
    for key, body in sections:
        if key == "domain":
            name = _expect_name(body[0], "domain") if body else ""
        elif key == ":types":
            supertypes = _supertypes(body)
        elif key == ":constants":
            constants = _typed_objects(body, supertypes, "constant")
        elif key == ":predicates":
            for entry in body:
                head, *terms = _expect_list(entry, ":predicates")
                predicates[_expect_name(head, ":predicates")] = len(_typed_names(terms, ":predicates"))
        elif key == ":action":
            action_texts.append(body)
        elif key not in (":requirements", ":functions"):
            raise MalformedPDDL(f"pddl_domain has {key}, which is not supported")
    for predicate in predicates:
        if predicate.startswith("not_"):
            raise MalformedPDDL(f"pddl_domain names a predicate {predicate}: names must not begin with not_")
    if not action_texts:
        raise MalformedPDDL("pddl_domain has no actions")
    actions = tuple(map(_FormulaParser(predicates).action, action_texts))
    for action_name, count in Counter(action.name for action in actions).items():
        if count > 1:
            raise MalformedPDDL(f"pddl_domain has two actions {action_name}")
    return Domain(name, supertypes, predicates, constants, tuple(a for a in actions if a.effects))


def parse_problem(text: str, domain: Domain) -> PDDLProblem:
    """Parses a PDDL problem of ``domain``.

    Raises:
        MalformedPDDL: ``text`` is not a problem, or names an object, type or predicate that does not exist.
    """
    sections = _parse_sections(parse_expression(text, "pddl_problem"), "problem")
    bodies: dict[str, list[Expression]] = {}
    for key, body in sections:
        if key in bodies:
            raise MalformedPDDL(f"pddl_problem has two sections {key}")
        if key not in ("problem", ":domain", ":requirements", ":objects", ":init", ":goal", ":metric"):
            raise MalformedPDDL(f"pddl_problem has {key}, which is not supported")
        bodies[key] = body
    for key in (":domain", ":objects", ":init", ":goal"):
        if key not in bodies:
            raise MalformedPDDL(f"pddl_problem has no section {key}")
    if bodies[":domain"] != [domain.name]:
        raise MalformedPDDL(f"pddl_problem is for the domain {bodies[':domain']}, not {domain.name}")
    objects = dict(domain.constants)
    for name, type_ in _typed_objects(bodies[":objects"], domain.supertypes, "object").items():
        if name in objects:
            raise MalformedPDDL(f"pddl_problem names the object {name} twice")
        objects[name] = type_
    init = tuple(dict.fromkeys(_initial_facts(bodies[":init"], domain, objects)))
    if len(bodies[":goal"]) != 1:
        raise MalformedPDDL("pddl_problem has a :goal that is not one condition")
    goal = _FormulaParser(domain.predicates).condition(bodies[":goal"][0], {}, ":goal")
    return PDDLProblem(objects, init, goal)


class _FormulaParser:
    """Parses conditions and effects; renames each quantified variable to a unique name."""

    def __init__(self, predicates: Mapping[str, int]) -> None:
        self.predicates = predicates
        self.numbers = itertools.count()

    def action(self, body: Sequence[Expression]) -> Action:
        if not body:
            raise MalformedPDDL("pddl_domain has an action without a name")
        name = _expect_name(body[0], ":action")
        where = f"action {name}"
        parts: dict[str, Expression] = {}
        expressions = list(body[1:])
        while expressions:
            key = _expect_name(expressions[0], where)
            if key not in (":parameters", ":precondition", ":effect") or key in parts or len(expressions) < 2:
                raise MalformedPDDL(f"action {name} has {key} where :parameters, :precondition or :effect should be")
            parts[key] = expressions[1]
            expressions = expressions[2:]
        parameters = tuple(_typed_names(_expect_list(parts.get(":parameters", []), where), where))
        scope = {v: v for v, _ in parameters}
        if len(scope) < len(parameters) or not all(v.startswith("?") for v in scope):
            raise MalformedPDDL(f"action {name} has parameters that are not variables, or repeat one")
        precondition = parts.get(":precondition", [])
        condition = self.condition(precondition, scope, where) if precondition else And(())
        effect = parts.get(":effect", [])
        effects = tuple(self.effects(effect, scope, (), where)) if effect else ()
        return Action(name, parameters, disjuncts(condition), effects)

    def condition(self, text: Expression, scope: Mapping[str, str], where: str, negated: bool = False) -> Condition:
        items = _expect_list(text, where)
        if not items:
            raise MalformedPDDL(f"{where} has an empty condition ()")
        head = _expect_name(items[0], where)
        if head == "not":
            if len(items) != 2:
                raise MalformedPDDL(f"{where} has a not of {len(items) - 1} conditions")
            return self.condition(items[1], scope, where, not negated)
        if head in ("and", "or"):
            parts = tuple(self.condition(item, scope, where, negated) for item in items[1:])
            return And(parts) if (head == "and") != negated else Or(parts)
        if head == "exists" and not negated:
            if len(items) != 3:
                raise MalformedPDDL(f"{where} has an exists that is not (exists (variables) condition)")
            inner = dict(scope)
            variables = []
            for variable, type_ in _typed_names(_expect_list(items[1], where), where):
                if not variable.startswith("?"):
                    raise MalformedPDDL(f"{where} has an exists over {variable}, which is not a variable")
                inner[variable] = f"{variable}~{next(self.numbers)}"
                variables.append((inner[variable], type_))
            return Exists(tuple(variables), self.condition(items[2], inner, where))
        if head in ("exists", "forall", "imply", "when", "increase"):
            raise MalformedPDDL(f"{where} has {'not ' if negated else ''}{head} in a condition, which is not supported")
        return Literal(self.atom(items, scope, where), not negated)

    def atom(self, items: Sequence[Expression], scope: Mapping[str, str], where: str) -> Atom:
        words = [_expect_name(item, where) for item in items]
        if words[0] not in self.predicates:
            raise MalformedPDDL(f"{where} has the predicate {words[0]}, which :predicates does not list")
        if len(words) - 1 != self.predicates[words[0]]:
            raise MalformedPDDL(f"{where} gives {words[0]} {len(words) - 1} arguments, not {self.predicates[words[0]]}")
        for argument in words[1:]:
            if argument.startswith("?") and argument not in scope:
                raise MalformedPDDL(f"{where} has the variable {argument}, which is not bound")
        return (words[0], *(scope.get(argument, argument) for argument in words[1:]))

    def effects(
        self, text: Expression, scope: Mapping[str, str], conditions: tuple[Condition, ...], where: str
    ) -> Iterator[Effect]:
        items = _expect_list(text, where)
        if not items:
            raise MalformedPDDL(f"{where} has an empty effect ()")
        head = _expect_name(items[0], where)
        if head == "and":
            for item in items[1:]:
                yield from self.effects(item, scope, conditions, where)
        elif head == "when":
            if len(items) != 3:
                raise MalformedPDDL(f"{where} has a when that is not (when condition effect)")
            yield from self.effects(items[2], scope, (*conditions, self.condition(items[1], scope, where)), where)
        elif head == "forall":
            raise MalformedPDDL(f"{where} has forall in an effect, which is not supported")
        elif head != "increase":
            positive = head != "not"
            if not positive and len(items) != 2:
                raise MalformedPDDL(f"{where} has a not of {len(items) - 1} effects")
            condition = disjuncts(And(conditions))
            if any(disjunct.variables for disjunct in condition):
                raise MalformedPDDL(f"{where} has exists in a when, which is not supported")
            atom = self.atom(items if positive else _expect_list(items[1], where), scope, where)
            if atom[0] == "=":
                raise MalformedPDDL(f"{where} has = as an effect")
            yield Effect(condition, atom, positive)


def _parse_sections(define: Sequence[Expression], kind: str) -> list[tuple[str, list[Expression]]]:
    if len(define) < 2 or define[0] != "define":
        raise MalformedPDDL(f"pddl_{kind} does not begin with (define")
    sections = []
    for entry in define[1:]:
        head, *body = _expect_list(entry, f"pddl_{kind}") or [""]
        sections.append((_expect_name(head, f"pddl_{kind}"), body))
    if sections[0][0] != kind:
        raise MalformedPDDL(f"pddl_{kind} does not begin with (define ({kind} …)")
    return sections


def _expect_name(item: Expression, where: str) -> str:
    if not isinstance(item, str):
        raise MalformedPDDL(f"{where} has a list where a name should be")
    return item


def _expect_list(item: Expression, where: str) -> list[Expression]:
    if isinstance(item, str):
        raise MalformedPDDL(f"{where} has {item} where a list should be")
    return item


def _typed_names(items: Sequence[Expression], where: str) -> list[tuple[str, str]]:
    """Returns the pairs of name and type in ``a b - type c``; a name without a type is an ``object``."""
    result: list[tuple[str, str]] = []
    waiting: list[str] = []
    words = iter(items)
    for item in words:
        word = _expect_name(item, where)
        if word == "-":
            type_ = _expect_name(next(words, []), f"{where}, after a -,")
            result += [(name, type_) for name in waiting]
            waiting = []
        else:
            waiting.append(word)
    return result + [(name, "object") for name in waiting]


def _supertypes(body: Sequence[Expression]) -> dict[str, tuple[str, ...]]:
    """Returns the supertypes of each type, nearest first."""
    base: dict[str, str] = {}
    for name, type_ in _typed_names(body, ":types"):
        if name in base:
            raise MalformedPDDL(f":types has {name} twice")
        if name != "object":
            base[name] = type_
    if len(base) > MAX_TYPES:
        raise MalformedPDDL(f":types has more than {MAX_TYPES} types")
    supertypes: dict[str, tuple[str, ...]] = {"object": ()}
    for name in base:
        chain: list[str] = []
        type_ = base[name]
        while type_ not in chain and type_ != name:
            chain.append(type_)
            if type_ not in base:
                break
            type_ = base[type_]
        supertypes[name] = tuple(chain)
    return supertypes


def _typed_objects(body: Sequence[Expression], supertypes: Mapping[str, object], what: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, type_ in _typed_names(body, f"the list of {what}s"):
        if name in result:
            raise MalformedPDDL(f"the {what} {name} is named twice")
        if type_ not in supertypes:
            raise MalformedPDDL(f"the {what} {name} is of a type {type_}, which the domain does not have")
        if "{" in name or "}" in name:
            raise MalformedPDDL(f"the {what} {name} has a brace in its name")
        result[name] = type_
    return result


def _initial_facts(body: Sequence[Expression], domain: Domain, objects: Mapping[str, str]) -> Iterator[Atom]:
    for entry in body:
        items = _expect_list(entry, ":init")
        if not items:
            raise MalformedPDDL(":init has an empty fact ()")
        if items[0] == "=":
            continue  # the value of a function, such as a distance
        positive = items[0] != "not"
        if not positive and len(items) != 2:
            raise MalformedPDDL(":init has a not of more than one fact")
        fact = [_expect_name(item, ":init") for item in (items if positive else _expect_list(items[1], ":init"))]
        if not fact or fact[0] not in domain.predicates:
            raise MalformedPDDL(f":init has the predicate {fact[0] if fact else '()'}, which the domain does not have")
        if len(fact) - 1 != domain.predicates[fact[0]]:
            raise MalformedPDDL(f":init gives {fact[0]} {len(fact) - 1} arguments, not {domain.predicates[fact[0]]}")
        for name in fact[1:]:
            if name not in objects:
                raise MalformedPDDL(f":init has {fact[0]} of {name}, which is not among the objects")
        if positive:
            yield tuple(fact)
