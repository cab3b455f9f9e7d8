from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from official_scripts import hotpot_em, hotpot_f1, hotpot_support, musique_f1, squad_normal_form

from envsuite.searchqa.scoring import (
    CANNOT_BE_ANSWERED,
    CLOSED,
    Judgement,
    exact_match,
    f1,
    judge,
    normalise_answer,
    says_unanswerable,
    support_scores,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Beatles!", "beatles"),
        ("a-b c", "ab c"),  # punctuation goes before articles: "a-b" is one word then
        ("A. B. an apple", "b apple"),
        ("Theatre", "theatre"),
        ("«the» Été", "« » été"),
        ("the_a", "thea"),
        ("", ""),
        ("\tthe\n", ""),
        ("İstanbul", "i̇stanbul"),
    ],
)
def test_normalisation_is_lower_case_then_punctuation_then_articles_then_blanks(text: str, wanted: str) -> None:
    assert normalise_answer(text) == wanted == squad_normal_form(text)


def test_of_an_unanswerable_question_the_claim_that_it_is_is_right_and_the_hidden_answer_wrong() -> None:
    assert judge("Unanswerable.", ["Rome"], answerable=False) == Judgement(1.0, 1.0)
    assert judge("The question cannot be answered", ["Rome"], answerable=False) == Judgement(1.0, 1.0)
    assert judge("Rome", ["Rome"], answerable=False) == Judgement(0.0, 0.0)
    assert judge("unanswerable", ["Rome"]) == Judgement(0.0, 0.0)
    assert judge("Rome", ["Rome"]) == Judgement(1.0, 1.0)
    assert all(normalise_answer(text) == text and says_unanswerable(text) for text in CANNOT_BE_ANSWERED)


texts = (
    st.text(max_size=30)
    | st.text(alphabet="aathe n.'yeso-_ İßé", max_size=20)
    | st.lists(st.sampled_from(["yes", "no", "the", "York", "york", "Obama"]), max_size=4).map(" ".join)
)


@given(texts, st.lists(texts.filter(normalise_answer), max_size=3))
def test_scores_equal_the_official_scripts_on_any_text(answer: str, golds: list[str]) -> None:
    assert exact_match(answer, golds) == any(hotpot_em(answer, gold) for gold in golds)
    assert f1(answer, golds) == max((hotpot_f1(answer, gold) for gold in golds), default=0.0)
    assert f1(answer, golds, closed=()) == max((musique_f1(answer, gold) for gold in golds), default=0.0)
    assert 0.0 <= judge(answer, golds).f1 <= 1.0


@given(st.sampled_from(["The The", "A", "!!!", "the", "a an"]), texts)
@pytest.mark.parametrize("closed", [CLOSED, ()])
def test_of_a_gold_answer_that_normalises_to_nothing_only_itself_is_right(
    closed: tuple[str, ...], gold: str, answer: str
) -> None:
    right = answer.lower().split() == gold.lower().split()
    assert exact_match(answer, [gold]) == bool(f1(answer, [gold], closed)) == right
    assert exact_match(f" {gold.upper()}", [gold]) and f1(gold.lower(), [gold], closed) == 1.0


pages = st.lists(st.sampled_from("ABCDEF"), max_size=8)


@given(pages, pages)
def test_support_scores_equal_hotpotqa_s(found: list[str], gold: list[str]) -> None:
    wanted = support_scores(found, gold)
    assert (wanted.em, wanted.f1, wanted.precision, wanted.recall) == hotpot_support(found, gold)
