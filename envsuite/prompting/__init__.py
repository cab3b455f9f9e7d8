"""Turns observations into chat messages and completions into tool calls."""

from envsuite.prompting.chat import Answer, Called, Chat
from envsuite.prompting.codecs import (
    CODECS,
    BracketsCodec,
    Codec,
    EndpointCodec,
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
from envsuite.prompting.spec import PromptSpec

__all__ = [
    "CODECS",
    "Answer",
    "BracketsCodec",
    "Called",
    "Chat",
    "ChatTokenizer",
    "Codec",
    "Compact",
    "Conversation",
    "EndpointCodec",
    "Full",
    "Memory",
    "NativeCodec",
    "NoRoom",
    "Parsed",
    "PromptFile",
    "PromptSpec",
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
