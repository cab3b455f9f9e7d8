"""Exact match, F1 and scores of supporting pages, as the official scripts of the data sets compute them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

CLOSED = ("yes", "no", "noanswer")
"""Answers that HotpotQA's script, and 2WikiMultiHopQA's, compare as a whole: F1 is 0 unless both agree."""
CANNOT_BE_ANSWERED = (
    "unanswerable",
    "not answerable",
    "question is unanswerable",
    "question is not answerable",
    "cannot be answered",
    "can not be answered",
    "question cannot be answered",
    "question can not be answered",
    "noanswer",
    "no answer",
    "there is no answer",
)
"""Normalised answers that say that the question has no answer in the corpus."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:an?|the)\b")


def normalise_answer(text: str) -> str:
    """Returns ``text`` as SQuAD's script compares it.

    Lower case; then without ASCII punctuation; then without the articles a, an, the; words joined by one blank. Other
    scripts' punctuation, accents and letters stay as they are.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the normalised ``answer`` equals that of a gold answer or alias.

    A gold answer of which nothing is left, such as "The The", is compared as it is written, but for capitals.
    """
    return any(_comparable(answer, gold) == _comparable(gold, gold) for gold in golds)


def _comparable(text: str, gold: str) -> str:
    """Returns ``text`` normalised, or in lower case where the normalisation leaves nothing of ``gold``."""
    return normalise_answer(text) if normalise_answer(gold) else " ".join(text.lower().split())


def f1(answer: str, golds: Sequence[str], closed: Collection[str] = CLOSED) -> float:
    """Returns the best F1 of ``answer`` over the gold answer and its aliases; 0 without any.

    F1 counts the words that the normalised answers have in common, as often as both have them.

    Args:
        answer: The answer that was given.
        golds: The gold answer and its aliases.
        closed: Normalised answers that count as a whole: one of them against anything else is 0. HotpotQA's and
            2WikiMultiHopQA's scripts have :data:`CLOSED`; SQuAD's and MuSiQue's have none (``()``).

    A gold answer of which nothing is left after the normalisation, such as "The The", agrees (1) with an exact match,
    and with nothing else (0). The scripts differ there: MuSiQue's accepts all that normalises to nothing, HotpotQA's F1
    accepts none.
    """
    return max((_f1(normalise_answer(answer), normalise_answer(gold), closed) for gold in golds), default=0.0) or float(
        any(not normalise_answer(gold) and exact_match(answer, [gold]) for gold in golds)
    )


def _f1(answer: str, gold: str, closed: Collection[str]) -> float:
    if answer != gold and (answer in closed or gold in closed):
        return 0.0
    answer_words, gold_words = answer.split(), gold.split()
    same = (Counter(answer_words) & Counter(gold_words)).total()
    if same == 0:
        return 0.0
    precision, recall = same / len(answer_words), same / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def says_unanswerable(answer: str) -> bool:
    """Whether ``answer`` says that the question cannot be answered (:data:`CANNOT_BE_ANSWERED`)."""
    return normalise_answer(answer) in CANNOT_BE_ANSWERED


@dataclass(frozen=True)
class Judgement:
    """The scores of an answer."""

    em: float
    """1 for an exact match, else 0."""
    f1: float
    """F1 in [0, 1]."""


def judge(answer: str, golds: Sequence[str], answerable: bool = True, closed: Collection[str] = CLOSED) -> Judgement:
    """Returns the scores of ``answer``.

    Of a question that cannot be answered, an answer that says so is right and every other is wrong. That is MuSiQue's
    rule (its script skips such questions in EM and F1, and its sufficiency scores ask whether the system recognised
    them, as a field of its own); here the answer's text takes the place of the field. Of a question that can be
    answered, the claim that it cannot is compared like any other text, so it is wrong.

    Args:
        answer: The answer that was given.
        golds: The gold answer and its aliases; not read if the question cannot be answered.
        answerable: Whether the question can be answered.
        closed: As for :func:`f1`.
    """
    if not answerable:
        right = float(says_unanswerable(answer))
        return Judgement(right, right)
    return Judgement(float(exact_match(answer, golds)), f1(answer, golds, closed))


@dataclass(frozen=True)
class Support:
    """Scores of the supporting pages that were found, as HotpotQA's script scores supporting facts."""

    em: float
    """1 if exactly the supporting pages were found."""
    f1: float
    precision: float
    recall: float


def support_scores(pages: Collection[str], gold: Collection[str]) -> Support:
    """Returns the scores of pages against the supporting ones; each page counts once.

    As in the script, precision and recall over nothing are 0; nothing found where nothing is gold is an exact match.

    Args:
        pages: Keys of the pages that were found.
        gold: Keys of the supporting pages.
    """
    pages, gold = set(pages), set(gold)
    right = len(pages & gold)
    precision = right / len(pages) if pages else 0.0
    recall = right / len(gold) if gold else 0.0
    total = precision + recall
    return Support(float(pages == gold), 2 * precision * recall / total if total else 0.0, precision, recall)
