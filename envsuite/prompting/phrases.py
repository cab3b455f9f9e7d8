"""Texts that codecs and memories write into prompts, whatever the environment."""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.core.tools import Tool
from envsuite.prompting.codecs import make_codec


def phrases(tools: Sequence[Tool], codec: str = "brackets") -> list[str]:
    """Returns the reasons for which the codec refuses an answer, and what memories write around a history."""
    reader = make_codec(codec, think=False)
    refusals = [reader.parse(text, tools, 1).error or "" for text in ("", "<action>", "a")]
    return [*refusals, "[1 earlier steps left out]", "Observation: Action: none"]
