"""However many corpora the clients of a server ask for, what they leave is bounded."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from envsuite.core import ToolEnv, UsageError
from envsuite.papersearch import tasks as papers
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.retrieval import corpus_build
from envsuite.searchqa import tasks as questions
from envsuite.searchqa.env import SearchQAEnv

SMALL: dict[type[ToolEnv], dict[str, Any]] = {
    PaperSearchEnv: {"papers": 200},
    SearchQAEnv: {"entities": 300, "questions": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PaperSearchEnv, SearchQAEnv])
def test_disk_and_memory_do_not_grow_with_the_number_of_seeds(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    monkeypatch.setattr(corpus_build, "GENERATED", 2_000_000)
    seeds = range(1000, 1000 + corpus_build.OPEN + 4)
    running = kind(corpus_seed=seeds[0], **SMALL[kind])
    path, known = running.collection.corpus.path, []
    for seed in seeds[1:]:
        env = kind(corpus_seed=seed, **SMALL[kind])
        assert kind(corpus_seed=seed, **SMALL[kind]).collection is env.collection, "environments share a corpus"
        known.append(weakref.ref(env.collection))
    left = [file.stat().st_size for file in path.parent.glob("*.corpus")]
    assert 0 < sum(left) <= 2_000_000 and len(left) < len(seeds)
    assert not path.exists(), "the first one was removed"
    running.reset(seed=0)
    running.action_space.seed(0)
    assert any(running.step(running.action_space.sample())[4]["valid"] for _ in range(3)), "and is still played"
    del env
    gc.collect()
    assert sum(reference() is not None for reference in known) == corpus_build.OPEN
    for module in (papers, questions):
        module._generate_collection.cache_clear()


def test_an_encyclopaedia_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for seed in range(3):
        with pytest.raises(UsageError, match="ask for fewer questions"):
            SearchQAEnv(entities=100, questions=5000, corpus_seed=seed)
    assert len([*(tmp_path / "cache" / "corpora" / "generated").iterdir()]) <= 1, "the lock of the last one"
