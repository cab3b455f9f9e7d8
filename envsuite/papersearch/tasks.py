"""Loads corpora and their queries, once per process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from envsuite.core.errors import DataError
from envsuite.core.tasks import TaskSet
from envsuite.papersearch.literature import Literature
from envsuite.papersearch.question import CorpusQuery
from envsuite.papersearch.source import official_source
from envsuite.papersearch.world import PaperLibrary
from envsuite.retrieval.collection import Collection
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import OPEN, ensure_corpus, open_generated

ENV_ID = "PaperSearch-v0"
TEAM_ID = "PaperSearchTeam-v0"
HORIZON = 5
"""Maximum number of steps of an episode; a team has twice as many."""
_FIELDS = {"id": str, "text": str, "gold": list, "date": int, "kind": str}
_QUESTIONS = 1_024
"""Queries whose gold papers a process remembers."""


class PaperCollection(Collection[PaperLibrary]):
    """A corpus with its queries.

    Args:
        corpus: The corpus.
        source: ``"builtin"`` or ``"official"``; part of the task set.

    Raises:
        DataError: It has no queries, or one that is not of this environment.
    """

    def __init__(self, corpus: Corpus, source: str) -> None:
        super().__init__(corpus, PaperLibrary, _FIELDS, ("query on papers", "queries"), "papers")
        types = {task_id: task["kind"] for task_id, task in self._tasks.items()}
        self.task_set = TaskSet(ENV_ID, source, corpus.digest[:16], self._ids, types)
        self.question = lru_cache(maxsize=_QUESTIONS)(self._question)

    def _question(self, task_id: str) -> CorpusQuery:
        """Returns a query with the numbers of its gold papers.

        Raises:
            DataError: A gold paper is not in the corpus.
        """
        task, corpus = self._tasks[task_id], self.corpus
        numbers = {key: corpus.number(key) for key in task["gold"]}
        stop = corpus.stop(task["date"]) if task["date"] else len(corpus)
        gold = frozenset(number for number in numbers.values() if number is not None and number < stop)
        if len(gold) < len(numbers) or not gold:
            missing = [key for key, number in numbers.items() if number is None or number >= stop]
            raise DataError(f"{corpus.path}: gold papers of {task_id} are not there, or newer than it: {missing[:5]}")
        return CorpusQuery(task_id, task["text"], gold, task["date"], stop)


def load(source: str | Path, papers: int = 10_000, corpus_seed: int = 0) -> PaperCollection:
    """Returns the corpus of a source; builds it if it is missing.

    Args:
        source: ``"builtin"`` or ``"generated"``, which are the same, ``"official"`` (the folder ``papersearch`` in
            ``$ENVSUITE_DATA``), or the path of a corpus.
        papers: Number of papers of the built-in literature.
        corpus_seed: Seed of the built-in literature.

    Raises:
        DataError: The source does not exist or is damaged.
        UsageError: ``papers`` is out of range.
    """
    if source in ("builtin", "generated"):
        literature = Literature(papers, corpus_seed)
        return _generate_collection(literature.papers, literature.seed)
    return _open_collection(ensure_corpus(official_source()) if source == "official" else Path(source).resolve())


@lru_cache(maxsize=OPEN)
def _generate_collection(papers: int, corpus_seed: int) -> PaperCollection:
    return PaperCollection(open_generated(Literature(papers, corpus_seed)), "builtin")


@lru_cache(maxsize=OPEN)
def _open_collection(path: Path) -> PaperCollection:
    return PaperCollection(Corpus(path), "official")
