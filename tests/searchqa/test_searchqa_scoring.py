from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

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


def _perturbed(text: str, rng: random.Random) -> str:
    """The answer with other case, articles, punctuation, order, words or characters."""
    words = text.split()
    change = rng.randrange(10)
    if change == 0:
        return rng.choice((text.upper(), text.title(), text.swapcase()))
    if change == 1:
        return f"{rng.choice(('the', 'A', 'an'))} {text}"
    if change == 2:
        return "".join(c + rng.choice((" ", "", ".", "'", "-", "’", " ", "_")) for c in text)  # noqa: RUF001
    if change == 3:
        rng.shuffle(words)
        return "  ".join(words)
    if change == 4:
        return " ".join(words[: rng.randrange(len(words) + 1)])
    if change == 5:
        return unicodedata.normalize(rng.choice(("NFD", "NFKC", "NFKD")), text)
    if change == 6:
        return " ".join([*words, rng.choice(("yes", "no", "noanswer", "the", *words))])
    if change == 7:
        return rng.choice(("yes", "no", "noanswer", "", "the", "…", "İ", "ß"))
    if change == 8:
        return f"({text})\t{rng.choice(words) if words else ''}"
    return text


@pytest.mark.seconds
@pytest.mark.parametrize("file", ["hotpotqa/train100.json", "2wikimultihopqa/train500.json", "musique/train100.json"])
def test_scores_equal_the_official_scripts_on_perturbed_gold_answers(shared: Path, file: str) -> None:
    rng = random.Random(file)
    questions = json.loads((shared / "data" / "questions" / file).read_text(encoding="utf-8"))
    compared = 0
    for question in questions:
        golds = [question["answer"], *question.get("answer_aliases", [])]
        for _ in range(20):
            given_ = _perturbed(rng.choice(golds), rng)
            if rng.random() < 0.3:
                given_ = _perturbed(given_, rng)
            assert normalise_answer(given_) == squad_normal_form(given_)
            assert exact_match(given_, golds) == bool(max(hotpot_em(given_, gold) for gold in golds))
            assert f1(given_, golds) == max(hotpot_f1(given_, gold) for gold in golds)
            assert f1(given_, golds, closed=()) == max(musique_f1(given_, gold) for gold in golds)
            compared += 1
    assert compared == 20 * len(questions)


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
