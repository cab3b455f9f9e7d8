"""Paper search as StepPO plays it: a pool of papers that grows by searches and by following citations.

The rules are those of StepPO (appendix B.1 and B.2, "Academic Paper Search", and ``recipe/paper_search`` of its code),
which takes them from PaperScout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from envsuite.papersearch import prompts
from envsuite.papersearch.question import CorpusQuery
from envsuite.papersearch.selectors import LexicalSelector, Selector
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever

Numbers = NDArray[np.int64]
LONGEST_QUERY = 1_000
"""Characters of the longest query that is searched."""
LONGEST_TITLE = 200
"""Characters of a title that are shown."""
_SEARCHES, _EXPANSIONS, _CARDS = 10_000, 10_000, 20_000
"""Results and lines that a process remembers."""
REWARDS = ("call", "step")
"""Ways to choose the paid papers: the best new ones of each call, as in StepPO's code, or of the step."""
Finder = tuple[bool, int]
"""A call that finds a paper: whether it is an expansion, and its place in the step."""


@dataclass(frozen=True)
class Rules:
    """The rules of an episode; the defaults are StepPO's (B.1, B.2)."""

    results: int = 10
    """Papers that a search returns."""
    citing: int = 30
    """Most papers that cite the expanded one."""
    cited: int = 99
    """Most papers that the expanded one cites."""
    best: int = 3
    """Number of newly found papers whose scores make the reward of a call, or of a step."""
    penalty: float = 0.5
    """Charged for a repeated search, and for an invalid or repeated expansion."""
    cost: float = 0.0
    """Charged for each other call. The paper calls it optional and gives no value."""
    discard: float = 0.01
    """Papers with lower scores are discarded when they are found. The paper says "near-zero" and gives no value."""
    threshold: float = 0.5
    """Papers with at least this score make the final list. The paper gives no value."""
    reward: str = "call"
    """One of :data:`REWARDS`. The paper says "each search or expansion step"; its code adds up the calls of a step."""


class SavedLiterature(TypedDict):
    """The state of a session, as plain data."""

    papers: list[int]
    scores: list[float]
    places: list[float]
    asked: list[str]
    expanded: list[int]
    history: list[str]
    searches: int
    expansions: int


@dataclass(frozen=True)
class SearchReport:
    """The result of a step."""

    lines: tuple[str, ...]
    """Result of each call."""
    errors: tuple[str, ...]
    """Why calls were refused."""
    reward: float


class PaperLibrary:
    """A corpus to search, with what its sessions share: results of searches and expansions, lines of papers.

    Args:
        corpus: The papers.
        retriever: The search; by default the corpus's own.
    """

    def __init__(self, corpus: Corpus, retriever: Retriever | None = None) -> None:
        self.corpus = corpus
        self.retriever: Retriever = corpus if retriever is None else retriever
        self.words = LexicalSelector(corpus)
        self._numbers: dict[str, int] = {}
        self.search = lru_cache(maxsize=_SEARCHES)(self._search)
        self.expand = lru_cache(maxsize=_EXPANSIONS)(self._expand)
        self.card = lru_cache(maxsize=_CARDS)(self._card)

    def key(self, paper: int) -> str:
        """Returns the id of a paper, and remembers it for :meth:`number`."""
        if len(self._numbers) >= _CARDS:
            self._numbers.clear()
        key = self.corpus.key(paper)
        self._numbers[key] = paper
        return key

    def number(self, key: str) -> int | None:
        """Returns the paper with an id; ``None`` where there is none. Fast for papers that were shown."""
        number = self._numbers.get(key)
        return self.corpus.number(key) if number is None else number

    def _search(self, query: str, results: int, stop: int) -> tuple[int, ...]:
        """Returns the best papers for a query, of those before ``stop``."""
        return tuple(self.retriever.search(query, results, stop)[0].tolist())

    def _expand(self, paper: int, citing: int, cited: int, stop: int) -> tuple[int, ...]:
        """Returns papers that cite a paper, then papers that it cites, of those before ``stop``.

        Of more than ``citing`` or ``cited`` the most cited ones are returned, and of equally cited ones the older.
        """
        newer, older = self.corpus.linked_by(paper), self.corpus.links(paper)
        first = self._most_cited(newer[newer < stop], citing, stop)
        return tuple(dict.fromkeys((*first, *self._most_cited(older[older < stop], cited, stop))))

    def _most_cited(self, papers: NDArray[np.uint32], most: int, stop: int) -> list[int]:
        numbers: list[int] = papers.tolist()
        if len(numbers) <= most:
            return numbers
        counts = {number: int(np.searchsorted(self.corpus.linked_by(number), stop)) for number in numbers}
        return sorted(numbers, key=lambda number: (-counts[number], number))[:most]

    def _card(self, paper: int, snippet: int) -> str:
        """Returns the line that shows a paper."""
        title, text = self.corpus.content(paper)
        return prompts.paper(self.key(paper), self.corpus.date(paper), title, text, snippet, LONGEST_TITLE)


