# ruff: noqa: RUF001  # DeepSeek's tags have a wide bar.
import itertools
import json
import time

import pytest
from families import BY_NAME, codec_of
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import Tool, ToolCall
from envsuite.prompting.formats import FORMATS, CallMatch

FORMAT = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
BY = {form.name: form for form in FORMATS}
TYPES = dict(text="string", count="integer", exact="boolean", where="object", list="array", share="number")
TOOLS = {
    "act": Tool("act", "", {"type": "object", "properties": {name: {"type": form} for name, form in TYPES.items()}})
}
PIECES = [
    *"""<tool_call> </tool_call> <function= act > <parameter=text> </parameter> </function> <arg_key> </arg_key>
    <arg_value> </arg_value> { } [ ] " : , \\ 1 null NaN <|python_tag|> act.call(text= [TOOL_CALLS] [ARGS] [CALL_ID] ( )
    <|tool_call>call:act{ <|"|> <tool_call|> <start_function_call>call: <escape> <end_function_call>
    <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> </｜DSML｜parameter> </｜DSML｜invoke> </invoke>
    <|message|> <|call|> <|end|> <|start|>assistant <TOOLCALL> <|tool_call_begin|>functions.act:0
    <|tool_call_argument_begin|> <|tool_call_end|> <|tool_call_start|>""".split(),
    *("\n", " ", "\n```json\n", "\ud800", '{"name": "act", "arguments": {}}', '<｜DSML｜invoke name="act">'),
    *('<｜DSML｜parameter name="text" string="true">', '<invoke name="', "<|channel|>commentary to=functions.act"),
]


