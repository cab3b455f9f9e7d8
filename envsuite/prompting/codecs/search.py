"""Actions as Search-R1 writes them: each tool is a tag, and results come in ``<information>``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, Tool, ToolCall
from envsuite.prompting.codecs.base import Codec, CodecTurn, ParseResult, read_reply
from envsuite.prompting.codecs.tags import one_string
from envsuite.prompting.text import THOUGHT_END, MalformedText, dump, is_unicode, read_arguments, write_thought


@dataclass(frozen=True)
class SearchR1Codec(Codec):
    """``<think>…</think><search>query</search>`` or ``<answer>text</answer>``, for models trained as Search-R1's.

    The name of a tool is its tag; the body is the argument of a tool with one string, blanks around it ignored, and the
    JSON of the arguments of another tool. The first well-formed tag after the thought is the action, which is one call;
    what follows it is ignored. Under memories whose prompts continue each other, the environment's answer goes on in
    the model's own turn: as ``<information>…</information>`` after a call, as a plain line after what was none.
    """

    name: ClassVar[str] = "search-r1"

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns the tools and their tags."""
        forms = [f"<{tool.name}>{one_string(tool) or 'arguments as JSON'}</{tool.name}>" for tool in tools]
        lines = "\n".join(f"{form}: {tool.description}" for form, tool in zip(forms, tools, strict=True))
        return (
            f"You act by writing one of these tags:\n{lines}\n"
            "Each time, first reason in <think>your reasoning</think>, then write one tag. "
            "Results come between <information> and </information>."
        )

    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> ParseResult:
        """Parses the first well-formed tag after the thought."""
        tags = {tool.name: tool for tool in tools}
        opening = re.compile(f"<({'|'.join(map(re.escape, tags))})>")
        thought = completion.find(THOUGHT_END)
        position = 0 if thought < 0 else thought + len(THOUGHT_END)
        problem, open_names = "", set[str]()
        while tags and (match := opening.search(completion, position)) is not None:
            name, position = match[1], match.end()
            end = -1 if name in open_names else completion.find(f"</{name}>", position)
            if end < 0:
                open_names.add(name)
                problem = problem or f"<{name}> is never closed"
                continue
            call = _call(tags[name], completion[position:end], opening)
            if isinstance(call, ToolCall):
                return ParseResult((call,), None)
            problem = problem or call.reason
            position = end + len(name) + 3
        absent = f"no {' or '.join(f'<{tag}>…</{tag}>' for tag in tags)} in the completion"
        return read_reply(completion, tools, problem, absent)

    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Formats the thought, if any, and the call in its tag.

        Raises:
            UsageError: There are several calls, or an argument would not be read back.
        """
        if len(action) != 1:
            raise UsageError(f"the codec {self.name} writes one call, not {len(action)}")
        return f"{write_thought(thought)}{self.show(action)}"

    def show(self, action: Action) -> str:
        """Formats each call in its tag."""
        return " ".join(f"<{call.name}>{_body(call)}</{call.name}>" for call in action)

    def turn(self, completion: str, tools: Sequence[Tool]) -> CodecTurn:
        """Returns ``completion`` as a message, with its call if it has one."""
        action = self.parse(completion, tools, 1).action or ()
        return CodecTurn({"role": "assistant", "content": completion}, tuple((call, "") for call in action))

    def reply(self, turn: CodecTurn, text: str) -> dict[str, Any]:
        """Returns a message of the user with the environment's answer."""
        return {"role": "user", "content": _wrap_answer(turn, text)}

    def after(self, turn: CodecTurn, text: str, tools: Sequence[Tool]) -> str | None:
        """Returns the environment's answer, in which the model's turn goes on."""
        return f"\n\n{_wrap_answer(turn, text)}\n\n"


def _wrap_answer(turn: CodecTurn, text: str) -> str:
    return f"<information>{text}</information>" if turn.called else text


def _call(tool: Tool, body: str, opening: re.Pattern[str]) -> ToolCall | MalformedText:
    """Returns the call of a tag with this body."""
    if (inner := opening.search(body)) is not None:
        return MalformedText(f"{inner[0]} inside <{tool.name}>")
    argument = one_string(tool)
    if argument is None:
        read = read_arguments(body)
        return read if isinstance(read, MalformedText) else ToolCall(tool.name, read)
    if not is_unicode(body):
        return MalformedText(f"the {argument} is not valid Unicode")
    return ToolCall(tool.name, {argument: body.strip()})


def _body(call: ToolCall) -> str:
    """Returns the argument of a call as plain text if it is one string, else the arguments as JSON.

    Raises:
        UsageError: The text would not be read back.
    """
    values = list(call.arguments.values())
    if len(values) == 1 and isinstance(text := values[0], str):
        if text != text.strip() or "<" in text or not is_unicode(text):
            raise UsageError(f"the text {text[:80]!r} cannot be written in a tag so that it is read back")
        return text
    return dump(call).partition('"arguments": ')[2].removesuffix("}")