def _words(query: str) -> str:
    return " ".join(query.split())


class LiteratureSearch:
    """One episode: a query, and what has been found for it.

    Args:
        library: The papers.
        selector: Scores papers.
        rules: The rules.
        question: The query.
    """

    def __init__(self, library: PaperLibrary, selector: Selector, rules: Rules, question: CorpusQuery) -> None:
        self.library, self.selector, self.rules, self.question = library, selector, rules, question
        self.papers: Numbers = np.zeros(0, dtype=np.int64)
        """The pool, in the order in which papers were found."""
        self.scores = np.zeros(0)
        """Score of each paper by the selector."""
        self._places = self.scores
        """Scores by which papers are shown: the selector's, or those of words where it is not shown."""
        self.pool: set[int] = set()
        self.asked: dict[str, None] = {}
        """Queries that were searched, in lower case and with single blanks."""
        self.expanded: dict[int, None] = {}
        self.history: list[str] = []
        """Result of each call, as it was said."""
        self.searches = self.expansions = 0
        self._order: Numbers | None = None

    def step(self, calls: Sequence[tuple[str, str]]) -> SearchReport:
        """Executes calls together; each sees the pool as it is at the beginning, whatever their order.

        The reward is the sum of the :attr:`Rules.best` highest scores among the papers that are new to the pool, of
        each call or of the step (:attr:`Rules.reward`), minus the cost of each call that is executed, minus the penalty
        of each repeated search and each invalid or repeated expansion. A paper that several calls find is the first
        search's, or where no search finds it the first expansion's: StepPO's code starts the calls together, and a
        search has one answer to wait for where an expansion has two. Of equal calls in one step, one is executed and
        the others are repeated; paid by call, such a search is charged only if the first finds nothing new: the code
        knows only those that have ended.

        Args:
            calls: Name and argument of each.
        """
        finders: dict[int, Finder] = {}
        lines: list[str] = []
        errors: list[str] = []
        executions = penalties = 0
        earlier = {*self.asked}
        for place, (tool, argument) in enumerate(calls):
            numbers, why, charge = self._search(argument, earlier) if tool == "search" else self._expand(argument)
            if why:
                errors.append(why)
                penalties += charge
                lines.append(prompts.describe_refusal(tool, argument, why))
                continue
            executions += 1
            new = [number for number in numbers if number not in self.pool]
            if tool == "search" and not new:  # StepPO's code has nothing to wait for, so it knows this one at once
                earlier.add(_words(argument).lower())
            finder = (tool == "expand", place)  # sorts searches before expansions
            for paper in new:
                finders[paper] = min(finder, finders.get(paper, finder))
            say = prompts.describe_search if tool == "search" else prompts.describe_expansion
            lines.append(say(argument.strip(), len(numbers), len(new)))
        reward = self._add(finders) - self.rules.cost * executions - self.rules.penalty * penalties
        self.history += lines
        return SearchReport(tuple(lines), tuple(errors), reward)

    def _search(self, query: str, earlier: Collection[str]) -> tuple[tuple[int, ...], str, bool]:
        """Returns the papers found, or why the query was refused and whether that is charged.

        Args:
            query: The query.
            earlier: Queries that have ended: those of earlier steps, and those of this step that found nothing new.
        """
        words = _words(query)
        if not words:
            return (), prompts.EMPTY_QUERY, False
        if len(words) > LONGEST_QUERY:
            return (), prompts.too_long(len(words), LONGEST_QUERY), False
        if words.lower() in self.asked:
            return (), prompts.REPEATED_SEARCH, self.rules.reward == "step" or words.lower() in earlier
        papers = self.library.search(words, self.rules.results, self.question.stop)
        self.asked[words.lower()] = None
        self.searches += 1
        return papers, "", False

    def _expand(self, key: str) -> tuple[tuple[int, ...], str, bool]:
        """Returns the papers found, or why the expansion was refused and whether that is charged."""
        number = self.library.number(key.strip()) if len(key) <= LONGEST_QUERY else None
        if number is None or number not in self.pool:
            return (), prompts.NOT_THERE, True
        if number in self.expanded:
            return (), prompts.REPEATED_EXPANSION, True
        papers = self.library.expand(number, self.rules.citing, self.rules.cited, self.question.stop)
        self.expanded[number] = None
        self.expansions += 1
        return papers, "", False

    def _add(self, finders: Mapping[int, Finder]) -> float:
        """Adds papers, each with the call that found it, to the pool; returns the reward for them."""
        if not finders:
            return 0.0
        papers = np.array([*finders], dtype=np.int64)
        scores = self.selector.scores(self.question, papers)
        is_kept = scores >= self.rules.discard
        reward = self._compute_reward(scores[is_kept], papers[is_kept], finders)
        if self.selector.is_visible:
            papers, places = papers[is_kept], scores[is_kept]
            scores = places
        else:  # discarding would tell what the selector prefers
            places = self.library.words.shares(self.question.text, papers)
        self._append(papers, scores, places)
        self.pool.update(papers.tolist())
        return reward

    def _append(self, papers: Numbers, scores: NDArray[np.float64], places: NDArray[np.float64]) -> None:
        self.papers = np.concatenate([self.papers, papers])
        self.scores = np.concatenate([self.scores, scores])
        self._places = np.concatenate([self._places, places])
        self._order = None

    def _compute_reward(self, scores: NDArray[np.float64], papers: Numbers, finders: Mapping[int, Finder]) -> float:
        """Returns the sum of the best scores of the papers that each call found, or of all."""
        by_finder: dict[Finder | None, list[float]] = {}
        for score, paper in zip(scores.tolist(), papers.tolist(), strict=True):
            by_finder.setdefault(finders[paper] if self.rules.reward == "call" else None, []).append(score)
        return float(sum(sum(sorted(group, reverse=True)[: self.rules.best]) for group in by_finder.values()))

    def rank_papers(self) -> Numbers:
        """Returns the places of the pool's papers in :attr:`papers`, best first, then the older. Shape: [n]."""
        if self._order is None:
            self._order = np.lexsort((self.papers, -self._places))
        return self._order

    def view(self, papers: int, snippet: int, calls: int) -> str:
        """Returns the pool and the history, as an agent sees them.

        Args:
            papers: Most papers that are shown.
            snippet: Characters of an abstract that are shown.
            calls: Number of the last calls that the observation has already.
        """
        card, expansions = self.library.card, self.expanded
        numbers: list[int] = self.papers[self.rank_papers()[:papers]].tolist()
        lines = [f"{card(n, snippet)} [expanded]" if n in expansions else card(n, snippet) for n in numbers]
        earlier = self.history[: len(self.history) - calls] if calls else self.history
        return prompts.view(lines, len(self.papers), earlier[-50:])

    def metrics(self) -> dict[str, float]:
        """Returns recall, precision and F1 of the papers above the threshold, recall in the first 20, 50 and 100
        papers of the pool, and the numbers of papers and calls.
        """  # noqa: D205
        gold = self.question.gold
        is_gold = np.array([number in gold for number in self.papers.tolist()], dtype=bool)
        above = self.scores >= self.rules.threshold
        hits, list_size = int((is_gold & above).sum()), int(above.sum())
        recall, precision = hits / len(gold), hits / list_size if list_size else 0.0
        hits_at = np.cumsum(is_gold[self.rank_papers()])
        return {
            "f1_all": 2 * hits / (len(gold) + list_size),
            "recall_all": recall,
            "precision_all": precision,
            **{f"recall_{k}": int(hits_at[min(k, len(hits_at)) - 1]) / len(gold) if len(hits_at) else 0.0
               for k in (20, 50, 100)},
            "pool": float(len(self.papers)),
            "calls": float(self.searches + self.expansions),
            "searches": float(self.searches),
            "expansions": float(self.expansions),
        }  # fmt: skip

    def key(self) -> str:
        """Returns the identity of what is known: the pool, the queries and the expanded papers, in any order."""
        return f"{sorted(self.pool)} {sorted(self.asked)} {sorted(self.expanded)}"

    def save(self) -> SavedLiterature:
        """Returns the state as plain data."""
        return SavedLiterature(
            papers=self.papers.tolist(),
            scores=self.scores.tolist(),
            places=self._places.tolist(),
            asked=[*self.asked],
            expanded=[*self.expanded],
            history=[*self.history],
            searches=self.searches,
            expansions=self.expansions,
        )

    def load(self, state: SavedLiterature) -> None:
        """Takes over a saved state of a session of the same query."""
        self.papers = np.array(state["papers"], dtype=np.int64)
        self.scores, self._places = np.array(state["scores"], dtype=float), np.array(state["places"], dtype=float)
        self.pool = {*state["papers"]}
        self.asked, self.expanded = dict.fromkeys(state["asked"]), dict.fromkeys(state["expanded"])
        self.history = [*state["history"]]
        self.searches, self.expansions = state["searches"], state["expansions"]
        self._order = None
