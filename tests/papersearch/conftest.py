from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory

GOLD = ("g1", "g2", "g3", "g4")
DOCUMENTS = (
    Document("g1", "Alpha beta", "Words on alpha and beta.", 20100101, ("old",)),
    Document("g2", "Alpha", "More on alpha.", 20110101, ("g1", "old")),
    Document("g3", "Gamma", "Nothing of the query.", 20120101, ("g1", "g2")),
    Document("g4", "Delta beta", "About delta.", 20130101, ("g3",)),
    Document("old", "Beta", "Only beta here.", 20000101),
    Document("side", "Alpha omega", "An alpha that nobody asked for.", 20140101, ("g1",)),
    Document("late", "Alpha beta, newer", "Alpha and beta.", 20200101, ("g1", "g2", "side")),
)
TASKS = (
    {"id": "q-train", "text": "Alpha beta", "gold": [*GOLD], "date": 20150101, "kind": "pair", "split": "train"},
    {"id": "q-test", "text": "alpha omega", "gold": ["side"], "date": 0, "kind": "single", "split": "test"},
)


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of seven papers, one of them newer than its first query."""
    return build(InMemory("seven papers", DOCUMENTS, TASKS), tmp_path_factory.mktemp("seven") / "seven.corpus")
