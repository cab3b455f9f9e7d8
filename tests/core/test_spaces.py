from __future__ import annotations

import pickle
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import LOOK, SWITCH, Lamps

from envsuite.core import ToolCall
from envsuite.core.spaces import AnyText, TextTuple, ToolCalls

SEEDS = st.integers(0, 2**31 - 1)


@given(st.text())
def test_any_text_contains_every_string_and_nothing_else(text: str) -> None:
    assert text in AnyText()
    for other in (None, 1, text.encode(errors="replace"), [text], (text,), np.array("text")):
        assert not AnyText().contains(other)


@given(st.lists(st.text()))
def test_text_tuple_contains_tuples_of_strings_and_no_lists(texts: list[str]) -> None:
    assert tuple(texts) in TextTuple()
    assert not TextTuple().contains(texts)
    assert not TextTuple().contains((*texts, 1))


@given(SEEDS)
def test_samples_belong_to_their_space_and_follow_from_the_seed(seed: int) -> None:
    for one, other in (
        (AnyText(seed=seed), AnyText(seed=seed)),
        (TextTuple(seed=seed), TextTuple(seed=seed)),
        (Lamps().action_space, Lamps().action_space),
    ):
        one.seed(seed)
        other.seed(seed)
        drawn = [one.sample() for _ in range(3)]
        assert drawn == [other.sample() for _ in range(3)]
        assert all(one.contains(value) for value in drawn)


@given(SEEDS)
def test_a_masked_sample_is_one_of_the_mask(seed: int) -> None:
    space = ToolCalls((SWITCH, LOOK), seed=seed)
    mask = [ToolCall("switch", {"lamp": i}) for i in range(3)]
    assert space.sample(mask=mask)[0] in mask
    only_last = np.array([0.0, 0.0, 1.0])
    assert space.sample(mask=mask, probability=only_last) == (mask[2],)


def test_a_space_that_cannot_propose_asks_for_a_mask() -> None:
    with pytest.raises(ValueError, match="mask"):
        ToolCalls((SWITCH,)).sample()


@pytest.mark.parametrize("calls", [[("switch", {"lamp": 3})], [("look", {})], [("look", {})] * 2])
def test_the_action_space_contains_what_the_schemas_accept(calls: list[tuple[str, dict[str, int]]]) -> None:
    assert ToolCalls((SWITCH, LOOK), max_calls=2).contains([ToolCall(*call) for call in calls])


def test_action_spaces_are_equal_where_they_accept_the_same() -> None:
    assert ToolCalls((SWITCH, LOOK)) == ToolCalls((SWITCH, LOOK))
    assert ToolCalls((SWITCH, LOOK)) != ToolCalls((SWITCH,))
    assert ToolCalls((SWITCH,)) != ToolCalls((SWITCH,), max_calls=2)
    assert AnyText() == AnyText() != TextTuple()


def test_a_pickled_action_space_goes_on_with_the_same_random_numbers_but_proposes_nothing() -> None:
    space = Lamps().action_space
    space.seed(7)
    copied = pickle.loads(pickle.dumps(space))
    assert copied == space
    mask = [ToolCall("switch", {"lamp": lamp}) for lamp in range(100)]
    assert [copied.sample(mask) for _ in range(5)] == [space.sample(mask) for _ in range(5)]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask"):
        copied.sample()


def test_sampled_texts_are_one_to_five_words_of_one_to_seven_letters() -> None:
    space, several = AnyText(seed=0), TextTuple(seed=0)
    texts = [space.sample().split(" ") for _ in range(300)]
    assert {len(words) for words in texts} == set(range(1, 6))
    assert {len(word) for words in texts for word in words} == set(range(1, 8))
    assert {letter for words in texts for word in words for letter in word} == set(string.ascii_lowercase)
    assert {len(several.sample()) for _ in range(100)} == set(range(5))


def test_no_space_of_text_or_calls_is_said_to_flatten_into_numbers() -> None:
    assert not any(space.is_np_flattenable for space in (AnyText(), TextTuple(), ToolCalls((LOOK,))))
