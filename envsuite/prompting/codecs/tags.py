"""Actions in tags that the prompt explains, for any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envsuite.core.tools import Action, Tool, ToolCall
from envsuite.prompting.codecs.base import Codec, ParseResult, read_reply
from envsuite.prompting.plan import FORM, REQUEST, read_plan
from envsuite.prompting.text import (
    TAGS,
    THOUGHT_END,
    MalformedText,
    bodies,
    dump,
    escape_tags,
    is_unicode,
    listing,
    read_calls,
    write_thought,
)


@dataclass(frozen=True)
class TagsCodec(Codec):
    """``<think>…</think><action>…</action>``; the first well-formed body is the action.

    For a tool with one string parameter named ``command``, the body is the plain command (surrounding blanks are
    ignored). For any other tool it is ``{"name": …, "arguments": {…}}``, or a JSON list of these where several are
    allowed.
    """

    name: ClassVar[str] = "tags"
    think: bool = True
    """Whether the instructions ask for a thought before the action."""
    lowercase: bool = False
    """Whether a completion is read in lower case, tags and tool names included."""
    require_thought: bool = False
    """Whether a completion without ``<think>`` and ``</think>`` is invalid."""
    plan: bool = False
    """Whether the instructions ask for a subgoal, and whether it changes, before the action
    (:mod:`envsuite.prompting.plan`). An action without is valid; a history shows the subgoal beside the action."""

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns the tools and the format of an action, ending with a template of the answer."""
        command = command_tool(tools)
        if command is not None and len(tools) == 1:
            about, body = f"You act by commands. {command.description}", "your command"
        else:
            about, body = listing(tools), '{"name": "tool name", "arguments": {…}}'
            if max_calls > 1:
                about += f"\nUp to {max_calls} calls a step; several are written as a JSON list."
            if command is not None:
                about += f"\nFor {command.name} the plain command is enough."
        return f"{about}\nAnswer each observation in this form:\n{self._form(body)}"

    def _form(self, body: str) -> str:
        """Returns the template of an answer."""
        thought = "<think>your reasoning</think>" if self.think else ""
        form, request = (FORM, f"\n{REQUEST}") if self.plan else ("", "")
        return f"{thought}{form}<action>{body}</action>{request}"

    def format_past_step(self, completion: str, action: Action | None) -> str:
        """Formats the action, after the subgoal that was pursued, if the codec asks for one."""
        text = super().format_past_step(completion, action)
        subgoal = read_plan(completion, self.lowercase).subgoal if self.plan else None
        return f"<subgoal>{subgoal}</subgoal>{text}" if subgoal else text

    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> ParseResult:
        """Parses the first well-formed body."""
        problem = ""
        if self.require_thought and not 0 <= completion.find("<think>") < completion.find(THOUGHT_END):
            return ParseResult(None, "no <think>…</think> in the completion")
        for body in bodies(completion.lower() if self.lowercase else completion, "<action>", "</action>"):
            calls = body if isinstance(body, MalformedText) else self._read(body.strip(), tools)
            if isinstance(calls, MalformedText):
                problem = problem or calls.reason
            elif len(calls) > max_calls:
                problem = problem or f"{len(calls)} calls in one step, at most {max_calls} allowed"
            else:
                return ParseResult(tuple(calls), None)
        return read_reply(completion, tools, problem, "no <action>…</action> in the completion")

    def _read(self, text: str, tools: Sequence[Tool]) -> list[ToolCall] | MalformedText:
        """Parses the calls in a body."""
        command = command_tool(tools)
        calls = read_calls(text, many=True) if text[:1] in ("{", "[") or command is None else MalformedText("")
        if isinstance(calls, MalformedText) and command is not None:
            if not is_unicode(text):
                return MalformedText("the action is not valid Unicode")
            return [ToolCall(command.name, {"command": text})] if text else MalformedText("the action is empty")
        return calls

    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Formats the thought, if any, and the action, in tags; a required thought that is not given is empty."""
        before = write_thought(thought) or ("<think></think>" if self.require_thought else "")
        return f"{before}<action>{self._body(action, tools)}</action>"

    def show(self, action: Action) -> str:
        """Formats the plain command, or JSON."""
        return self._body(action, None)

    def _body(self, action: Action, tools: Sequence[Tool] | None) -> str:
        if len(action) == 1 and list(action[0].arguments) == ["command"]:
            command = action[0].arguments["command"]
            tool = command_tool(tools) if tools is not None else None
            mine = tools is None or (tool is not None and tool.name == action[0].name)
            if mine and isinstance(command, str) and _is_plain(command):
                return command
        body = dump(action[0]) if len(action) == 1 else f"[{', '.join(dump(call) for call in action)}]"
        return escape_tags(body)


@dataclass(frozen=True)
class BracketsCodec(TagsCodec):
    """``<think>…</think><action>tool[argument]</action>``, as agents of WebShop are usually prompted.

    This is the format for tools with one string parameter; blanks around tool and argument are ignored. All other calls
    have the format of :class:`TagsCodec`.
    """

    name: ClassVar[str] = "brackets"

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns each tool's description and format of calls, ending with a template of the answer."""
        forms = [f"{tool.name}[{name}]: {tool.description}" for tool in tools if (name := one_string(tool)) is not None]
        if len(forms) < len(tools):
            return super().system(tools, max_calls)
        answer = self._form("tool[argument]")
        return "\n".join(("You act by calling tools:", *forms, "Answer each observation in this form:", answer))

    def _read(self, text: str, tools: Sequence[Tool]) -> list[ToolCall] | MalformedText:
        name, bracket, tail = text.partition("[")
        if bracket and tail.endswith("]"):
            for tool in tools:
                if tool.name == name.rstrip() and (argument := one_string(tool)) is not None:
                    if not is_unicode(tail):
                        return MalformedText("the argument is not valid Unicode")
                    return [ToolCall(tool.name, {argument: tail[:-1].strip()})]
        return super()._read(text, tools)

    def _body(self, action: Action, tools: Sequence[Tool] | None) -> str:
        if len(action) == 1 and len(action[0].arguments) == 1:
            (call,), ((name, value),) = action, action[0].arguments.items()
            fits = tools is None or any(tool.name == call.name and one_string(tool) == name for tool in tools)
            if fits and isinstance(value, str) and value == value.strip() and not any(tag in value for tag in TAGS):
                return f"{call.name}[{value}]"
        return super()._body(action, tools)


def command_tool(tools: Sequence[Tool]) -> Tool | None:
    """Returns the only tool whose single parameter is a string named ``command``; ``None`` for none or several."""
    matches = [tool for tool in tools if one_string(tool) == "command"]
    return matches[0] if len(matches) == 1 else None


def one_string(tool: Tool) -> str | None:
    """Returns the name of the tool's parameter if it has only one, which is a string."""
    properties = tool.parameters.get("properties", {})
    strings = [name for name, schema in properties.items() if schema.get("type") == "string"]
    return strings[0] if len(properties) == len(strings) == 1 else None


def _is_plain(command: str) -> bool:
    """Whether ``command`` in tags is parsed back unchanged."""
    if not command or command != command.strip() or command[0] in "{[":
        return False
    return not any(tag in command for tag in TAGS)
