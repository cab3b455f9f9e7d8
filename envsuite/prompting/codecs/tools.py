"""Actions as Hermes writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envsuite.core.tools import Action, Tool, ToolCall
from envsuite.prompting.codecs.base import Codec, ParseResult, read_reply
from envsuite.prompting.text import MalformedText, bodies, dump, escape_tags, listing, read_calls, write_thought


@dataclass(frozen=True)
class ToolsCodec(Codec):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several where the environment allows it.

    The instructions list the tools, so any chat template will do: one without tools too. For one that takes tools,
    ``NativeCodec`` has the model's own format. All well-formed calls form the action; too many make it invalid.
    """

    name: ClassVar[str] = "tools"

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns the tools and the format of a call."""
        count = "one call" if max_calls == 1 else f"one to {max_calls} calls"
        form = '<tool_call>\n{"name": "tool name", "arguments": {…}}\n</tool_call>'
        return f"{listing(tools)}\nAnswer each observation with {count} of this form:\n{form}"

    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> ParseResult:
        """Parses every well-formed call."""
        problem = ""
        calls: list[ToolCall] = []
        for body in bodies(completion, "<tool_call>", "</tool_call>"):
            read = body if isinstance(body, MalformedText) else read_calls(body, many=False)
            if isinstance(read, MalformedText):
                problem = problem or read.reason
            else:
                calls += read
        if len(calls) > max_calls:
            return ParseResult(None, f"{len(calls)} calls in one step, at most {max_calls} allowed")
        if not calls:
            return read_reply(completion, tools, problem, "no <tool_call>…</tool_call> in the completion")
        return ParseResult(tuple(calls), None)

    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Formats the thought, if any, and a ``<tool_call>`` for each call."""
        return write_thought(thought) + "\n".join(
            f"<tool_call>\n{escape_tags(dump(call))}\n</tool_call>" for call in action
        )

    def show(self, action: Action) -> str:
        """Formats the calls as JSON."""
        return ", ".join(dump(call) for call in action)
