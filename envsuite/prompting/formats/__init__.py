# ruff: noqa: RUF001  # DeepSeek's tags have a wide bar.
"""Formats in which families of models write tool calls, with a parser each.

A parser is strict, never raises, and takes time linear in the length of the text.
"""

from envsuite.prompting.formats.base import CallMatch, CallMismatch, Format
from envsuite.prompting.formats.braced import BracedCalls
from envsuite.prompting.formats.harmony import Harmony
from envsuite.prompting.formats.json_calls import JsonCalls, NamedJson
from envsuite.prompting.formats.llama import LlamaCalls
from envsuite.prompting.formats.pythonic import PythonicCalls
from envsuite.prompting.formats.tagged import MarkedCalls, TaggedCalls

__all__ = ["FORMATS", "CallMatch", "CallMismatch", "Format"]

_MISTRAL = ("[THINK]", "[/THINK]")
_PARAMETER = ('<parameter name="', '">'), ("", "</parameter>")
_MARKED = ('<｜DSML｜parameter name="', '">'), ("", "</｜DSML｜parameter>")

FORMATS: tuple[Format, ...] = (
    JsonCalls("hermes", "<tool_call>", "</tool_call>"),
    TaggedCalls(
        "qwen-xml", ("<tool_call>", "<function="), (">",), ("<parameter=", ">"), ("", "</parameter>"),
        ("</function>", "</tool_call>"), line_ends=True,
    ),
    TaggedCalls(
        "glm", ("<tool_call>",), ("\n", "<arg_key>", "</tool_call>"), ("<arg_key>", "</arg_key>"),
        ("<arg_value>", "</arg_value>"), ("</tool_call>",),
    ),
    LlamaCalls(),
    PythonicCalls("olmo", "<function_calls>", "</function_calls>"),
    JsonCalls("mistral-list", "[TOOL_CALLS]", "", id_key="id", thought=_MISTRAL),
    NamedJson("mistral-named", "[TOOL_CALLS]", "[ARGS]", "", id_mark="[CALL_ID]", thought=_MISTRAL),
    NamedJson(
        "deepseek-v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "```<｜tool▁call▁end｜>",
        section_ends=("<｜tool▁calls▁end｜>",),
    ),
    NamedJson(
        "deepseek-v3.1", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        section_ends=("<｜tool▁calls▁end｜>",),
    ),
    MarkedCalls(
        "deepseek-dsml", ('<｜DSML｜invoke name="',), ('">',), *_MARKED, ("</｜DSML｜invoke>",),
        section_ends=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    ),
    BracedCalls("gemma", "<|tool_call>call:", "<tool_call|>", '<|"|>', thought=("<|channel>thought", "<channel|>")),
    BracedCalls("function-gemma", "<start_function_call>call:", "<end_function_call>", "<escape>"),
    Harmony(),
    TaggedCalls(
        "minimax", ('<invoke name="',), ('">',), *_PARAMETER, ("</invoke>",), section_ends=("</minimax:tool_call>",)
    ),
    NamedJson(
        "kimi", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        section_ends=("<|tool_calls_section_end|>",), id_names=True,
    ),
    JsonCalls("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    NamedJson("functionary", "<function=", ">", "</function>"),
)  # fmt: skip
"""The known formats, in the order in which they are tried on what a chat template renders."""
