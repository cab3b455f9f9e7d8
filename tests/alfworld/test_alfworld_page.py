from __future__ import annotations

import pytest

from envsuite.alfworld.game_file import FAMILIES
from envsuite.alfworld.tasks import PUBLISHED, load


@pytest.mark.seconds
def test_the_counts_and_families_on_the_page_are_those_of_the_task_sets(page: str) -> None:
    counts = {split: len(ids) for split, ids in load("builtin")[1].splits.items()}
    assert f"| source | {' | '.join(PUBLISHED)} |" in page
    assert f'| `"official"` | {" | ".join(f"{number:,}" for number in PUBLISHED.values())} |' in page
    assert f"games=600`) | {' | '.join(str(counts[split]) for split in PUBLISHED)} |" in page
    assert all(f"| `{family}` |" in page for family in FAMILIES)
