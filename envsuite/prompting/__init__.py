"""Turns observations into chat messages and completions into tool calls."""

from envsuite.prompting.codecs import (
    CODECS,
    BracketsCodec,
    Codec,
    NativeCodec,
    Parsed,
    TagsCodec,
    ToolsCodec,
    make_codec,
)
from envsuite.prompting.conversation import Conversation, NoRoom
from envsuite.prompting.departure import departure
from envsuite.prompting.memory import Compact, Full, Memory, Rendered, Summary, Window, make_memory
from envsuite.prompting.prompt_file import PromptFile, load_prompt_file
from envsuite.prompting.rendering import ChatTokenizer, Renderer

__all__ = [
    "CODECS",
    "BracketsCodec",
    "ChatTokenizer",
    "Codec",
    "Compact",
    "Conversation",
    "Full",
    "Memory",
    "NativeCodec",
    "NoRoom",
    "Parsed",
    "PromptFile",
    "Rendered",
    "Renderer",
    "Summary",
    "TagsCodec",
    "ToolsCodec",
    "Window",
    "departure",
    "load_prompt_file",
    "make_codec",
    "make_memory",
]
