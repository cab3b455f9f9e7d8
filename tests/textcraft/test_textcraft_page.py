from __future__ import annotations

import pytest

from envsuite.textcraft.tasks import load


@pytest.mark.parametrize("source", ["builtin", "generated"])
def test_the_counts_on_the_page_are_those_of_the_task_sets(page: str, source: str) -> None:
    tasks = load(source)[1]
    for split, ids in tasks.splits.items():
        depths = [sum(tasks.types[name] == f"depth-{depth}" for name in ids) for depth in (2, 3, 4)]
        assert f"| {split} | {len(ids)} | {' | '.join(map(str, depths))} |" in page
