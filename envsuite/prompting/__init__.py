"""Turns observations into chat messages and completions into tool calls."""

from envsuite.prompting.codecs import CODECS, BracketsCodec, Codec, Parsed, TagsCodec, ToolsCodec, make_codec
from envsuite.prompting.conversation import Conversation, NoRoom
from envsuite.prompting.memory import Compact, Full, Memory, Summary, Window, make_memory
from envsuite.prompting.prompt_file import PromptFile, load_prompt_file
from envsuite.prompting.template import ChatTokenizer

__all__ = [
    "CODECS",
    "BracketsCodec",
    "ChatTokenizer",
    "Codec",
    "Compact",
    "Conversation",
    "Full",
    "Memory",
    "NoRoom",
    "Parsed",
    "PromptFile",
    "Summary",
    "TagsCodec",
    "ToolsCodec",
    "Window",
    "load_prompt_file",
    "make_codec",
    "make_memory",
]
