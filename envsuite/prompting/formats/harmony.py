"""Calls in messages of gpt-oss' harmony format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats.base import CallMatch, CallMismatch, Format, decode

_MESSAGE = "<|message|>"
_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")


@dataclass(frozen=True)
class _HarmonyMessage:
    header: str
    start: int
    body: str
    end: int

    @property
    def channel(self) -> str:
        match = _CHANNEL.search(self.header)
        return match.group(1) if match else ""


@dataclass(frozen=True)
class Harmony(Format):
    """A message to a function: ``<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>``.

    Recipient and channel come in either order. Messages of the channel ``analysis`` are thought.
    """

    name: str = "harmony"
    thought: tuple[str, str] = ("<|channel|>analysis<|message|>", "<|end|>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        for message in _messages(text):
            recipient = _RECIPIENT.search(message.header)
            if recipient is None:
                continue
            value = decode(message.body, 0)
            if isinstance(value, CallMismatch):
                yield CallMismatch(value.reason, message.end)
            elif not isinstance(value[0], dict) or message.body[value[1] :].strip():
                yield CallMismatch("the arguments are one JSON object", message.end)
            else:
                yield CallMatch(ToolCall(recipient.group(1), value[0]), message.start, message.end)

    def split(self, completion: str) -> tuple[str | None, str]:
        """Returns the text of the channel ``analysis``, and all of ``completion``: calls are messages of their own."""
        thoughts = [message.body for message in _messages(completion) if message.channel == "analysis"]
        return "\n".join(thoughts) if thoughts else None, completion

    def content(self, text: str) -> str:
        """Returns the last message that is no thought; ``text`` without its tags if it has no message."""
        messages = list(_messages(text))
        texts = [message.body for message in messages if message.channel != "analysis"]
        return texts[-1] if texts else "" if messages else re.sub(r"<\|\w+\|>", "", text).strip()

    def beside(self, text: str) -> str:
        """Returns ``""``: text before a call is a message of its own."""
        return ""


def _messages(text: str) -> Iterator[_HarmonyMessage]:
    at = 0
    while (mark := text.find(_MESSAGE, at)) >= 0:
        body = mark + len(_MESSAGE)
        match = _END.search(text, body)
        end = len(text) if match is None else match.start()
        yield _HarmonyMessage(text[at:mark], at, text[body:end], end)
        at = end
