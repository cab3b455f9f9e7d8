"""What is taken of the package ``bfcl-eval``: its conversations, its tools, and where its services and checker are."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, MissingExtra
from envsuite.core.tools import Tool, ToolCall

PACKAGE = "bfcl-eval"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_ADDED = ("bfcl_eval.constants.default_prompts", "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC")
"""Where the package has what the user says when functions come."""
_WIDENED = {("close_ticket", "ticket_id"): ["integer", "string"]}
"""Arguments that an answer sequence gives with another type than the package's schema: of 4,625 calls these 4."""


@dataclass(frozen=True)
class ScriptedTalk:
    """One conversation of the benchmark."""

    requests: tuple[str, ...]
    """What the user says, turn by turn."""
    answers: tuple[tuple[ToolCall, ...], ...]
    """The calls of the answer sequence, by turn."""
    services: tuple[str, ...]
    """Names of the classes whose functions it has."""
    config: Mapping[str, Any]
    """Initial state of each service."""
    comes: Mapping[str, int]
    """Function that is held back -> turn in which it comes."""
    long: bool
    """Whether services are loaded with their long context."""


@cache
def package_version() -> str:
    """Returns the version of the package.

    Raises:
        MissingExtra: It is not installed, or what it needs is not.
    """
    try:
        import mpmath  # noqa: F401  (what one of its services needs)

        return version(PACKAGE)
    except (ImportError, PackageNotFoundError) as error:
        raise MissingExtra(
            f"BFCL-v0 plays conversations of {PACKAGE} ({error}): pip install mpmath && "
            f"pip install --no-deps {PACKAGE}==2026.3.23"
        ) from error


def _constants() -> Any:
    package_version()
    return importlib.import_module("bfcl_eval.constants.executable_backend_config")


def checker() -> Any:
    """Returns the module of the package's checker of conversations."""
    package_version()
    return importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")


@cache
def service_class(name: str) -> Any:
    """Returns the class of a service."""
    return getattr(importlib.import_module(_constants().CLASS_FILE_PATH_MAPPING[name]), name)


def is_stateless(name: str) -> bool:
    """Returns whether a service has no initial state."""
    return name in _constants().STATELESS_CLASSES


@cache
def service_tools() -> Mapping[str, tuple[Tool, ...]]:
    """Returns the functions of each service that a conversation uses, as tools with the package's schemas.

    Raises:
        MissingExtra: The package is not installed.
        DataError: A line of one of its files cannot be read; the message has file and line.
    """
    files = {}
    for name, file in _constants().MULTI_TURN_FUNC_DOC_FILE_MAPPING.items():
        if not name.startswith(("Memory", "WebSearch")):  # of other categories
            path = _data() / "multi_turn_func_doc" / file
            files[name] = tuple(_read(path, row, line, _tool) for line, row in _rows(path))
    return files


@cache
def conversations() -> Mapping[str, ScriptedTalk]:
    """Returns the conversations by their ids, ``base_0`` to ``long_context_199``; errors as :func:`service_tools`."""
    result = {}
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        path = _data() / name
        answers = {row["id"]: row["ground_truth"] for _, row in _rows(_data() / "possible_answer" / name)}
        for line, row in _rows(path):
            conversation = _read(path, (row, answers), line, _conversation)
            result[row["id"].removeprefix("multi_turn_")] = conversation
    return result


def _data() -> Path:
    package_version()
    return Path(str(importlib.import_module("bfcl_eval").__file__)).parent / "data"


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; install {PACKAGE} again") from error
    for number, line in enumerate(lines, 1):
        yield number, _read(path, line, number, orjson.loads)


def _read(path: Path, value: Any, line: int, read: Any) -> Any:
    try:
        return read(value)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, SyntaxError) as error:
        raise DataError(f"{path}, line {line}: not as {PACKAGE} writes it ({type(error).__name__}: {error})") from error


def _tool(row: Any) -> Tool:
    types = importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI
    form = _schema(row["parameters"], types)
    for (name, argument), kinds in _WIDENED.items():
        if name == row["name"]:
            form["properties"][argument]["type"] = kinds
    return Tool(row["name"], row["description"], form).check()


def _schema(form: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Returns a schema of the package with the names that JSON Schema has for its types."""
    result = {**form, "type": types[form["type"]]}
    if "properties" in form:
        result["properties"] = {name: _schema(part, types) for name, part in form["properties"].items()}
    if "items" in form:
        result["items"] = _schema(form["items"], types)
    return result


def _conversation(pair: Any) -> ScriptedTalk:
    row, all_answers = pair
    answers = tuple(tuple(map(read_call, calls)) for calls in all_answers[row["id"]])
    comes = {name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names}
    for name, turn in comes.items():  # one of 200 uses a function before it comes
        comes[name] = next((t for t, calls in enumerate(answers) if any(call.name == name for call in calls)), turn)
        comes[name] = min(turn, comes[name])
    module, constant = _ADDED
    news = getattr(importlib.import_module(module), constant)
    requests = tuple(str(turn[0]["content"]) if turn else news for turn in row["question"])
    if len(requests) != len(answers):
        raise ValueError(f"{len(requests)} turns and {len(answers)} answers")
    services = tuple(row["involved_classes"])
    return ScriptedTalk(requests, answers, services, row["initial_config"], comes, "long_context" in row["id"])


def read_call(text: str) -> ToolCall:
    """Returns a call of an answer sequence, which is written as in Python: ``cd(folder='a')``. Nothing is evaluated.

    Raises:
        ValueError, SyntaxError, AttributeError: The text is something else than a call with literals.
    """
    call: Any = ast.parse(text, mode="eval").body
    values = [ast.literal_eval(value) for value in call.args]
    arguments = dict(zip(_parameters()[call.func.id], values, strict=False))
    return ToolCall(call.func.id, arguments | {word.arg: ast.literal_eval(word.value) for word in call.keywords})


@cache
def _parameters() -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the parameters of each function, in their order."""
    return {
        tool.name: tuple(inspect.signature(getattr(service_class(service), tool.name)).parameters)[1:]
        for service, tools in service_tools().items()
        for tool in tools
    }
