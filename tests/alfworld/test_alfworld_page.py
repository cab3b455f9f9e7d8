from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.alfworld.game_file import FAMILIES
from envsuite.alfworld.tasks import PUBLISHED, load


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "environments" / "alfworld.md").read_text(encoding="utf-8")


@pytest.mark.seconds
def test_the_counts_and_families_on_the_page_are_those_of_the_task_sets(page: str) -> None:
    counts = {split: len(ids) for split, ids in load("builtin")[1].splits.items()}
    for split in PUBLISHED:
        assert f"| {split} | {PUBLISHED[split]:,} |" in page and f"| {split} | {counts[split]} |" in page
    assert all(f"| `{family}` |" in page for family in FAMILIES)
