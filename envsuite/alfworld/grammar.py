r"""Parses a game's grammar: the spelling of its commands, and its texts.

A grammar lists actions, each with a template and a feedback, and rules::

    "examine": [{"condition": "opened(r:receptacle)", "rhs": "In it, you see [{o.name | in(o:object, r:receptacle)}]."},
                {"rhs": "The {r.name} is closed."}]

The first rule of a symbol whose condition some objects satisfy is used. A text is made of words, symbols
(``#examine#``), values (``{r.name}``, or ``{o.name | query}`` for all objects that answer the query) and lists
(``[{…}]``, joined by the symbols ``list_separator``, ``list_last_separator`` and, for none, ``list_empty``).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import orjson

from envsuite.alfworld.pddl import MalformedPDDL

Query: TypeAlias = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""A conjunction of predicates, each with the name and type of its placeholders."""

ATTRIBUTES = ("definite", "id", "indefinite", "name")
"""Attributes of an object that a text can mention."""

MAX_TEXT = 10_000
"""Characters of one text; ALFWorld's longest has 1,000."""
MAX_PREDICATES = 16
"""Predicates of one query; ALFWorld's longest has 4."""


@dataclass(frozen=True, slots=True)
class Value:
    """``o.indefinite + ' ' + o.name or o.id``: the first of several sums that is not empty."""

    sums: tuple[tuple[tuple[str, str], ...], ...]
    """Each a sequence of pairs: a variable and an attribute, or the empty string and a text."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """``#name#``: expands by the rules of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """``{what | query}`` or, as a list, ``[{what | query}]``."""

    what: Value | Symbol
    query: Query | None
    listed: bool


Part: TypeAlias = str | Symbol | Substitution


@dataclass(frozen=True, slots=True)
class GrammarRule:
    """One expansion of a symbol, and the query under which it is used."""

    condition: Query | None
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ActionText:
    """The command that stands for an action, and the answer to it."""

    template: tuple[Part, ...]
    feedback: tuple[Part, ...]


@dataclass(frozen=True)
class Grammar:
    """The texts of a game."""

    actions: Mapping[str, ActionText]
    """By the action's name in lower case."""
    rules: Mapping[str, tuple[GrammarRule, ...]]

    def queries(self) -> Iterator[Query]:
        """Yields every query of the grammar."""
        texts = [text for action in self.actions.values() for text in (action.template, action.feedback)]
        for rules in self.rules.values():
            for rule in rules:
                texts.append(rule.parts)
                if rule.condition is not None:
                    yield rule.condition
        for text in texts:
            for part in text:
                if isinstance(part, Substitution) and part.query is not None:
                    yield part.query


def parse_grammar(text: str) -> Grammar:
    """Parses the text of a ``.twl`` file.

    Raises:
        MalformedPDDL: It is not a grammar, or has an expression that is not supported.
    """
    actions: dict[str, ActionText] = {}
    rule_lists: dict[str, Any] = {}
    scanner = _Scanner(text)
    while not scanner.at_end():
        word = scanner.take(r"action|grammar", "action or grammar")
        if word == "grammar":
            rule_lists.update(_rules(scanner.block(), "the grammar"))
            continue
        name = scanner.take(r"[\w/-]+", "the name of an action").lower()
        scanner.take(r"\{", "{")
        fields: dict[str, str] = {}
        while (key := scanner.take(r"template|feedback|pddl|grammar|\}", "template, feedback, grammar or }")) != "}":
            fields[key] = scanner.block() if key in ("pddl", "grammar") else scanner.string()
        for key in ("template", "feedback"):
            if key not in fields:
                raise MalformedPDDL(f"grammar: action {name} has no {key}")
        if "grammar" in fields:
            lines = (line for line in fields["grammar"].split("\n") if not line.lstrip().startswith("#"))
            rule_lists.update(_rules("\n".join(lines), f"action {name}"))
        actions[name] = ActionText(parse_text(fields["template"]), parse_text(fields["feedback"]))
    return Grammar(actions, {name: tuple(_rule(name, rule) for rule in rules) for name, rules in rule_lists.items()})


@lru_cache(4096)
def parse_text(text: str) -> tuple[Part, ...]:
    """Parses a text into its parts; ignores everything from a character on that has no meaning in its place.

    Raises:
        MalformedPDDL: An expression or query in it is not supported.
    """
    if len(text) > MAX_TEXT:
        raise MalformedPDDL(f"grammar: a text has more than {MAX_TEXT:,} characters")
    parts: list[Part] = []
    position = _START.match(text).end()  # type: ignore[union-attr]  # matches everywhere
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match.end() == position:
            break
        position = match.end()
        if match["symbol"] is not None:
            parts.append(Symbol(match["symbol"]))
        elif match["inner"] is not None or match["value"] is not None:
            what = Symbol(match["inner"]) if match["inner"] is not None else _value(match["value"])
            query = None if match["query"] is None else parse_query(match["query"])
            if match["open"] is None or match["close"] is not None:
                parts.append(Substitution(what, query, match["open"] is not None))
            else:
                break
        else:
            parts.append(match["quoted"] if match["quoted"] is not None else match["words"])
    return tuple(parts)


