"""Questions in the official layouts of HotpotQA, 2WikiMultiHopQA and MuSiQue, and HotpotQA's on Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from envsuite.retrieval.documents import DocumentProblems
from envsuite.searchqa.passages import Passage, line, passage

HOTPOTQA, TWO_WIKI, MUSIQUE = "hotpotqa", "2wikimultihopqa", "musique"
MOST_CHARACTERS = 10_000
"""Longest question, and longest answer."""
NO_QUESTION = "an entry that is no question of HotpotQA, 2WikiMultiHopQA or MuSiQue (left out)"
NO_ID = "a question without id (left out)"
NO_ANSWER = "a question without an answer (left out)"
LONG = f"a question or answer of more than {MOST_CHARACTERS:,} characters (left out)"
BROKEN_PASSAGE = "a passage of a question without title or text (left out)"
PAST_THE_END = "a supporting fact past the last sentence (its page counts)"
NULL_SUPPORT = "a step of the decomposition without a supporting paragraph"
ELSEWHERE = "a supporting page that is not among the question's passages"
NO_FACTS = "a supporting fact that is no title and number (left out)"
_KINDS = {"compositional": "composition", "bridge_comparison": "bridge-comparison"}
_NAME = re.compile(r"[^a-z0-9]+")
_HOPS = re.compile(r"([1-9])hop")


@dataclass(frozen=True)
class FileQuestion:
    """A question, and the passages that come with it."""

    id: str
    """The id in the data set."""
    text: str
    answers: tuple[str, ...]
    """The answer and its aliases."""
    kind: str
    hops: int
    data_set: str
    answerable: bool
    context: tuple[Passage, ...]
    support: tuple[Passage | str, ...]
    """Supporting passages, in their order, each once; the title alone of one that is not in :attr:`context`."""

    @property
    def task_id(self) -> str:
        """Id of the task; MuSiQue's unanswerable questions have the ids of answerable ones."""
        return self.id if self.answerable else f"{self.id}/unanswerable"


def read_question(
    row: object, place: str, problems: DocumentProblems, aliases: Mapping[str, Sequence[str]] | None = None
) -> FileQuestion | None:
    """Returns the question of an entry; ``None`` for what is none, which is counted.

    The data set is recognised by its fields: MuSiQue's have ``paragraphs`` or ``question_decomposition``,
    2WikiMultiHopQA's ``evidences``, HotpotQA's the rest.

    Args:
        row: The entry.
        place: File, and line or number of the entry.
        problems: Receives what is wrong with it.
        aliases: Further right answers of 2WikiMultiHopQA, by ``answer_id``.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("question"), str) or not line(row["question"]):
        problems.add(NO_QUESTION, place)
        return None
    own = row.get("id", row.get("_id"))
    if not isinstance(own, str) or not line(own):
        problems.add(NO_ID, place)
        return None
    place = f"{place} ({line(own)[:80]})"
    answers = _answers(row, aliases or {})
    if not answers:
        problems.add(NO_ANSWER, place)
        return None
    if max(map(len, (row["question"], own, *answers))) > MOST_CHARACTERS:
        problems.add(LONG, place)
        return None
    question = FileQuestion(line(own), line(row["question"]), answers, "bridge", 2, HOTPOTQA, True, (), ())
    musique = "paragraphs" in row or "question_decomposition" in row
    return _musique(question, row, place, problems) if musique else _by_facts(question, row, place, problems)


def _answers(row: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns the answer and its aliases; nothing if there is no answer."""
    of_id = row.get("answer_id")
    candidates = [
        *(_list(row.get("golden_answers")) or [row.get("answer")]),
        *_list(row.get("answer_aliases")),
        *aliases.get(of_id if isinstance(of_id, str) else "", ()),
    ]
    texts = [candidate.strip() if isinstance(candidate, str) else "" for candidate in candidates]
    return tuple(dict.fromkeys(text for text in texts if text)) if texts[0] else ()


def _by_facts(question: FileQuestion, row: Mapping[str, Any], place: str, problems: DocumentProblems) -> FileQuestion:
    """Reads HotpotQA's layouts, which are 2WikiMultiHopQA's, too: titles with sentences, and numbers of sentences."""
    by_title: dict[str, tuple[Passage, int]] = {}
    context: list[Passage] = []
    for pair in _pairs(row.get("context"), "sentences"):
        page = passage(tuple(pair)) if isinstance(pair, list) and len(pair) == 2 else None
        if page is None:
            problems.add(BROKEN_PASSAGE, place)
            continue
        context.append(page)
        by_title.setdefault(page.title, (page, len(pair[1]) if isinstance(pair[1], list) else 1))
    support: dict[Passage | str, None] = {}
    for fact in _pairs(row.get("supporting_facts"), "sent_id"):
        if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str) and isinstance(fact[1], int)):
            problems.add(NO_FACTS, place)
            continue
        title, number = fact
        if title not in by_title:
            if context:
                problems.add(ELSEWHERE, place)
            support[title] = None
            continue
        page, sentences = by_title[title]
        if not 0 <= number < sentences:
            problems.add(PAST_THE_END, place)
        support[page] = None
    kind = row.get("type") if isinstance(row.get("type"), str) else ""
    kind = _NAME.sub("-", _KINDS.get(str(kind), str(kind)).lower()).strip("-")[:40] or "bridge"
    return replace(
        question,
        kind=kind,
        hops=4 if kind == "bridge-comparison" else 2,
        data_set=TWO_WIKI if "evidences" in row else HOTPOTQA,
        context=tuple(context),
        support=tuple(support),
    )


def _musique(question: FileQuestion, row: Mapping[str, Any], place: str, problems: DocumentProblems) -> FileQuestion:
    by_index: dict[int, Passage] = {}
    supporting: list[Passage] = []
    for position, paragraph in enumerate(_entries(row.get("paragraphs"))):
        page = passage(paragraph)
        if page is None:
            problems.add(BROKEN_PASSAGE, place)
            continue
        index = paragraph.get("idx")
        by_index[index if isinstance(index, int) else position] = page
        if paragraph.get("is_supporting") is True:
            supporting.append(page)
    support: dict[Passage | str, None] = {}
    steps = _entries(row.get("question_decomposition"))
    for step in steps:
        index = step.get("paragraph_support_idx") if isinstance(step, Mapping) else None
        if isinstance(index, int) and index in by_index:
            support[by_index[index]] = None
        else:
            problems.add(NULL_SUPPORT if index is None else ELSEWHERE, place)
    support |= dict.fromkeys(supporting)
    hops = _HOPS.match(question.id)
    return replace(
        question,
        kind="composition",
        hops=int(hops[1]) if hops else max(1, len(steps)),
        data_set=MUSIQUE,
        answerable=row.get("answerable") is not False,
        context=tuple(by_index.values()),
        support=tuple(support),
    )


def _pairs(value: object, second: str) -> list[Any]:
    """Returns the pairs of a list of them, or of the two lists of an object, as Hugging Face has them."""
    if isinstance(value, Mapping):
        return [list(pair) for pair in zip_longest(_list(value.get("title")), _list(value.get(second)))]
    return _list(value)


def _entries(value: object) -> list[Any]:
    """Returns the entries of a list, or those of an object of lists, as Hugging Face has them."""
    if not isinstance(value, Mapping):
        return _list(value)
    return [dict(zip(value, entry, strict=True)) for entry in zip_longest(*map(_list, value.values()))]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
