"""The conversation of one episode as chat messages, for an endpoint that has the model's chat template itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envsuite.core.env import Observation
from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.codecs.base import ParseResult, read_reply
from envsuite.prompting.codecs.native import NativeCodec
from envsuite.prompting.history import History
from envsuite.prompting.memory import CompactMemory, FullMemory, Window
from envsuite.prompting.rendering import Messages
from envsuite.prompting.spec import PromptSpec
from envsuite.prompting.text import THOUGHT_END, MalformedText, is_unicode, read_arguments

_NOTHING = "(empty)"
"""Stands for an answer without text in later prompts, as many endpoints refuse an empty message."""
_EARLIER = "See the result of the last call."
"""Result of all calls of an answer but the last: a step has one observation, and each call wants a result."""


@dataclass(frozen=True)
class RawCall:
    """A tool call as an endpoint gives it, not yet checked."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""
    id: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer of an endpoint."""

    content: str
    calls: tuple[RawCall, ...] = ()
    thought: str = ""
    """The model's reasoning, where the endpoint gives it apart from the content."""

    @property
    def text(self) -> str:
        """The whole answer as text: thought and calls in the tags of the codec ``tools``."""
        thought = self.thought.replace(THOUGHT_END, "")
        before = f"<think>{thought}{THOUGHT_END}" if thought else ""
        calls = "\n".join(
            f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
            for call in self.calls
        )
        return before + "\n".join(part for part in (self.content, calls) if part)


class Chat:
    """Writes the messages of one episode under a codec and a memory.

    The counterpart of :class:`~envsuite.prompting.Conversation` where the chat template is the endpoint's. With a codec
    that gives the tools to the chat template (:class:`~envsuite.prompting.EndpointCodec`), calls are the endpoint's
    own; any other codec reads the text. A thought that the endpoint gives apart from the text is no part of later
    prompts.

    Args:
        spec: How prompts are written. After the memory ``full`` as after ``rendered`` all messages are sent.
        tools: The tools of the environment. Where they change, each request has those of its time; in text, the memory
            ``full`` lists those of the first observation, then new ones where they come.
        max_calls: Maximum number of calls in one step.

    Raises:
        UsageError: The memory counts tokens, or codec or memory do not go with the rest.
    """

    def __init__(self, spec: PromptSpec, tools: Sequence[Tool], max_calls: int = 1) -> None:
        codec, memory = spec.codec, spec.memory
        if isinstance(memory, CompactMemory):
            raise UsageError(f"{memory} counts tokens, which an endpoint does not tell; take window(K) or full")
        if isinstance(codec, NativeCodec):
            raise UsageError("NativeCodec reads the text of a chat template, which the endpoint has; use EndpointCodec")
        self.spec = spec
        self.max_calls = max_calls
        self._history = History(spec, tools, max_calls)
        self._later: Messages = []
        """The messages after the first of the user."""
        self._calls = 0

    @property
    def chat_tools(self) -> list[dict[str, Any]] | None:
        """The tools for the endpoint now; ``None`` where the messages describe them."""
        return self.spec.codec.chat_tools(self._history.offered)

    def start(self, observation: Observation) -> None:
        """Starts an episode with its first observation."""
        self._history.start(observation)
        self._history.list_tools_of(0)
        self._later, self._calls = [], 0

    def messages(self) -> Messages:
        """Returns the messages to answer now; one with images has parts of text and of images as content.

        Raises:
            UsageError: Before :meth:`start`, or the prompt file cannot be rendered for this step.
        """
        system = self._history.system
        messages: Messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": "".join(self._history.opening())})
        parts = self._history.gallery.parts
        return [
            message if message["role"] == "assistant" else {**message, "content": parts(message["content"])}
            for message in messages + self._later
        ]

    def parse(self, answer: Answer) -> ParseResult:
        """Parses the action of an answer: its calls if tools were given, else its text. Never raises.

        One call that is not well-formed makes the answer invalid, since the others were made along with it.
        """
        tools = self._history.offered
        if self.chat_tools is None:
            return self.spec.codec.parse(answer.text, tools, self.max_calls)
        if not answer.calls:
            return read_reply(answer.content, tools, "", "no tool call in the completion")
        calls = [_read(call) for call in answer.calls]
        problem = next((call.reason for call in calls if isinstance(call, MalformedText)), None)
        if problem is None and len(calls) > self.max_calls:
            problem = f"{len(calls)} calls in one step, at most {self.max_calls} allowed"
        action = tuple(call for call in calls if isinstance(call, ToolCall))
        return ParseResult(action, None) if problem is None else ParseResult(None, problem)

    def add(self, answer: Answer, observation: Observation, parsed: ParseResult | None = None) -> None:
        """Records an answer of the endpoint and the environment's.

        Args:
            answer: The endpoint's answer.
            observation: The environment's.
            parsed: The answer as :meth:`parse` returned it, where it was called.

        Raises:
            UsageError: Before :meth:`start`.
        """
        self._history.add(answer.text, (parsed or self.parse(answer)).action, observation)
        continues = isinstance(self.spec.memory, FullMemory)
        if not continues:
            self._history.list_tools_of(self._history.steps)
        if isinstance(self.spec.memory, Window):
            return
        message = self._answer_message(answer)
        text = self._history.changed_tools() if continues and self.chat_tools is None else ""
        text += self._history.answer_text(self._history.observation(self._history.steps))
        calls = message.get("tool_calls", [])
        results = [*[_EARLIER] * (len(calls) - 1), text]
        replies = [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(calls, results, strict=False)
        ]
        self._later += [message, *(replies or [{"role": "user", "content": text}])]

    def _answer_message(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a message of later prompts.

        Calls that are not well-formed are text in it: servers read the calls of earlier messages, and fail at those.
        """
        sound = not any(isinstance(_read(call), MalformedText) for call in answer.calls)
        if self.chat_tools is None or not answer.calls or not sound:
            text = answer.content if self.chat_tools is None else Answer(answer.content, answer.calls).text
            return {"role": "assistant", "content": text.strip() or _NOTHING}
        ids, calls = [], []
        for call in answer.calls:
            # A generated id has nine letters, since Mistral's templates take no other.
            call_id = call.id if call.id and call.id not in ids else f"call{self._calls:05}"
            self._calls += 1
            ids.append(call_id)
            function = {"name": call.name, "arguments": call.arguments.strip() or "{}"}
            calls.append({"id": call_id, "type": "function", "function": function})
        return {"role": "assistant", "content": answer.content, "tool_calls": calls}


def _read(call: RawCall) -> ToolCall | MalformedText:
    """Parses a call; one without any arguments may have an empty text."""
    if not call.name:
        return MalformedText("the call has no name")
    if not is_unicode(call.name):
        return MalformedText("the name of the call is not valid Unicode")
    arguments = read_arguments(call.arguments.strip() or "{}")
    if isinstance(arguments, MalformedText):
        return MalformedText(f"arguments of {call.name}: {arguments.reason}")
    return ToolCall(call.name, arguments)
