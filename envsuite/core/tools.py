"""Tools, tool calls, and their validation against JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson

from envsuite.core.errors import DataError
from envsuite.core.schemas import make_validator, object_schema

if TYPE_CHECKING:
    import jsonschema_rs


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool: its name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


Action = Sequence[ToolCall]
"""An action: 1 to ``max_calls`` calls, executed in order within one step."""


class UnparsedAction(tuple[ToolCall, ...]):
    """An action without calls, for an output of an agent that could not be parsed.

    It consumes a step like every invalid action, through wrappers, processes and servers; the observation says why.

    Args:
        problem: Why the output is not an action, e.g. ``"no <action>…</action> in the completion"``.
    """

    problem: str

    def __new__(cls, problem: str) -> Self:
        """Creates an empty action; escapes unpaired surrogates in ``problem``, which cannot be sent to a server."""
        action = super().__new__(cls)
        action.problem = problem.encode("utf-8", "backslashreplace").decode()
        return action

    def __getnewargs__(self) -> tuple[str]:
        """Returns the arguments for copies and pickles."""
        return (self.problem,)


class Move(NamedTuple):
    """A step of a player, as a demonstration."""

    thought: str
    """The thought before the action; may be empty."""
    action: Action
    slip: bool = False
    """Whether the step is a mistake: context for imitation, not a target of its loss."""


@dataclass(frozen=True)
class Tool:
    """A tool that an agent may call, with the fields of OpenAI's function schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (2020-12) of the arguments: ``type: object`` with ``properties`` and ``required``."""

    @classmethod
    def of_string(
        cls, name: str, description: str, argument: str, meaning: str, choices: Sequence[str] | None = None
    ) -> Self:
        """Returns a tool with one argument, a string.

        Args:
            name: The tool's name.
            description: Its description.
            argument: The argument's name.
            meaning: The argument's description.
            choices: The strings that it may be; ``None`` for any.
        """
        form = {"type": "string"} if choices is None else {"type": "string", "enum": list(choices)}
        return cls(name, description, object_schema({argument: {**form, "description": meaning}}))

    def as_openai(self) -> dict[str, Any]:
        """Returns the tool as an OpenAI function schema, for chat templates."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }

    @cached_property
    def _validator(self) -> jsonschema_rs.Validator:
        try:
            return make_validator(self.parameters)
        except DataError as error:
            raise DataError(f"the arguments of the tool {self.name!r} are {error}") from error

    def check(self) -> Self:
        """Returns the tool, whose schema can be used.

        Raises:
            DataError: The schema is none, or refers to something outside itself.
        """
        assert self._validator is not None
        return self

    def problem(self, arguments: object) -> str | None:
        """Returns in one line why ``arguments`` do not fit the schema; ``None`` if they do."""
        validator = self._validator
        try:
            orjson.dumps(arguments)  # refuses what the validator accepts: unpaired surrogates, huge integers
            for error in validator.iter_errors(arguments):
                where = ".".join(str(part) for part in error.instance_path)
                return f"argument {where}: {error.message}" if where else error.message
        except (ValueError, TypeError) as error:
            return f"arguments are not JSON: {error}"
        return None

    def __reduce__(self) -> tuple[type[Tool], tuple[str, str, Mapping[str, Any]]]:
        """Leaves the validator out of copies and pickles, since it supports neither."""
        return Tool, (self.name, self.description, self.parameters)


REPLY = Tool.of_string(
    "reply", "Answers the user, which ends your turn. A text without a call does the same.", "text", "What you say."
)
"""The tool of environments in which an agent and a user take turns: there a completion without a call is one of it."""


def offered_tools(tools: Sequence[Tool], observation: Mapping[str, Any]) -> tuple[Tool, ...]:
    """Returns the tools that can be called at an observation: those that it names, in its order; by default all."""
    if "tools" not in observation:
        return tuple(tools)
    by_name = {tool.name: tool for tool in tools}
    return tuple(by_name[name] for name in observation["tools"] if name in by_name)


LONGEST_REASON = 1_000
"""Characters of a reason, which may quote what an agent said, that are told as they are."""


def shorten_reason(reason: str) -> str:
    """Returns a reason; of one longer than :data:`LONGEST_REASON` its beginning, its length and its end."""
    if len(reason) <= LONGEST_REASON:
        return reason
    return f"{reason[:500]}… ({len(reason):,} characters) …{reason[-300:]}"


_HOLDERS = (float, list, dict)
"""Types of arguments that are, or may hold, whole floats."""
_REFERENCES = 4
"""References of a schema that are followed for one value; some lead to themselves."""


def with_integers(action: Action, tools: Sequence[Tool]) -> Action:
    """Returns valid calls whose whole floats are integers where a schema asks for these: to JSON Schema, 1.0 is 1."""
    for call in action:
        for value in call.arguments.values():
            if type(value) in _HOLDERS:
                forms = {tool.name: tool.parameters for tool in tools}
                return [
                    ToolCall(call.name, _with_integers(dict(call.arguments), forms[call.name], forms[call.name]))
                    for call in action
                ]
    return action


def _with_integers(value: Any, form: Any, root: Mapping[str, Any], followed: int = 0) -> Any:
    while isinstance(form, Mapping) and isinstance(form.get("$ref"), str) and followed < _REFERENCES:
        form, followed = _part(root, form["$ref"]), followed + 1
    if not isinstance(form, Mapping):
        return value
    if isinstance(value, float) and value.is_integer():
        kinds = form.get("type")
        if kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds):
            return int(value)
        equals = (
            option
            for option in form.get("enum", [form.get("const")])
            if option == value and not isinstance(option, bool)
        )
        value = next(equals, value)
    elif isinstance(value, list):
        value = [_with_integers(item, form.get("items"), root) for item in value]
    elif isinstance(value, dict):
        inner, additional = form.get("properties", {}), form.get("additionalProperties")
        value = {name: _with_integers(item, inner.get(name, additional), root) for name, item in value.items()}
    for part in (part for key in ("anyOf", "oneOf", "allOf") for part in form.get(key, ())):
        value = _with_integers(value, part, root, followed)
    return value


def _part(root: Mapping[str, Any], reference: str) -> Any:
    """Returns the part of a schema that ``#/a/b`` refers to; ``None`` where there is none."""
    part: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part if reference.startswith("#") else None


def check_action(action: object, tools: Sequence[Tool], max_calls: int) -> str | None:
    """Returns why ``action`` is not a valid :data:`Action` for ``tools``, shortened; ``None`` if it is."""
    problem = _problem(action, tools, max_calls)
    return None if problem is None else shorten_reason(problem)


def _problem(action: object, tools: Sequence[Tool], max_calls: int) -> str | None:
    if isinstance(action, UnparsedAction):
        return action.problem
    if not isinstance(action, list | tuple):
        return f"an action is a sequence of tool calls, got {type(action).__name__}"
    if not action:
        return "an action needs at least one tool call"
    if len(action) > max_calls:
        return f"{len(action)} calls in one step, at most {max_calls} allowed"
    for call in action:
        if not isinstance(call, ToolCall):
            return f"an action is a sequence of tool calls, got an item of type {type(call).__name__}"
        for tool in tools:  # few, and this is faster than a dictionary that is made for each step
            if tool.name == call.name:
                break
        else:
            return f"unknown tool {call.name!r}; known: {', '.join(tool.name for tool in tools)}"
        if (problem := tool.problem(call.arguments)) is not None:
            return f"{call.name}: {problem}"
    return None
