"""Requests of agents in the form that all interfaces share, and why one is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import orjson

from envsuite.core.errors import EnvsuiteError
from envsuite.core.tools import Tool, ToolCall

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
Role = Literal["system", "user", "assistant", "tool"]


class Refused(EnvsuiteError):
    """A request that is not served; :attr:`status` and :attr:`code` are those of the answer over HTTP.

    Args:
        status: Status of HTTP: 400 the request is wrong, 401 no session has this key, 403 the session may not, 404
            there is no such model, 413 it is too large, 429 too many are under way, 502 another endpoint fails, 503 no
            weights answer now.
        code: Short name, as OpenAI has them.
        message: What is wrong, and what to do, in one line.
        retry_after: Seconds after which it may be tried again.
        param: Path of the field that is wrong, where it is one.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after: float | None = None, param: str | None = None
    ) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.status, self.code, self.retry_after, self.param = status, code, retry_after, param


@dataclass(frozen=True)
class Message:
    """One message in canonical form."""

    role: Role
    text: str = ""
    calls: tuple[tuple[ToolCall, str], ...] = ()
    """Calls of an assistant with their ids."""
    thought: str = ""
    """Reasoning that an interface gives apart from the text."""
    call_id: str = ""
    """The call that a message of the role ``tool`` answers."""

    @property
    def apart(self) -> tuple[str, str]:
        """The thought and the text; a thought in tags at the beginning of an assistant's text counts as its thought."""
        match = _THOUGHT.match(self.text) if self.role == "assistant" and not self.thought else None
        return (self.thought, self.text) if match is None else (match[1].strip(), match[2].lstrip())

    @cached_property
    def key(self) -> bytes:
        """A key, equal for messages with the same content.

        Arguments count by value; ids are left out, since clients give their own. What an assistant says counts without
        white space around it, and a thought in tags at its begin as one that is given apart: clients take it out.
        """
        thought, text = self.apart
        if self.role == "assistant":
            thought, text = thought.strip(), text.strip()
        calls = [[call.name, dict(call.arguments)] for call, _ in self.calls]
        return orjson.dumps([self.role, text, thought, calls], option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True)
class ParsedRequest:
    """A request, read and checked.

    Raises:
        Refused: There is no message, or arguments are nested too deep.
    """

    model: str
    messages: tuple[Message, ...]
    """At least one."""
    tools: tuple[Tool, ...] = ()
    count: int = 1
    """Samples of the answer (``n``)."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end an answer; they are no part of it."""
    masking: tuple[str, ...] = ()
    """Fields that would mask the distribution that is sampled from: ``tool_choice``, ``response_format``, …"""
    replaced: tuple[str, ...] = ()
    """Sampling settings in place of which those of the run are taken."""
    ignored: tuple[str, ...] = ()
    """Further fields that change nothing, such as ``reasoning_effort``."""
    state_key: str = ""
    """Identity of the state, where the agent says it."""
    parent: str = ""
    """Id of the answer that it is asked about or for, where the agent says it: that of a judge's request."""
    body: bytes = b""
    """The fields in which two requests are the same, as JSON."""
    repeats: bool = False
    """Whether the client says that it has sent it before."""
    name: str = ""
    """The client's name of the request, the same where it repeats it (``Idempotency-Key``)."""
    shown: dict[str, Any] = field(default_factory=dict)
    """Fields that an interface needs for its answer: ``stream``, ``logprobs``, …"""

    def __post_init__(self) -> None:
        messages = tuple(m for m in self.messages if m.role != "system" or m.text)  # an empty one says nothing
        object.__setattr__(self, "messages", messages)
        if not messages:
            raise Refused(400, "missing_required_parameter", "must have at least one message", param="messages")
        try:
            [message.key for message in self.messages]
        except TypeError as error:
            raise Refused(400, "invalid_value", f"a call cannot be written again: {error}", param="messages") from error

    @property
    def observation(self) -> str:
        """Text of what the answer is to: the messages after the last one of the assistant."""
        last = max((i for i, message in enumerate(self.messages) if message.role == "assistant"), default=-1)
        return "\n\n".join(message.text for message in self.messages[last + 1 :] if message.role != "system")


def digests(tools: Sequence[Tool], messages: Sequence[Message]) -> list[bytes]:
    """Returns hashes of the beginnings of a conversation, the shortest first; they are equal for equal beginnings."""
    running = hashlib.blake2b(orjson.dumps([tool.as_openai() for tool in tools]), digest_size=16)
    hashes = [running.digest()]
    for message in messages:
        running.update(len(message.key).to_bytes(8, "little") + message.key)
        hashes.append(running.digest())
    return hashes
