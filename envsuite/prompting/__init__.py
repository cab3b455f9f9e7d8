"""Turns observations into chat messages and completions into tool calls."""

from envsuite.prompting.chat import Answer, Chat, RawCall
from envsuite.prompting.codecs import CODECS, make_codec
from envsuite.prompting.codecs.base import Codec, ParseResult
from envsuite.prompting.codecs.endpoint import EndpointCodec
from envsuite.prompting.codecs.native import NativeCodec
from envsuite.prompting.codecs.tags import BracketsCodec, TagsCodec
from envsuite.prompting.codecs.tools import ToolsCodec
from envsuite.prompting.conversation import Conversation, PromptTooLong
from envsuite.prompting.departure import departure
from envsuite.prompting.memory import CompactMemory, FullMemory, Memory, RenderedMemory, Summary, Window, make_memory
from envsuite.prompting.prompt_file import PromptFile, load_prompt_file
from envsuite.prompting.rendering import ChatTokenizer, TemplateRenderer
from envsuite.prompting.spec import PromptSpec

__all__ = [
    "CODECS",
    "Answer",
    "BracketsCodec",
    "Chat",
    "ChatTokenizer",
    "Codec",
    "CompactMemory",
    "Conversation",
    "EndpointCodec",
    "FullMemory",
    "Memory",
    "NativeCodec",
    "ParseResult",
    "PromptFile",
    "PromptSpec",
    "PromptTooLong",
    "RawCall",
    "RenderedMemory",
    "Summary",
    "TagsCodec",
    "TemplateRenderer",
    "ToolsCodec",
    "Window",
    "departure",
    "load_prompt_file",
    "make_codec",
    "make_memory",
]
