"""Actions as tool calls that an endpoint takes out of the model's answers itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envsuite.core.tools import REPLY, Tool
from envsuite.prompting.codecs.base import REPLY_HINT, function_schemas
from envsuite.prompting.codecs.tools import ToolsCodec


@dataclass(frozen=True)
class EndpointCodec(ToolsCodec):
    """The codec ``native`` where an endpoint has the chat template, and its calls come back apart from the text.

    Calls go through :class:`~envsuite.prompting.Chat`; in text, which records keep, they are those of
    :class:`ToolsCodec`.
    """

    name: ClassVar[str] = "native"
    think: bool = False
    """Whether the instructions ask for a thought, as text beside the call."""

    def system(self, tools: Sequence[Tool], max_calls: int) -> str:
        """Returns how many calls to answer with; the endpoint lists the tools."""
        count = "one tool call" if max_calls == 1 else f"one to {max_calls} tool calls"
        before = "a thought, as text, and " if self.think else ""
        return f"Answer each observation with {before}{count}.{REPLY_HINT if REPLY in tools else ''}"

    def chat_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Returns OpenAI's function schemas."""
        return function_schemas(tools)