@given(text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
@FORMAT
def test_no_text_makes_a_parser_raise_and_what_it_finds_is_json(form, text):
    thought, rest = form.split(text)
    assert rest in text and (thought is None or thought in text or form.name == "harmony")
    assert isinstance(form.content(rest), str)
    end = 0
    for one in form.calls(rest, TOOLS):
        assert end <= one.end <= len(rest)
        if isinstance(one, CallMatch):
            json.dumps(dict(one.call.arguments), allow_nan=False, ensure_ascii=False).encode()
            assert one.start < one.end
        end = one.end


@FORMAT
def test_long_texts_are_read_in_linear_time(form):
    # Anything worse than linear would take minutes here.
    openings = [piece for piece in PIECES if len(piece) > 3]
    began = time.process_time()
    for piece in (
        *PIECES,
        *("".join(pair) for pair in itertools.islice(itertools.permutations(openings, 2), 0, None, 29)),
    ):
        text = piece * (60_000 // len(piece))
        for _ in form.calls(text, TOOLS):
            pass
        form.split(text)
        form.content(text)
    assert time.process_time() - began < 20


ACT = {"text": "go", "count": 2, "exact": True}
GO = '{"text": "go", "count": 2, "exact": true}'
NAMED = f'{{"name": "act", "arguments": {GO}}}'
PARAMETERS = NAMED.replace("arguments", "parameters")
PYTHON = 'act(text="go", count=2, exact=True)'
SPELLINGS = {
    "hermes": [
        f"<tool_call>{NAMED.replace(' ', '')}</tool_call>",
        f'I go.\n<tool_call>\n\n{{"arguments": {GO}, "name": "act"}} \n</tool_call>',
    ],
    "qwen-xml": [
        "<tool_call><function=act><parameter=text>go</parameter><parameter=count>2</parameter>"
        "<parameter=exact>True</parameter></function></tool_call>",
        "<tool_call>\n<function=act>\n<parameter=text>\ngo\n</parameter>\n<parameter=count>\n2\n</parameter>\n"
        "<parameter=exact>\ntrue\n</parameter>\n</function>\n</tool_call>",
    ],
    "glm": [
        "<tool_call>act\n<arg_key>text</arg_key>\n<arg_value>go</arg_value>\n<arg_key>count</arg_key>"
        "<arg_value>2</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>"
    ],
    "llama": [
        PARAMETERS,
        '<|python_tag|>{"type": "function", ' + PARAMETERS[1:],
        "<|python_tag|>" + PYTHON.replace("act", "act.call", 1),
        "<|python_tag|>" + PYTHON.replace("True", "true"),
    ],
    "olmo": ["I go. <function_calls>\nact(text='go',count=2,exact=true)\n</function_calls>"],
    "mistral-list": [f"[TOOL_CALLS] [{NAMED}]", f'[TOOL_CALLS][{NAMED[:-1]}, "id": "a1b2c3d4e"}}]'],
    "mistral-named": [f"[TOOL_CALLS]act[ARGS]{GO}", f"[TOOL_CALLS]act[CALL_ID]a1b2c3d4e[ARGS]{GO}"],
    "deepseek-v3": [
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>act\n```json\n{GO}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    ],
    "gemma": ['<|tool_call>call:act{text:<|"|>go<|"|>,count:2,exact:true}<tool_call|>'],
    "harmony": [
        f"<|channel|>commentary to=functions.act <|constrain|>json<|message|>{GO}",
        f" to=functions.act<|channel|>commentary json<|message|>{GO}<|call|>",
        "<|channel|>analysis<|message|>I go.<|end|><|start|>assistant<|channel|>commentary to=functions.act"
        f"<|message|>{GO}<|call|>",
    ],
    "kimi": [
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.act:3<|tool_call_argument_begin|>{GO}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    ],
}
SPELLED = [(name, text) for name, texts in SPELLINGS.items() for text in texts]


@pytest.mark.parametrize("name, text", SPELLED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SPELLED)])
def test_spellings_that_models_use_are_read(name, text):
    found = list(BY[name].calls(text, TOOLS))
    assert [one.call for one in found if isinstance(one, CallMatch)] == [ToolCall("act", ACT)], found


WRONG = {
    "hermes": [
        '<tool_call>{"name": "act"}</tool_call>',
        '<tool_call>{"name": "act", "arguments": "go"}</tool_call>',
        '<tool_call>{"name": "act", "arguments": {}}',
        "<tool_call>{'name': 'act', 'arguments': {}}</tool_call>",
        "<tool_call>[]</tool_call>",
        '{"name": "act", "arguments": {}}',
        '<tool_call>{"name": "act", "arguments": {"count": NaN}}</tool_call>',
    ],
    "qwen-xml": [
        "<tool_call><function=act></tool_call>",
        "<tool_call><function=act><parameter=text>go</function></tool_call>",
        "<tool_call><function=act><parameter=text>a</parameter><parameter=text>b</parameter></function></tool_call>",
    ],
    "llama": [
        'I go. {"name": "act", "parameters": {}}',
        '{"name": "act", "parameters": {}} and then',
        "<|python_tag|>import os",
        '<|python_tag|>act.call("go")',
        "<|python_tag|>act(count=2**9)",
    ],
    "olmo": [
        *(
            f"<function_calls>{body}</function_calls>"
            for body in (
                *("act(text=go)", "act(**{})", "act('go')", "act(text='a' 'b', text='c')", "x = act(text='go')"),
                *("[act(text='go')]", "1, 2", "act(count=1e999)", "[" * 90 + "]" * 90),
            )
        ),
        *("<function_calls>act(text='go')", "act(text='go')"),
    ],
    "mistral-named": ["[TOOL_CALLS]act{}", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS]act[ARGS][]"],
    "gemma": [
        '<|tool_call>call:act{text:"go"}<tool_call|>',
        "<|tool_call>call:act{count:2<tool_call|>",
        "<|tool_call>call:act{count:1,count:2}<tool_call|>",
        "<|tool_call>call:act" + "{a:" * 40 + "1" + "}" * 40,
    ],
    "harmony": [
        '<|channel|>commentary to=functions.act<|message|>["go"]<|call|>',
        "to=functions.act {}",
        '<|channel|>analysis<|message|>to=functions.act<|message|>{"text": "go"}<|end|>',
    ],
}
FLAWED = [(name, text) for name, texts in WRONG.items() for text in texts]


@pytest.mark.parametrize("name, text", FLAWED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FLAWED)])
def test_nothing_is_guessed_of_a_text_that_is_no_call(name, text):
    found = list(BY[name].calls(text, TOOLS))
    assert not any(isinstance(one, CallMatch) for one in found), found


def test_arguments_without_quotes_have_the_types_of_the_schema():
    call = "<tool_call><function=act>{}</function></tool_call>"
    for name, text, value in (
        ("text", "5", "5"), ("text", "null", "null"), ("text", " a ", " a "), ("count", "5", 5), ("share", "0.5", 0.5),
        ("exact", "False", False), ("where", '{"x": [1]}', {"x": [1]}), ("count", "many", "many"), ("other", "5", 5),
    ):  # fmt: skip
        (one,) = BY["qwen-xml"].calls(call.format(f"<parameter={name}>{text}</parameter>"), TOOLS)
        assert one.call.arguments == {name: value}


def test_several_calls_and_their_ids_are_read_in_order():
    for name, text, ids in (
        ("mistral-named", '[TOOL_CALLS]a[CALL_ID]111111111[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]222222222[ARGS]{}',
         ["111111111", "222222222"]),
        ("llama", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', None),
        ("olmo", "<function_calls>a(x=1)\nb()</function_calls>", None),
    ):  # fmt: skip
        found = list(BY[name].calls(text, {}))
        assert [one.call.name for one in found] == ["a", "b"] and ids in (None, [one.id for one in found])


CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(st.characters(categories=["L", "N"]), min_size=1),
            "count": st.integers(),
            "exact": st.booleans(),
            "where": st.dictionaries(st.sampled_from(["x", "y"]), st.integers()),
        },
    ).filter(bool),
    min_size=1,
    max_size=3,
)


@given(arguments=CALLS)
@pytest.mark.parametrize("family, kind", [("Qwen2.5", "qwen3"), ("Qwen3.5", "qwen3_5"), ("Gemma 4", "gemma4")])
def test_calls_are_read_as_transformers_reads_them(smol, family, kind, arguments):
    from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
    from transformers.utils.chat_parsing import parse_response

    codec = codec_of(smol, BY_NAME[family])
    calls = [ToolCall("act", one) for one in arguments]
    written = codec.write(calls, "", tuple(TOOLS.values()))
    theirs = next(form for kinds, form in _RESPONSE_TEMPLATE_FALLBACKS.items() if kind in kinds)
    message = parse_response(written, theirs, prefix="", tools=[tool.as_openai() for tool in TOOLS.values()])
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": one.call.name, "arguments": one.call.arguments} for one in codec.dialect.find(written, TOOLS)
    ]
