"""The language of prompt files: a part of Jinja's, without calls and definitions, with a bound on the work.

Jinja's sandbox keeps a template from Python's internals; it bounds neither loops nor sizes. In this language nothing
can be called, defined or kept, so that the work of a rendering is the sum of its loops, joins and filters, which are
counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, nodes, pass_context
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from envsuite.core.errors import UsageError, nearest

MOST_CHARACTERS = 1_000_000
"""Maximum number of characters of a rendered prompt, and of a text within it."""
MOST_WORK = 10_000_000
"""Maximum number of characters that filters, joins and comparisons take in one rendering, in all; an item of a loop
counts as ten."""
MOST_NESTED = 50
"""Maximum depth of the syntax tree."""

_SYNTAX = frozenset({
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.For, nodes.If, nodes.CondExpr,
    nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg,
    nodes.Add, nodes.Sub, nodes.Concat, nodes.Filter, nodes.Test, nodes.Keyword, nodes.List, nodes.Tuple,
})  # fmt: skip
_LANGUAGE = "a prompt file has variables, if, for, filters and tests, and neither calls nor definitions"
_LOOP = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"})


class _TooMuch(Exception):
    """A rendering that takes more than it may."""


class _Work:
    """The work of one rendering."""

    def __init__(self) -> None:
        self.left = MOST_WORK

    def take(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise _TooMuch(f"loops and filters take more than {MOST_WORK} characters, an item of a loop counted as ten")


_WORK: ContextVar[_Work] = ContextVar("_WORK")


@contextmanager
def _working() -> Iterator[_Work]:
    token = _WORK.set(work := _Work())
    try:
        yield work
    finally:
        _WORK.reset(token)


def _counted(value: Any, weight: int = 1) -> Any:
    """Takes the work of ``value``, a text or a list; an iterator becomes a list."""
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise _TooMuch(f"a text of {len(value)} characters; at most {MOST_CHARACTERS} are allowed")
        _WORK.get().take(1 + weight * len(value))
    elif isinstance(value, Iterable) and not isinstance(value, Undefined | Mapping):
        value = value if isinstance(value, Sequence) else list(value)
        _WORK.get().take(1 + weight * len(value))
    return value


@pass_context  # which keeps the compiler from evaluating it
def _metered(context: Context, value: Any, weight: int) -> Any:
    return _counted(value, weight)


def _join(items: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    texts = [_printed(item if attribute is None else _ENVIRONMENT.getitem(item, attribute)) for item in _counted(items)]
    _WORK.get().take(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    found = (len(text) + 1) if old == "" else text.count(old)
    _WORK.get().take(len(text) + found * len(new))
    return text.replace(old, new)


def _indent(text: str, width: int = 4, first: bool = False) -> str:
    blanks = " " * min(max(width, 0), 100)
    _WORK.get().take(text.count("\n") * len(blanks))
    return (blanks if first else "") + text.replace("\n", f"\n{blanks}")


def _tojson(value: Any, indent: int | None = None) -> str:
    if isinstance(value, Undefined):
        str(value)  # raises
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(max(indent, 0), 8))


def _printed(value: Any) -> str:
    """Returns the text of a value in the prompt; only text and numbers have one."""
    if isinstance(value, str | int | float | Undefined):
        return str(value)  # an undefined value raises
    raise TypeError(f"a {type(value).__name__} is printed as text; take an item of it, join(', ') or tojson")


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Counts the result of a filter; what marks a filter of Jinja's as taking the environment is kept."""

    @wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        return _counted(function(*args, **kwargs))

    return filtered


