"""Search for the answer to a question: passages that are found, pages that are opened, and an answer that is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.searchqa import prompts
from envsuite.searchqa.scoring import CLOSED, Judgement, judge, support_scores

LONGEST_QUERY = 1_000
"""Characters of the longest query that is searched, and of the longest answer."""
LONGEST_PAGE = 8_000
"""Characters of a page that ``open`` shows."""
MOST_LINKS = 30
"""Links of a page that ``open`` shows."""
_SEARCHES, _CONTENTS = 10_000, 20_000
"""Results and passages that a process remembers."""


@dataclass(frozen=True)
class SearchedQuestion:
    """A question to answer."""

    id: str
    text: str
    answers: tuple[str, ...]
    """The answer and its aliases."""
    support: tuple[str, ...]
    """Keys of the pages that have the answer, in the order in which they are needed."""
    answerable: bool
    data_set: str

    def judge(self, answer: str) -> Judgement:
        """Returns the scores of an answer, by the rules of the data set's script."""
        closed_answers = () if self.data_set == "musique" else CLOSED
        return judge(answer, self.answers, self.answerable, closed_answers)


class SavedQuestion(TypedDict):
    """The state of a session, as plain data."""

    seen: list[int]
    queries: list[str]
    opened: list[int]
    invalid: int
    answer: str | None


@dataclass(frozen=True)
class QuestionStep:
    """The result of a step."""

    lines: tuple[str, ...]
    """Result of each call that was executed or refused."""
    errors: tuple[str, ...]
    """Why calls were refused."""
    found: tuple[int, ...]
    """The passages that searches returned, each once."""


class PageLibrary:
    """A corpus to search, with results and passages that its sessions share.

    Args:
        corpus: The pages.
        retriever: The search; by default the corpus's own.
    """

    def __init__(self, corpus: Corpus, retriever: Retriever | None = None) -> None:
        self.corpus = corpus
        self.retriever: Retriever = corpus if retriever is None else retriever
        self.search = lru_cache(maxsize=_SEARCHES)(self._search)
        self.content = lru_cache(maxsize=_CONTENTS)(self._content)

    def _search(self, query: str, results: int) -> tuple[int, ...]:
        """Returns the best passages for a query, best first."""
        return tuple(self.retriever.search(query, results)[0].tolist())

    def _content(self, number: int) -> tuple[str, str]:
        """Returns key and text of a passage."""
        return self.corpus.key(number), self.corpus.content(number)[1]


class QuestionSearch:
    """One episode: a question, and what has been found for it.

    Args:
        library: The pages.
        question: The question.
        results: Passages that a search returns.
    """

    def __init__(self, library: PageLibrary, question: SearchedQuestion, results: int) -> None:
        self.library, self.question, self.results = library, question, results
        self.seen: dict[int, None] = {}
        """Passages found or opened, in their order."""
        self.queries: list[str] = []
        """Queries that were searched."""
        self.opened: list[int] = []
        self.invalid = 0
        """Steps with a call that was refused."""
        self.answer: str | None = None

    def step(self, calls: Sequence[tuple[str, str]]) -> QuestionStep:
        """Executes calls in their order, up to an answer, which ends the episode.

        Searches see nothing of each other: they could as well run at once.

        Args:
            calls: Name and argument of each.
        """
        lines: list[str] = []
        errors: list[str] = []
        hits: dict[int, None] = {}
        for tool, argument in calls:
            if tool == "search":
                line, why = self._search(argument, hits)
            else:
                line, why = self._open(argument) if tool == "open" else self._answer(argument)
            if why:
                errors.append(why)
            lines.append(prompts.refusal_line(tool, argument, why) if why else line)
            if self.answer is not None:
                break
        self.invalid += bool(errors)
        self.seen |= hits
        return QuestionStep(tuple(lines), tuple(errors), tuple(hits))

    def _search(self, query: str, hits: dict[int, None]) -> tuple[str, str]:
        """Returns what was done, or why it was refused."""
        words = " ".join(query.split())
        if not words:
            return "", prompts.EMPTY_QUERY
        if len(words) > LONGEST_QUERY:
            return "", prompts.too_long("query", len(words), LONGEST_QUERY)
        again = words in self.queries
        if not again:
            self.queries.append(words)
        numbers = self.library.search(words, self.results)
        new = sum(number not in self.seen for number in numbers)
        hits.update(dict.fromkeys(numbers))
        return prompts.search_line(words, len(numbers), new, again), ""

    def _open(self, key: str) -> tuple[str, str]:
        key = key.strip()
        number = self.library.corpus.number(key) if len(key) <= LONGEST_QUERY else None
        if number is None:
            return "", prompts.NO_PAGE
        page = self.library.corpus.document(number)
        self.seen[number] = None
        if number not in self.opened:
            self.opened.append(number)
        return prompts.page(page.key, prompts.shorten_text(page.text, LONGEST_PAGE), page.links, MOST_LINKS), ""

    def _answer(self, text: str) -> tuple[str, str]:
        if not text.strip():
            return "", prompts.EMPTY_ANSWER
        if len(text) > LONGEST_QUERY:
            return "", prompts.too_long("answer", len(text), LONGEST_QUERY)
        self.answer = text
        return "", ""

    def judgement(self) -> Judgement:
        """Returns the scores of the answer; zeros as long as there is none."""
        return Judgement(0.0, 0.0) if self.answer is None else self.question.judge(self.answer)

    def view(self, most: int, length: int, last: Sequence[int] | None = None) -> str:
        """Returns what an agent sees: passages, and earlier queries.

        Args:
            most: Most passages that are shown, the last ones found.
            length: Characters of each that are shown.
            last: Passages to show, without the queries; by default all that were found.
        """
        numbers = [*self.seen] if last is None else [*last]
        cards = [prompts.passage(*self.library.content(number), length) for number in numbers[-most:]]
        return prompts.view(cards, len(numbers), self.queries if last is None else ())

    def keys(self) -> list[str]:
        """Returns the keys of the passages that were found or opened."""
        return [self.library.content(number)[0] for number in self.seen]

    def metrics(self) -> dict[str, float]:
        """Returns EM and F1 of the answer, precision and recall of the supporting pages, and numbers of calls."""
        scores, support = self.judgement(), support_scores(self.keys(), self.question.support)
        return {
            "em": scores.em,
            "f1": scores.f1,
            "support_recall": support.recall,
            "support_precision": support.precision,
            "searches": float(len(self.queries)),
            "opened": float(len(self.opened)),
            "calls": float(len(self.queries) + len(self.opened) + (self.answer is not None)),
            "passages": float(len(self.seen)),
        }

    def key(self) -> str:
        """Returns the identity of what is known: the question, the passages and the queries, in any order."""
        return (
            f"{self.question.text}\n{sorted(self.seen)}\n{sorted(self.queries)}\n{sorted(self.opened)}\n{self.answer}"
        )

    def save(self) -> SavedQuestion:
        """Returns the state as plain data."""
        return SavedQuestion(
            seen=[*self.seen], queries=[*self.queries], opened=[*self.opened], invalid=self.invalid, answer=self.answer
        )

    def load(self, saved: SavedQuestion) -> None:
        """Takes over a saved state of a session of the same question."""
        self.seen = dict.fromkeys(saved["seen"])
        self.queries, self.opened = [*saved["queries"]], [*saved["opened"]]
        self.invalid, self.answer = saved["invalid"], saved["answer"]
