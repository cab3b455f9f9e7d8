"""However many corpora the clients of a server ask for, what they leave is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.core import UsageError
from envsuite.searchqa.env import SearchQAEnv


def test_an_encyclopaedia_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for seed in range(3):
        with pytest.raises(UsageError, match="ask for fewer questions"):
            SearchQAEnv(entities=100, questions=5000, corpus_seed=seed)
    assert len([*(tmp_path / "cache" / "corpora" / "generated").iterdir()]) <= 1, "the lock of the last one"
