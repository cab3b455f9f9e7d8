"""The interface of a codec, and the result of parsing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from envsuite.core.tools import REPLY, Action, Tool, ToolCall
from envsuite.prompting.text import THOUGHT_END, is_unicode


@dataclass(frozen=True)
class ParseResult:
    """The result of parsing: an action, or the reason why there is none. Exactly one of the two is ``None``."""

    action: Action | None
    error: str | None


REPLY_HINT = " A text without a call answers the user, which ends your turn."
"""The end of the instructions of a codec that does not list :data:`~envsuite.core.tools.REPLY`."""


def read_reply(completion: str, tools: Sequence[Tool], problem: str, absent: str) -> ParseResult:
    """Returns the result for a completion in which no call was found.

    Args:
        completion: The completion, thought included.
        tools: The tools; where the agent may reply with a text, the text after the thought is the reply.
        problem: Why a call is not well-formed; "" where there was no attempt at one.
        absent: What is missing.
    """
    text = completion.partition(THOUGHT_END)[2] if THOUGHT_END in completion else completion
    thinks = text is completion and text.lstrip().startswith("<think>")
    if problem or thinks or REPLY not in tools or not is_unicode(text):
        return ParseResult(None, problem or absent)
    return ParseResult((ToolCall(REPLY.name, {"text": text.strip()}),), None)


def reply_text(action: Action, tools: Sequence[Tool]) -> str | None:
    """Returns the text of an action that is a reply alone, which may be written without a call; ``None`` for others."""
    if len(action) != 1 or action[0].name != REPLY.name or REPLY not in tools:
        return None
    return str(action[0].arguments["text"])


def function_schemas(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Returns OpenAI's function schemas, without the tool that a text stands for."""
    return [tool.as_openai() for tool in tools if tool != REPLY]


@dataclass(frozen=True)
class CodecTurn:
    """A completion as a message of the conversation."""

    message: dict[str, Any]
    """The assistant's message, as chat templates take it."""
    called: tuple[tuple[ToolCall, str], ...] = ()
    """The calls that the message has as such, with their ids."""
    replies: bool = False
    """Whether the message is a reply to the user, so that the user's next one follows."""


class Codec(ABC):
    """A format of actions: instructions for the model, and a parser of its completions.

    Everything before the first ``</think>`` of a completion is thought and is never parsed as an action. After it, the
    parser skips bodies that are not well-formed; it neither guesses nor lower-cases nor truncates. The environment
    checks whether the tool exists and its arguments fit, and answers with text that the agent can learn from.
    """

    name: ClassVar[str]
    special_tokens: ClassVar[bool] = False
    """Whether control tokens are part of the format: then completions are decoded with them."""
    template_arguments: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the chat template that the codec is made for."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a response in this format, besides the model's own."""
    example: str = ""
    """The end of :meth:`system`, where the chat template has written it."""
    inner_tokens: frozenset[str] = frozenset()
    """Control tokens inside an action, which do not end a response."""

    @abstractmethod
    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns instructions for the system message: the tools, and the format of an action.

        Args:
            tools: The tools of the environment.
            max_calls: Maximum number of calls in one step.
        """

    @abstractmethod
    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> ParseResult:
        """Parses ``completion``. Never raises, whatever the string, and takes time linear in its length."""

    @abstractmethod
    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Formats ``action`` as an agent writes it; the inverse of :meth:`parse`.

        Args:
            action: The calls.
            thought: The thought before the action.
            tools: The tools of the environment. Without them, a call whose only argument is ``command`` counts as a
                call of the one command tool.

        Raises:
            UsageError: ``thought`` contains ``</think>``, or ``action`` cannot be written as JSON.
        """

    @abstractmethod
    def show(self, action: Action) -> str:
        """Formats ``action`` briefly, for a history."""

    def format_past_step(self, completion: str, action: Action | None) -> str:
        """Formats a step of the past for a history: its action, ``none`` where the completion did not parse."""
        return "none" if action is None else self.show(action)

    def chat_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Returns the tools for the chat template; ``None`` if the codec describes them itself."""
        return None

    def turn(self, completion: str, tools: Sequence[Tool]) -> CodecTurn:
        """Returns ``completion`` as a message."""
        return CodecTurn({"role": "assistant", "content": completion})

    def reply(self, turn: CodecTurn, text: str) -> dict[str, Any]:
        """Returns the message that answers ``turn`` with ``text``."""
        return {"role": "user", "content": text}

    def after(self, turn: CodecTurn, text: str, tools: Sequence[Tool]) -> str | None:
        """Returns the template's text from the end of ``turn``'s completion to the next generation prompt.

        ``None`` if the answer is an ordinary message of the user. ``text`` is broken, and stays so
        (:mod:`envsuite.prompting.ordinary`).
        """
        return None
