"""A tokenizer of bytes: whatever a codec writes is read back from its tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import Tool, ToolCall
from envsuite.prompting import make_codec
from trainers.imitation.vocabulary import CONTROL, TAGS, byte_tokenizer

TEXTS = (
    "Bring the lamp from the mill to the market.",
    '<action>go {"place": "mill"}</action>',
    "You carry the lamp.",
) * 3
TOKENIZER = byte_tokenizer(TEXTS, 512)
TEXT = (
    st.text() | st.sampled_from(["mill", " mill", "the  mill\n", '"', "\\", "<action>", "é", "🙂", "00", "<tool_call>"])
).filter(lambda text: not any(name in text for name in CONTROL))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ANY = {"type": "object", "properties": {}}
TOOLS = (Tool("go", "Go.", ANY), Tool("put", "Put.", ANY), Tool.of_string("say", "Say.", "words", ""))
CALLS = st.builds(ToolCall, st.sampled_from(["go", "put"]), st.dictionaries(TEXT, JSON, max_size=3)) | st.builds(
    lambda text: ToolCall("say", {"words": text}), TEXT
)


def through(text: str) -> str:
    """What the model would have written: the text as tokens, and these as text."""
    return str(TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)))


@given(st.lists(TEXT).map("".join).filter(lambda text: not any(name in text for name in CONTROL)))
def test_every_text_comes_back_as_it_was(text):
    assert through(text) == text
    assert TOKENIZER.unk_token_id not in TOKENIZER.encode(text)


@pytest.mark.parametrize("name", ["tags", "brackets", "tools"])
@given(action=st.lists(CALLS, min_size=1, max_size=2), thought=TEXT.filter(lambda text: "</think>" not in text))
def test_what_a_codec_writes_is_read_back_from_its_tokens(name, action, thought):
    codec: Any = make_codec(name)
    assert codec.parse(through(codec.write(action, thought, TOOLS)), TOOLS, 2).action == tuple(action)


def test_frequent_words_are_one_token_wherever_they_stand():
    (mill,) = TOKENIZER.encode("mill", add_special_tokens=False)
    for text in ("the mill", '"mill"', "go[mill]", "mill."):
        assert mill in TOKENIZER.encode(text, add_special_tokens=False)
    assert [TOKENIZER.convert_tokens_to_ids(name) for name in (*CONTROL, *TAGS)] == list(
        range(len(CONTROL) + len(TAGS))
    )
