"""Lines that a person types, as actions; and what could be typed next."""

from __future__ import annotations

import codeop
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from envsuite.core.registration import Profile
from envsuite.core.tools import Action, Tool, ToolCall, UnparsedAction
from envsuite.play.profiles import only_argument

_BRACKETS = re.compile(r"(?<=\w=)(\[.*?\]|\{.*?\})(?=\s+\w+=|\s*$)")
"""A list or an object after ``NAME=``, up to the next name or the end."""


def read_line(line: str, tools: Sequence[Tool], profile: Profile, commands: Sequence[str] = ()) -> Action:
    """Returns the action that a line stands for; never raises.

    Forms: an admissible command; ``TOOL ARGUMENT`` for a tool with one argument; ``TOOL NAME=VALUE NAME=VALUE``;
    ``TOOL {"NAME": VALUE}``; and what the profile adds. Anything else is an
    :class:`~envsuite.core.tools.UnparsedAction`, for the environment to refuse. Values are JSON, or text where the
    tool's schema says so or the value is no JSON.
    """
    by_name = {tool.name: tool for tool in tools}
    text = line.strip()
    if not text:
        return UnparsedAction("the line is empty")
    if profile.commands and text in commands:
        return _single(by_name[profile.commands], text)
    for prefix, name in profile.prefixes.items():
        if text.startswith(prefix):
            return _single(by_name[name], text[len(prefix) :].strip())
    word, _, argument = text.partition(" ")
    if word in by_name and (argument.strip() or not profile.plain or not by_name[word].parameters.get("properties")):
        return _parse_call(by_name[word], argument.strip())
    if profile.plain:
        return _single(by_name[profile.plain], line.rstrip() if profile.code else text)
    return UnparsedAction(f"{_short(text)} names no tool; a line begins with one of: {', '.join(by_name)}")


def write_call(call: ToolCall, tools: Sequence[Tool], profile: Profile) -> str:
    """Returns a line that :func:`read_line` reads as ``call``, the shortest that does."""
    values = [value if isinstance(value, str) else orjson.dumps(value).decode() for value in call.arguments.values()]
    short = [prefix + " " + value for prefix in profile.prefixes for value in values]
    for line in (*values, *short, *(f"{call.name} {value}" for value in values)):
        if read_line(line, tools, profile) == (call,):
            return line
    return _as_json(call)


def read_action(text: str, tools: Sequence[Tool], profile: Profile, commands: Sequence[str], most: int) -> Action:
    """Returns the action that a text stands for: several lines, each of which is a call, are calls of one step.

    Args:
        text: What was typed.
        tools: The tools.
        profile: What may be typed in the environment.
        commands: The admissible commands.
        most: Most calls of a step; with 1 the text is always one line.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if most > 1 and len(lines) > 1 and not profile.code:
        actions = [read_line(line, tools, profile, commands) for line in lines]
        if not any(isinstance(action, UnparsedAction) for action in actions):
            return tuple(call for action in actions for call in action)
    return read_line(text, tools, profile, commands)


def write_action(action: Action, tools: Sequence[Tool], profile: Profile) -> str:
    """Returns the text that :func:`read_action` reads as ``action``: a line for each call."""
    lines = [write_call(call, tools, profile) for call in action]
    if len(lines) > 1:
        lines = [_as_json(call) if "\n" in line else line for line, call in zip(lines, action, strict=True)]
    return "\n".join(lines)


def _as_json(call: ToolCall) -> str:
    return f"{call.name} {orjson.dumps(dict(call.arguments)).decode()}"


def _single(tool: Tool, text: str) -> Action:
    name = only_argument(tool)
    return (ToolCall(tool.name, {name: _value(tool, name, text)}),) if name is not None else _parse_call(tool, text)


def _parse_call(tool: Tool, text: str) -> Action:
    name = only_argument(tool)
    if text.startswith("{"):
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError:
            body = None
        if isinstance(body, dict):
            return (ToolCall(tool.name, body),)
    if name is not None:
        return (ToolCall(tool.name, {name: _value(tool, name, text)} if text else {}),)
    try:
        words = shlex.split(_BRACKETS.sub(lambda match: shlex.quote(match[0]), text))
        pairs = [word.partition("=") for word in words]
    except ValueError as error:
        return UnparsedAction(f"{_short(text)} cannot be split into arguments ({error})")
    if wrong := next((argument for argument, equals, _ in pairs if not equals), None):
        names = ", ".join(tool.parameters.get("properties", {})) or "no arguments"
        return UnparsedAction(f"{wrong!r} is not NAME=VALUE; {tool.name} takes {names}")
    return (ToolCall(tool.name, {argument: _value(tool, argument, value) for argument, _, value in pairs}),)


def _value(tool: Tool, name: str, text: str) -> Any:
    if tool.parameters.get("properties", {}).get(name, {}).get("type") == "string":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def is_incomplete(line: str) -> bool:
    """Whether a line is the beginning of Python code that goes on in the next one; a blank line ends a block."""
    try:
        return codeop.compile_command("\n".join(part if part.strip() else "" for part in line.split("\n"))) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def completions(text: str, tools: Sequence[Tool], profile: Profile, commands: Sequence[str] = ()) -> list[str]:
    """Returns lines that go on from ``text``: first those that begin with it, then those that have all its words."""
    if "\n" in text:
        return []
    lines = list(dict.fromkeys(_candidates(text, tools, profile, commands)))
    continuations = [line for line in lines if line.startswith(text) and line != text]
    words = text.lower().split()
    matches = [line for line in lines if not line.startswith(text) and all(word in line.lower() for word in words)]
    return continuations + (matches if words else [])


def _candidates(text: str, tools: Sequence[Tool], profile: Profile, commands: Sequence[str]) -> Iterator[str]:
    """Yields lines that may be meant, finished or not."""
    if profile.commands:
        yield from commands
    for tool in tools:
        forms = tool.parameters.get("properties", {})
        name = only_argument(tool)
        if name is not None:
            values = _values(forms[name])
            yield from values if tool.name == profile.plain else (f"{tool.name} {value}" for value in values)
            if not values and tool.name != profile.plain:
                yield f"{tool.name} "
            continue
        yield f"{tool.name} " if forms else tool.name
        if text.startswith(f"{tool.name} "):
            before, _, last = text.rpartition(" ")
            names = {word.partition("=")[0] for word in before.split()[1:]}
            for argument in forms:
                if argument not in names:
                    values = _values(forms[argument]) if last.startswith(f"{argument}=") else ()
                    yield from (f"{before} {argument}={value}" for value in values or ("",))


def _values(form: Any) -> tuple[str, ...]:
    """Returns the values that a schema lists, as a person types them."""
    values = form.get("enum", ["true", "false"] if form.get("type") == "boolean" else [])
    return tuple(value if isinstance(value, str) else orjson.dumps(value).decode() for value in values)
