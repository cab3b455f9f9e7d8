from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.retrieval import word_break
from envsuite.retrieval.analysis import STOP_WORDS, analyze, term_of
from envsuite.retrieval.porter import stem
from envsuite.retrieval.word_break import LONGEST, properties, words

RECORDED = orjson.loads((Path(__file__).parent / "lucene_terms.json").read_bytes())["pairs"]

# Characters of all classes of the table, the rare ones as likely as letters.
CLASSES = sorted(set(properties().of))
SOME = [chr(properties().of.index(number)) for number in CLASSES]
texts = st.text(st.one_of(st.sampled_from(SOME), st.characters()), max_size=40)


def test_terms_are_those_that_lucene_found_in_recorded_texts() -> None:
    different = [text for text, terms in RECORDED if analyze(text) != terms]
    assert not different
    assert len(RECORDED) == 400


@given(texts)
def test_any_text_is_analysed_and_no_term_is_empty(text: str) -> None:
    terms = analyze(text)
    assert all(terms)
    assert not set(terms) & {"the", "and"}


@given(texts)
def test_words_follow_each_other_in_the_text_and_no_word_is_too_long(text: str) -> None:
    at = 0
    for word in words(text):
        at = text.index(word, at) + len(word)
        assert len(word.encode("utf-16-le", "surrogatepass")) <= 2 * LONGEST


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_the_short_way_for_ascii_finds_what_the_automaton_finds(text: str) -> None:
    assert words(text) == [text[start:end] for start, end in word_break._spans(text)]


@given(texts, st.sampled_from([" ", "\n", "\t", "\u3000", "\u2028", "\x1c"]), texts)
def test_white_space_ends_every_word(left: str, space: str, right: str) -> None:
    assert words(left + space + right) == words(left) + words(right)


def test_of_all_white_space_only_one_character_joins_words() -> None:
    joining = [c for c in range(0x110000) if chr(c).isspace() and properties().names[properties().of[c]]]
    assert joining == [0x202F]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The cats' toys, O'Neil's", ["cat", "toi", "o'neil"]),
        ("wi:fi 12:30 3.5mm 1,000 a_b", ["wi:fi", "12", "30", "3.5mm", "1,000", "a_b"]),
        ("★ five® stars™ 👍🏽 🇩🇪🇫🇷", ["★", "five", "®", "star", "™", "👍🏽", "🇩🇪", "🇫🇷"]),
        ("東京タワー ひら ภาษาไทย 한국어", ["東", "京", "タワー", "ひ", "ら", "ภาษาไทย", "한국어"]),
        ("İSTANBUL ΛΌΓΟΣ", ["istanbul", "λόγοσ"]),
        ("...!? -- __ \u200d \ud800", []),
    ],
)
def test_the_rules_by_example(text: str, terms: list[str]) -> None:
    assert analyze(text) == terms


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("agreed", "agre"), ("feed", "feed"),
        ("hopping", "hop"), ("hoping", "hope"), ("falling", "fall"), ("relational", "relat"), ("sky", "sky"),
        ("happy", "happi"), ("archaeology", "archaeolog"), ("possibly", "possibl"), ("adoption", "adopt"),
        ("controlling", "control"), ("rate", "rate"), ("ion", "ion"), ("ies", "i"), ("us", "us"), ("", ""),
    ],
)  # fmt: skip
def test_stems(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


def test_a_word_is_cut_at_255_units_and_goes_on_as_a_new_one() -> None:
    assert list(map(len, words("a" * 600))) == [255, 255, 90]
    assert list(map(len, words("𐐨" * 300))) == [127, 127, 46]


@pytest.mark.parametrize("unit", ["_", "_\u0301", "\u200d", "x_", "#\u0301"])
def test_a_long_run_of_anything_is_analysed_in_seconds(unit: str) -> None:
    start = time.process_time()
    words(unit * (300_000 // len(unit)))
    assert time.process_time() - start < 5


def test_there_are_33_stop_words() -> None:
    assert len(STOP_WORDS) == 33 and all(term_of(word.upper()) is None for word in STOP_WORDS)
