"""The interface of a format, and what formats share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.text import DECODER, MAX_DEPTH, MalformedText, deeper_than, is_unicode

MAX_NAME = 256
"""Most characters of a name: a parser looks no further for its end, which keeps it linear."""
SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class CallMatch:
    """A call in a text."""

    call: ToolCall
    start: int
    """Index of the first character of the call, its opening tag included."""
    end: int
    """Index after the call, its closing tag included."""
    id: str | None = None
    """Id that the model gave the call, where its format has one."""


@dataclass(frozen=True)
class CallMismatch(MalformedText):
    """Text that begins like a call and is none."""

    end: int
    """Index from which to look for the next call."""


class Format(ABC):
    """A format in which a family of models writes tool calls."""

    name: str
    thought: tuple[str, str]
    """Text before and after a thought."""

    @property
    def section_ends(self) -> tuple[str, ...]:
        """Texts of which one follows the last call of a completion, where the family has one."""
        return ()

    @abstractmethod
    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls in ``text`` from left to right. Never raises, and takes time linear in its length.

        Args:
            text: A completion after its thought, without the tokens that end it.
            tools: The tools by name, for formats that write arguments without their types.
        """

    def calls(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """As :meth:`read`, without calls that can be neither stored nor executed."""
        for match in self.read(text, tools):
            if isinstance(match, CallMatch):
                arguments = dict(match.call.arguments)
                if deeper_than(arguments, MAX_DEPTH - 1):
                    match = CallMismatch(f"the arguments are nested deeper than {MAX_DEPTH}", match.end)
                elif not is_unicode(match.call.name + json.dumps(arguments, ensure_ascii=False)):
                    match = CallMismatch("the call is not valid Unicode", match.end)
            yield match

    def split(self, completion: str) -> tuple[str | None, str]:
        """Returns the thought of ``completion``, ``None`` if it has none, and the text after it."""
        opening, closing = self.thought
        before, tag, after = completion.partition(closing)
        if tag:
            return before.strip().removeprefix(opening.strip()).strip(), after
        return None, completion

    def content(self, text: str) -> str:
        """Returns the content of the message ``text``, which has no call."""
        return text.strip()

    def beside(self, text: str) -> str:
        """Returns the content of a message whose calls follow ``text``."""
        return text.strip()

    def call_id(self, index: int, call: ToolCall) -> str:
        """Returns an id for the ``index``-th call of a message."""
        return f"call{index:05d}"  # nine letters and digits, which Mistral's templates demand


def skip(text: str, at: int, *marks: str) -> int:
    """Returns the index after blanks and the first of ``marks`` that follows; ``-1`` if none does."""
    at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches the empty string
    return next((at + len(mark) for mark in marks if text.startswith(mark, at)), -1)


def decode(text: str, at: int) -> tuple[Any, int] | CallMismatch:
    """Decodes the JSON value that starts at ``at``; returns it and the index after it."""
    try:
        return DECODER.raw_decode(text, SPACE.match(text, at).end())  # type: ignore[union-attr]
    except RecursionError:
        return CallMismatch("the JSON is nested too deeply", len(text))
    except json.JSONDecodeError as error:
        return CallMismatch(f"not JSON: {error.msg}", max(at, error.pos))
    except ValueError as error:
        return CallMismatch(f"not JSON: {error}", len(text))
