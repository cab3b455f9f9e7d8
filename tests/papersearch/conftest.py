from __future__ import annotations

from pathlib import Path

import hundred_papers
import pytest
from seven_papers import DOCUMENTS, TASKS

from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import InMemory


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of seven papers, one of them newer than its first query."""
    return build(InMemory("seven papers", DOCUMENTS, TASKS), tmp_path_factory.mktemp("seven") / "seven.corpus")


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with a paper that cites 99 others, one apart from them, and one newer than the queries."""
    documents = InMemory("a hundred papers", hundred_papers.DOCUMENTS, hundred_papers.TASKS)
    return build(documents, tmp_path_factory.mktemp("hundred") / "hundred.corpus")