@lru_cache(4096)
def parse_query(text: str) -> Query:
    """Parses a query such as ``opened(r:receptacle) & in(o:object, r:receptacle)``.

    Raises:
        MalformedPDDL: It is not of that form.
    """
    predicates = []
    if text.count("&") >= MAX_PREDICATES:
        raise MalformedPDDL(f"grammar: a query has more than {MAX_PREDICATES} predicates")
    for part in text.split("&"):
        match = re.fullmatch(r"\s*(!?[\w/]+)\s*\(([^()]*)\)\s*", part)
        if match is None:
            raise MalformedPDDL(
                f"grammar: {text!r} is not a query such as opened(r:receptacle) & in(o:object, r:receptacle)"
            )
        placeholders = []
        for argument in match[2].split(",") if match[2].strip() else ():
            placeholder = re.fullmatch(r"\s*([\w']+)\s*(?::\s*([\w/-]+)\s*)?", argument)
            if placeholder is None:
                raise MalformedPDDL(f"grammar: {argument!r} in {text!r} is not name:type")
            placeholders.append((placeholder[1], placeholder[2] or placeholder[1].rstrip("'")))
        predicates.append((match[1], tuple(placeholders)))
    return tuple(predicates)


_START = re.compile(r"(?:\s|//.*)*")
_QUERY = r"(?:\s*\|\s*(?P<query>[^;|{}\n\[\]#]+))?"
_TAG = r"[\w()/!<>\-\s,.]+"
_PART = re.compile(
    rf"\t*(?:(?P<open>\[)?\t*\{{\t*(?:\#(?P<inner>{_TAG})\#|(?P<value>(?!\#{_TAG}\#)[^|\[\]{{}}\n<>]+))\t*{_QUERY}\t*\}}"
    rf"(?P<close>(?<=\}})\t*\])?"
    rf"|\#(?P<symbol>{_TAG})\#"
    r'|"(?P<quoted>[^;|"<>\[\]#{}]*)"'
    r'|(?P<words>[^;|"<>\[\]#{}]+))'
)


def _value(text: str) -> Value:
    sums = []
    for alternative in re.split(r"\bor\b(?=(?:[^']*'[^']*')*[^']*$)", text):
        terms = []
        for term in re.split(r"\+(?=(?:[^']*'[^']*')*[^']*$)", alternative):
            variable = re.fullmatch(r"\s*([A-Za-z_]\w*)(?:\.(\w+))?\s*", term)
            literal = re.fullmatch(r"\s*'([^'\\]*)'\s*", term)
            if variable is not None and (variable[2] in ATTRIBUTES or (variable[2] is None and "+" not in alternative)):
                terms.append((variable[1], variable[2] or "name"))
            elif literal is not None:
                terms.append(("", literal[1]))
            else:
                raise MalformedPDDL(
                    f"grammar: {{{text}}} is not made of variables with one of {', '.join(ATTRIBUTES)}, texts in "
                    f"single quotes, + and or"
                )
        sums.append(tuple(terms))
    return Value(tuple(sums))


def _rules(text: str, where: str) -> dict[str, Any]:
    try:
        rules = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MalformedPDDL(f"grammar: the rules of {where} are not JSON ({error})") from error
    if not isinstance(rules, dict) or not all(isinstance(rule_list, list) for rule_list in rules.values()):
        raise MalformedPDDL(f"grammar: the rules of {where} are not lists by symbol")
    return rules


def _rule(symbol: str, rule: Any) -> GrammarRule:
    if not isinstance(rule, dict) or not isinstance(rule.get("rhs"), str):
        raise MalformedPDDL(f"grammar: a rule of {symbol} has no text rhs")
    condition = rule.get("condition", "")
    if not isinstance(condition, str):
        raise MalformedPDDL(f"grammar: a rule of {symbol} has a condition that is not a text")
    return GrammarRule(parse_query(condition) if condition else None, parse_text(rule["rhs"]))


class _Scanner:
    """Splits a ``.twl`` text into tokens, from the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def at_end(self) -> bool:
        self.position = re.compile(r"(?:\s|#.*)*").match(self.text, self.position).end()  # type: ignore[union-attr]
        return self.position == len(self.text)

    def take(self, pattern: str, what: str) -> str:
        self.at_end()
        match = re.compile(pattern).match(self.text, self.position)
        if match is None:
            line = self.text.count("\n", 0, self.position) + 1
            raise MalformedPDDL(f"grammar, line {line}: expected {what}, not {self.text[self.position :][:20]!r}")
        self.position = match.end()
        return match[0]

    def block(self) -> str:
        self.take("::", "::")
        text = self.take(r'"""(?s:.*?)"""', 'a text in """')
        self.take(";", ";")
        return textwrap.dedent(text[3:-3])

    def string(self) -> str:
        self.take("::", "::")
        text = self.take(r'"[^"]*"', "a text in quotes")
        self.take(";", ";")
        return text[1:-1]
