from __future__ import annotations

from pathlib import Path

import pytest
from seven_papers import DOCUMENTS, TASKS

from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import InMemory


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of seven papers, one of them newer than its first query."""
    return build(InMemory("seven papers", DOCUMENTS, TASKS), tmp_path_factory.mktemp("seven") / "seven.corpus")
