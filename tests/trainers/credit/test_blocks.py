"""Blocks of planned answers, told by the tokens of a response."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from step_tables import table_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envsuite.prompting.plan import read_plan
from trainers.credit.blocks import Blocks
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import BLOCKS

ANSWER = "<think>ä</think><switch>KEEP</switch><subgoal>find a mug</subgoal><action>look</action>"
TAGS = ["<switch>", "</switch>", "</subgoal><action>", "</think><swi", "tch>", "find a", "KEEP"]
TEXT = st.text(alphabet="a <>/é日😀", max_size=6)


def byte_level() -> PreTrainedTokenizerFast:
    """All bytes, and some tokens that go over the ends of blocks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    made.add_tokens(TAGS)
    return made


TOKENIZER = byte_level()


def table(answers: list[list[int]], logprob: float = -0.25) -> StepTable:
    response = Ragged.of(answers, np.int32)
    steps = table_of([(0, n // 2, n % 2, 0.0, "", True) for n in range(len(answers))])
    chosen = Ragged(np.full(len(response.values), logprob, np.float32), response.offsets)
    return replace(steps, response=response, logprob=chosen, extra={}, token_extra={})


@given(st.lists(st.one_of(TEXT, st.sampled_from(TAGS)), max_size=12).map("".join))
def test_a_token_is_in_the_block_of_its_first_character(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    decoded, begins = Blocks(TOKENIZER).begins(ids)
    assert decoded == text and len(begins) == len(ids) and (np.diff(begins) >= 0).all()
    for place, token in enumerate(ids):
        own = TOKENIZER.decode([token])
        if "\ufffd" not in own:
            assert text[begins[place] :].startswith(own)
    found = Blocks(TOKENIZER).columns(table([ids])).token_extra["block"].values
    spans = read_plan(text).spans
    for begin, code in zip(begins, found, strict=True):
        inside = [name for name, (first, end) in spans.items() if first <= begin < end]
        assert code == (BLOCKS[inside[0]] if inside else 0)


def test_the_columns_of_a_planned_answer():
    answers = [ANSWER, ANSWER, ANSWER.replace("KEEP", "no"), "<action>look</action>"]
    ids = [TOKENIZER.encode(answer, add_special_tokens=False) for answer in answers]
    ids[1] = [*ids[1], TOKENIZER.eos_token_id]
    steps = Blocks(TOKENIZER).columns(table(ids))
    assert steps.extra["switch"].tolist() == [False, False, True, False]
    assert steps.extra["segment"].tolist() == [True, False, True, False], "the first of each episode, and a switch"
    for row, (own, answer) in enumerate(zip(ids, answers, strict=True)):
        said = int((steps.token_extra["block"][row] == BLOCKS["switch"]).sum())
        chosen = np.exp(-0.25 * said)
        wanted = {2: chosen, 3: 0.0}.get(row, 1.0 - chosen)
        assert steps.extra["switch_probability"][row] == pytest.approx(wanted)
        before = TOKENIZER.decode(own[: steps.extra["low_start"][row]], skip_special_tokens=True)
        # One token ends the subgoal and begins the action: the value is read after it.
        assert before == (answer[: answer.index("<action>") + len("<action>")] if row < 3 else "")
    assert steps.token_extra["block"][1][-1] == 0, "the end of the turn is in no block"


def test_a_response_that_ends_with_its_subgoal_and_an_empty_one():
    ids = TOKENIZER.encode("<subgoal>a</subgoal>", add_special_tokens=False)
    steps = Blocks(TOKENIZER).columns(table([ids, []]))
    assert steps.extra["low_start"].tolist() == [len(ids), 0]
    empty = Blocks(TOKENIZER).columns(table([]))
    assert len(empty.extra["segment"]) == 0


def pieces_with_spaces() -> PreTrainedTokenizerFast:
    """Words that hold the space before them, which the decoder strips at the beginning; bytes of what is unknown."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz<>/_", "▁find", "▁a"]
    tokenizer = Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


SPACED = pieces_with_spaces()


@given(st.lists(st.one_of(TEXT, st.sampled_from(["<switch>", "find a", "</switch>"])), max_size=8).map("".join))
def test_places_are_the_lengths_of_what_was_decoded_before(text):
    ids = SPACED.encode(text, add_special_tokens=False)
    decoded, begins = Blocks(SPACED).begins(ids)
    assert decoded == SPACED.decode(ids)
    before = [len(SPACED.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
    assert_array_equal(begins, np.minimum(np.maximum.accumulate(np.array(before, np.int64)), len(decoded)))


@given(st.sampled_from([TOKENIZER, SPACED]), st.lists(st.integers(0, 255), max_size=14))
@example(SPACED, [36, 177, 0])  # the stream of the tokenizer gives up on these
def test_any_tokens_have_places_bytes_that_are_no_text_among_them(tokenizer, ids):
    decoded, begins = Blocks(tokenizer).begins(ids)
    assert decoded == tokenizer.decode(ids) and len(begins) == len(ids)
    assert (np.diff(begins, prepend=0) >= 0).all() and (begins <= len(decoded)).all()
    if "\ufffd" not in decoded:
        before = [len(tokenizer.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
        assert_array_equal(begins, np.maximum.accumulate(np.array(before, np.int64)))
