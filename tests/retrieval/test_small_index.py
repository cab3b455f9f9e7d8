"""A small index, whose terms are kept in memory, ranks as the same one does without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from envsuite.papersearch.literature import Literature
from envsuite.retrieval import index
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build


def test_terms_in_memory_change_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Literature(600)
    corpus = Corpus(build(source, tmp_path / "small.corpus"))
    terms = [Counter(analyze(f"{task['text']} {task['text'][:30]}")) for task in source.tasks()]
    stops = [None, 0, 1, 37, 599, 600, 9_999]
    monkeypatch.setattr(index, "_KEPT", 500)  # so that it forgets, too
    kept = [corpus.index.best(one, 10, stop) for one in terms for stop in stops]
    monkeypatch.setattr(index, "_SMALL", 0)
    plain = [corpus.index.best(one, 10, stop) for one in terms for stop in stops]
    for (numbers, scores), (others, other_scores) in zip(kept, plain, strict=True):
        assert np.array_equal(numbers, others) and np.array_equal(scores, other_scores)
