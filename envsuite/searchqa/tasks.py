"""Loads corpora and their questions, once per process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError
from envsuite.core.tasks import TaskSet
from envsuite.data.places import data_root
from envsuite.retrieval.collection import Collection
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import OPEN, ensure_corpus, open_generated
from envsuite.searchqa.encyclopaedia import DATA_SET, Encyclopaedia
from envsuite.searchqa.source import question_files
from envsuite.searchqa.world import PageLibrary, SearchedQuestion

LOG = logging.getLogger(__name__)
ENV_ID = "SearchQA-v0"
HORIZON = 5
"""Maximum number of steps of an episode (StepPO, table 5)."""
_FIELDS = {"id": str, "text": str, "answers": list, "support": list, "kind": str, "hops": int, "data_set": str}


class QACollection(Collection[PageLibrary]):
    """A corpus with its questions.

    Args:
        corpus: The corpus. The source of its task set is ``"builtin"`` if its questions are generated ones, else
            ``"official"``.

    Raises:
        DataError: It has no questions, one that is not of this environment, or generated ones beside published ones.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus, PageLibrary, _FIELDS, ("question", "questions"), "questions")
        builtin_flags = {task["data_set"] == DATA_SET for task in self._tasks.values()}
        if len(builtin_flags) > 1:
            raise DataError(f"{corpus.path}: has generated questions among published ones")
        self.may_have_none = not all(task.get("answerable", True) for task in self._tasks.values())
        """Whether there are questions that cannot be answered."""
        types = {task_id: task_type(task) for task_id, task in self._tasks.items()}
        self.problems = "; ".join(f"{kind}: {number:,}" for kind, number in corpus.problems.items())
        """Kinds of problems in its files, with their numbers; empty without any. They are logged, too."""
        if self.problems:
            LOG.warning("%s: %s", corpus.source, self.problems)
        source = "builtin" if builtin_flags == {True} else "official"
        self.task_set = TaskSet(ENV_ID, source, corpus.digest[:16], self._ids, types)

    def question(self, task_id: str) -> SearchedQuestion:
        """Returns a question."""
        task = self._tasks[task_id]
        answerable = task.get("answerable", True)
        return SearchedQuestion(
            task_id, task["text"], tuple(task["answers"]), tuple(task["support"]), answerable, task["data_set"]
        )


def task_type(task: Mapping[str, Any]) -> str:
    """Returns the stratum of a question: data set, kind and hops, and whether it cannot be answered."""
    stratum = f"{task['data_set']}-{task['kind']}-{task['hops']}"
    return stratum if task.get("answerable", True) else f"{stratum}-unanswerable"


def load(source: str | Path, entities: int = 3000, questions: int | None = None, corpus_seed: int = 0) -> QACollection:
    """Returns the corpus of a source; builds it if it is missing.

    Args:
        source: ``"builtin"`` or ``"generated"``, which are the same, ``"official"`` (the folder ``questions`` in
            ``$ENVSUITE_DATA``), or the path of a corpus, of a file of questions, or of a folder of such files.
        entities: Number of pages of the built-in encyclopaedia.
        questions: Number of its questions.
        corpus_seed: Its seed.

    Raises:
        DataError: The source does not exist or is damaged.
        UsageError: ``entities`` or ``questions`` is out of range.
    """
    if source in ("builtin", "generated"):
        encyclopaedia = Encyclopaedia(entities, questions, corpus_seed)
        return _generate_collection(encyclopaedia.entities, encyclopaedia.questions, encyclopaedia.seed)
    path = data_root() / "questions" if source == "official" else Path(source).resolve()
    if path.is_dir() or path.suffix in (".json", ".jsonl", ".gz") or not path.exists():
        return _open_collection(ensure_corpus(question_files(path)))
    return _open_collection(path)


@lru_cache(maxsize=OPEN)
def _generate_collection(entities: int, questions: int, corpus_seed: int) -> QACollection:
    return QACollection(open_generated(Encyclopaedia(entities, questions, corpus_seed)))


@lru_cache(maxsize=OPEN)
def _open_collection(path: Path) -> QACollection:
    return QACollection(Corpus(path))
