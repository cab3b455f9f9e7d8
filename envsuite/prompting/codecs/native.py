"""Actions in the model's own format of tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envsuite.core.errors import UsageError
from envsuite.core.tools import REPLY, Action, Tool, ToolCall
from envsuite.prompting.codecs.base import (
    REPLY_HINT,
    Codec,
    CodecTurn,
    ParseResult,
    function_schemas,
    read_reply,
    reply_text,
)
from envsuite.prompting.dialect import find_dialect
from envsuite.prompting.formats import CallMatch
from envsuite.prompting.rendering import ChatTokenizer, TemplateRenderer, ids_of, specials_of
from envsuite.prompting.text import dump, listing

_EXAMPLE = ToolCall("tool_name", {"argument": "value"})


@dataclass(frozen=True)
class NativeMessage:
    """The parts of a completion."""

    thought: str
    text: str
    """The text beside the calls; all after the thought where there is no call."""
    called: tuple[tuple[ToolCall, str], ...]
    """The well-formed calls, with their ids."""
    problem: str
    """Why a call is not well-formed; "" where all are."""


class NativeCodec(Codec):
    """Tool calls as the model's chat template writes them.

    The template gets the tools, calls are parsed as it writes those of earlier turns, and results are messages of the
    role ``tool``. The format is found by rendering probes, not by the model's name: it is the one of
    ``envsuite.prompting.formats`` whose parser reads what the template renders.

    Args:
        tokenizer: The tokenizer with the chat template.
        template_arguments: Arguments of the template, such as ``enable_thinking`` or ``date_string``.

    Raises:
        UnknownName: The template does not read an argument.
        UsageError: The template takes no tools, or writes calls in no known format, or the tokenizer does not give back
            a call as it was.
    """

    name: ClassVar[str] = "native"
    special_tokens: ClassVar[bool] = True

    def __init__(self, tokenizer: ChatTokenizer, template_arguments: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_arguments = dict(template_arguments or {})
        renderer = TemplateRenderer(tokenizer, self.template_arguments)
        renderer.check()
        self.dialect = find_dialect(renderer, specials_of(tokenizer))
        self._example = self.write([_EXAMPLE])
        self.example = "" if self.dialect.lists else self._example
        begin = self.dialect.find(self._example, {})[0].start
        self._lead = self.dialect.format.split(self._example[:begin])[1].strip()
        self.inner_tokens = frozenset(self.dialect.specials.findall(self._example))
        special = (str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._end_tokens = tuple(token for token in special if token not in self.inner_tokens)
        self._round_trip()
        self.stop_ids = tuple(self.end_ids(self._example, ())[-1:])

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns how many calls to answer with, and tools and form of a call if the template lists no tools."""
        several = max_calls > 1 and self.dialect.several
        count = f"one to {max_calls} tool calls" if several else "one tool call"
        hint = REPLY_HINT if REPLY in tools else ""
        if self.dialect.lists:
            return f"Answer each observation with {count}.{hint}"
        if hint:
            tools, count = [tool for tool in tools if tool != REPLY], f"{count}, or a text without a call to the user,"
        return f"{listing(tools)}\nAnswer each observation with {count} of this form:\n{self._example}"

    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> ParseResult:
        """Parses every well-formed call after the thought."""
        _, answer, calls, problem = self._read(completion, tools)
        most = max_calls if self.dialect.several else 1
        if len(calls) > most:
            return ParseResult(None, f"{len(calls)} calls in one step, at most {most} allowed")
        if not calls:
            text = self.dialect.format.content(answer)
            return read_reply(text, tools, problem, "no tool call in the completion")
        return ParseResult(tuple(match.call for match in calls), None)

    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Renders the thought, if any, and the calls, up to the end of the last call.

        Raises:
            UsageError: The template cannot write them so that they are read back.
        """
        if tools is None:
            tools = [Tool(call.name, "", _schema(call)) for call in action]
        by_name = _tools_by_name(tools)
        for call in action:
            dump(call)
        if (reply := reply_text(action, tools)) is not None:
            message = self.dialect.text(reply, thought)
            if self.parse(message, tools, 1).action == tuple(action):
                return message
            raise UsageError(f"the chat template cannot write {self.show(action)} so that it is read back as a reply")
        text = self.dialect.completion(self.dialect.add_ids(list(action)), thought, by_name) if action else None
        if text is None or [match.call for match in self.dialect.find(text, by_name)] != list(action):
            raise UsageError(
                f"the chat template cannot write {self.show(action)} so that it is read back (format "
                f"{self.dialect.format.name}): it takes fewer calls, or a text has one of the format's own tags in it"
            )
        return text

    def show(self, action: Action) -> str:
        """Formats the calls as JSON."""
        return ", ".join(dump(call) for call in action)

    def chat_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Returns OpenAI's function schemas."""
        return function_schemas(tools)

    def text(self, content: str) -> str:
        """Renders a message without a call; after a thought, if the model is expected to think."""
        return self.dialect.text(content)

    def end_ids(self, completion: str, tools: Sequence[Tool]) -> list[int]:
        """Returns the tokens that end ``completion``; none if the template has no control token for it."""
        after = self.after(self.turn(completion, tools), "", tools) or ""
        end = re.match(rf"\s*(?:{self.dialect.specials.pattern})", after)
        return [] if end is None else ids_of(self.tokenizer, end.group())

    def turn(self, completion: str, tools: Sequence[Tool]) -> CodecTurn:
        """Returns the message of ``completion``: its thought, its text and its calls."""
        parts = self.split_completion(completion, tools)
        message = self.dialect.message(parts.called, parts.thought, parts.text)
        replies = REPLY in tools and not parts.called and not parts.problem
        return CodecTurn(message, parts.called, replies)

    def split_completion(self, completion: str, tools: Sequence[Tool]) -> NativeMessage:
        """Takes ``completion`` apart. Never raises."""
        thought, answer, calls, problem = self._read(completion, tools)
        if not calls or (len(calls) > 1 and not self.dialect.several):
            return NativeMessage(thought or "", self.dialect.format.content(answer), (), problem)
        pairs = self.dialect.add_ids([match.call for match in calls], [match.id for match in calls])
        text = self.dialect.format.beside(answer[: calls[0].start].rstrip().removesuffix(self._lead))
        return NativeMessage(thought or "", text, tuple(pairs), problem)

    def reply(self, turn: CodecTurn, text: str) -> dict[str, Any]:
        """Returns a message of the role ``tool``; ``user`` where the template allows no ``tool`` after a text."""
        return self.dialect.reply(turn.called, text, turn.replies)

    def after(self, turn: CodecTurn, text: str, tools: Sequence[Tool]) -> str | None:
        """Returns the template's text from the end of ``turn``'s completion to the next generation prompt."""
        return self.dialect.after(turn.called, text, self.chat_tools(tools) or [], turn.replies)

    def _read(self, completion: str, tools: Sequence[Tool]) -> tuple[str | None, str, list[CallMatch], str]:
        """Returns the thought, the text after it, the calls in that text, and why there are none."""
        thought, answer = self.dialect.format.split(self._without_end(completion))
        if thought is None and answer.lstrip().startswith(self.dialect.format.thought[0].strip()):
            return answer.strip(), "", [], f"the thought is never closed by {self.dialect.format.thought[1]}"
        calls: list[CallMatch] = []
        problem = ""
        for match in self.dialect.format.calls(answer, _tools_by_name(tools)):
            if isinstance(match, CallMatch):
                calls.append(match)
            else:
                problem = problem or match.reason
        return thought, answer, calls, problem

    def _without_end(self, completion: str) -> str:
        """Returns ``completion`` without the tokens that end it: that of the turn, and perhaps that of the sequence."""
        for _ in range(2):
            text = completion.rstrip()
            end = next((token for token in self._end_tokens if text.endswith(token)), None)
            if end is None:
                break
            completion = text[: -len(end)]
        return completion

    def _round_trip(self) -> None:
        """Refuses a tokenizer whose tokens do not give back a call."""
        text = self._example
        again = self.tokenizer.decode(ids_of(self.tokenizer, text), skip_special_tokens=False)
        if [match.call for match in self.dialect.find(str(again), {})] != [_EXAMPLE]:
            raise UsageError(
                f"the tokenizer does not give back a call of the chat template: {text!r} becomes {again!r}; "
                "use the tokenizer that belongs to the template, or another codec"
            )


def _tools_by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}


def _schema(call: ToolCall) -> dict[str, Any]:
    """Returns a schema that tells the types of the call's arguments."""
    properties = {key: {"type": _TYPES.get(type(value), "object")} for key, value in call.arguments.items()}
    return {"type": "object", "properties": properties}