_TAKEN = (
    "capitalize", "count", "d", "default", "first", "last", "length", "list", "lower", "map", "reject", "rejectattr",
    "reverse", "select", "selectattr", "sort", "title", "trim", "truncate", "unique", "upper",
)  # fmt: skip
_OWN: Mapping[str, Callable[..., Any]] = {"indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson}
KNOWN_FILTERS = tuple(sorted((*_TAKEN, *_OWN)))
"""Filters of a prompt file: Jinja's, or alike."""
KNOWN_TESTS = tuple(sorted(set(TESTS) - {"callable", "divisibleby", "escaped", "filter", "sameas", "test"}))
"""Tests of a prompt file: Jinja's."""


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which an attribute is a key of a dictionary or a property of ``loop``."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the value of a key, or an undefined value."""
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns an item, or an undefined value."""
        if not isinstance(argument, str):
            return super().getitem(obj, argument)
        if isinstance(obj, Undefined):
            str(obj)  # raises with the name of what is missing
        if isinstance(obj, LoopContext) and argument in _LOOP:
            return getattr(obj, argument)
        if isinstance(obj, Mapping) and argument in obj:
            return obj[argument]
        return self.undefined(obj=obj, name=argument)


def _environment() -> _Environment:
    made = _Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printed)
    made.globals.clear()
    made.filters = {
        **{name: _counting(FILTERS[name]) for name in _TAKEN},
        **{name: _counting(function) for name, function in _OWN.items()},
        "_metered": _metered,
    }
    made.tests = {name: TESTS[name] for name in KNOWN_TESTS}
    return made


_ENVIRONMENT = _environment()


class _Metering(NodeTransformer):
    """Counts whatever takes time in proportion to a text or a list."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _metering(node.iter, 10)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        node.node = _metering(node.node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _metering(node.expr)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _metering(node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _metering(node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _metering(self.generic_visit(node))

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        return _metering(self.generic_visit(node))


def _metering(node: Any, weight: int = 1) -> nodes.Expr:
    return nodes.Filter(node, "_metered", [nodes.Const(weight)], [], None, None, lineno=node.lineno)


def compiled(source: str, name: str, variables: Iterable[str]) -> tuple[Template, frozenset[str]]:
    """Compiles a prompt file; returns it with the names of the variables that it uses.

    Args:
        source: The text of the file.
        name: Its name, for messages.
        variables: Names of the variables that exist.

    Raises:
        UsageError: The file is not valid; the message names file, line and what exists.
    """
    known = tuple(variables)
    try:
        with _working():
            tree = _ENVIRONMENT.parse(source, name, name)
            _check(tree, name, known, 0)
            undeclared = find_undeclared_variables(tree)
            for used in tree.find_all(nodes.Name):
                if used.name in undeclared - set(known):
                    raise _refused(name, used.lineno, _unknown("variable", used.name, known), known)
            tree = _Metering().visit(tree)
            code = _ENVIRONMENT.compile(tree, name, name)
        return Template.from_code(_ENVIRONMENT, code, {}), frozenset(undeclared)
    except TemplateError as error:
        raise _refused(name, getattr(error, "lineno", None), str(error.message), known) from error
    except (RecursionError, SyntaxError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise _refused(name, None, f"{type(error).__name__}: {error}", known) from error


def rendered(template: Template, name: str, values: Mapping[str, Any]) -> str:
    """Renders a prompt file.

    Args:
        template: The compiled file.
        name: Its name, for messages.
        values: The value of each variable.

    Raises:
        UsageError: A value does not exist, cannot be used so, or the rendering takes too much.
    """
    parts: list[str] = []
    length = 0
    try:
        with _working():
            for part in template.generate(values):
                parts.append(part)
                if (length := length + len(part)) > MOST_CHARACTERS:
                    raise _TooMuch(f"the prompt has more than {MOST_CHARACTERS} characters")
    except (TemplateError, _TooMuch, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _refused(name, _line(error, name), str(error), values) from error
    return "".join(parts)


def _check(node: nodes.Node, name: str, known: Sequence[str], depth: int) -> None:
    """Refuses what is not part of the language.

    Raises:
        UsageError: At the first such node.
    """
    problem = ""
    if depth > MOST_NESTED:
        problem = f"nested deeper than {MOST_NESTED}"
    elif type(node) not in _SYNTAX or (isinstance(node, nodes.For) and node.recursive):
        problem = f"{type(node).__name__} is not part of the language: {_LANGUAGE}"
    elif isinstance(node, nodes.Filter) and node.name not in KNOWN_FILTERS:
        problem = _unknown("filter", node.name, KNOWN_FILTERS)
    elif isinstance(node, nodes.Test) and node.name not in KNOWN_TESTS:
        problem = _unknown("test", node.name, KNOWN_TESTS)
    elif isinstance(node, nodes.List | nodes.Tuple) and not all(
        type(i) in (nodes.Const, nodes.Name) for i in node.items
    ):
        problem = "a list that is written out holds names and constants only"
    elif isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        problem = f"attribute {node.attr!r}: names with an underscore in front belong to Python"
    if problem:
        raise _refused(name, node.lineno, problem, known)
    for child in node.iter_child_nodes():
        _check(child, name, known, depth + 1)


def _unknown(kind: str, name: str | None, known: Sequence[str]) -> str:
    near = nearest(name or "", known, limit=1)
    hint = f" Nearest: {near[0]!r}." if near else ""
    listed = "" if kind == "variable" else f" Known: {', '.join(known)}."
    return f"unknown {kind} {name!r}.{hint}{listed}"


def _refused(name: str, line: int | None, problem: str, variables: Iterable[str]) -> UsageError:
    where = name if line is None else f"{name}, line {line}"
    return UsageError(f"prompt file {where}: {problem.rstrip('.')}. Variables: {', '.join(variables)}")


def _line(error: BaseException, name: str) -> int | None:
    """Returns the line of the file at which ``error`` was raised."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
