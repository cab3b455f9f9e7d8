"""The built-in encyclopaedia: pages and questions of any number, from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from envsuite.core.settings import whole
from envsuite.retrieval.documents import Document, DocumentProblems
from envsuite.searchqa.entities import FEWEST, LINKED, Entities, Value, table
from envsuite.searchqa.pages import page
from envsuite.searchqa.questions import SPLITS, QuestionSet

GENERATOR = "encyclopaedia-1"
"""Version of the generator: the same arguments give the same pages and questions."""
DATA_SET = "encyclopaedia"
"""Data set of the questions."""


class Encyclopaedia:
    """A source of generated pages, one for each entity, and of questions whose answers they have.

    Args:
        entities: About how many pages; at least 100.
        questions: Number of questions: 80 % train, 10 % validation, 10 % test. One for three entities by default.
        seed: Determines pages and questions.

    Raises:
        UsageError: A number is out of range.
    """

    def __init__(self, entities: int = 3000, questions: int | None = None, seed: int = 0) -> None:
        self.entities = whole("entities", entities, FEWEST)
        self.questions = entities // 3 if questions is None else whole("questions", questions, 0)
        self.seed = whole("corpus_seed", seed)
        self.problems = DocumentProblems()

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{GENERATOR}-{self.seed}-{self.entities}-{self.questions}"

    @property
    def size(self) -> int:
        """Number of pages."""
        return len(self.world.all)

    def digest(self) -> str:
        """Returns a SHA-256 of generator, tables and arguments."""
        hasher = hashlib.sha256(self.name.encode())
        for tables in ("names", "pages", "questions"):
            hasher.update(repr(table(tables)).encode())
        return hasher.hexdigest()

    @cached_property
    def world(self) -> Entities:
        """The entities and all that is true of them."""
        return Entities(self.entities, f"{GENERATOR} {self.seed}")

    def documents(self) -> Iterator[Document]:
        """Yields the pages."""
        for entity in self.world.all:
            yield page(self.world, entity, f"{GENERATOR} {self.seed}")

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yields the questions, split by split, in the order train, validation, test.

        Raises:
            UsageError: There are too few entities for so many questions.
        """
        shares = {name: self.questions * len(numbers) // 100 for name, numbers in SPLITS.items()}
        shares["train"] += self.questions - sum(shares.values())
        splits: dict[str, list[dict[str, Any]]] = {name: [] for name in SPLITS}
        for split, question in QuestionSet(self.world, f"{GENERATOR} {self.seed}").draw_questions(shares):
            stratum = f"{question.kind}-{question.hops}"
            splits[split].append(
                {
                    "id": f"{self.seed}/{stratum}/{split}#{len(splits[split])}",
                    "text": question.text,
                    "answers": question.answers,
                    "support": question.support,
                    "kind": question.kind,
                    "hops": question.hops,
                    "data_set": DATA_SET,
                    "split": split,
                    "answerable": question.answerable,
                    "query": question.query,
                }
            )
        for tasks in splits.values():
            yield from tasks

    def facts(self) -> Iterator[tuple[str, str, Value]]:
        """Yields title of a page, relation and value of each fact that a page states.

        The value of a relation between entities is the title of the other page.
        """
        for entity in self.world.all:
            for relation, value in self.world.chains(entity):
                title_or_value = self.world.title(self.world.all[int(value)]) if relation in LINKED else value
                yield self.world.title(entity), relation, title_or_value
