"""A corpus with its tasks, as environments hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from envsuite.core.errors import DataError
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.retrievers import L, SearchCache

SPLITS = ("train", "validation", "test")


class Collection(Generic[L]):
    """A corpus with its tasks, and what the environments of a search share.

    Args:
        corpus: The corpus.
        make: Makes what is shared for a search, by default the corpus's own.
        fields: Fields that each task has, with their types, besides its split.
        kind: What a task is, and several of them, in words.
        command: Last word of the command that builds such a corpus.

    Raises:
        DataError: It has no tasks, or one without these fields.
    """

    def __init__(
        self,
        corpus: Corpus,
        make: Callable[[Corpus, Retriever | None], L],
        fields: Mapping[str, type],
        kind: tuple[str, str],
        command: str,
    ) -> None:
        self.corpus = corpus
        self.library = make(corpus, None)
        self.searched_by = SearchCache(corpus, self.library, make)
        self._tasks: dict[str, Mapping[str, Any]] = {}
        splits: dict[str, list[str]] = {split: [] for split in SPLITS}
        remedy = f"build one with {kind[1]}: envsuite data build {command} --help"
        for place, task in enumerate(corpus.tasks()):
            if (
                not all(isinstance(task.get(name), of) for name, of in fields.items())
                or task.get("split") not in SPLITS
            ):
                needs = f"needs {', '.join(fields)} and split"
                raise DataError(f"{corpus.path}: its task {place} is not a {kind[0]} ({needs}); {remedy}")
            self._tasks[task["id"]] = task
            splits[task["split"]].append(task["id"])
        if not self._tasks:
            raise DataError(f"{corpus.path}: has no {kind[1]}; {remedy}")
        self._ids = {split: tuple(task_ids) for split, task_ids in splits.items()}

    def task(self, task_id: str) -> Mapping[str, Any]:
        """Returns a task as the corpus has it."""
        return self._tasks[task_id]
