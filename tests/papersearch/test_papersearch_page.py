"""The page of PaperSearch says what its code prints, and counts what is there."""

from __future__ import annotations

from envsuite.papersearch.tasks import load


def test_the_counts_on_the_page_are_those_of_the_task_set(page: str) -> None:
    tasks = load("builtin").task_set
    for split, ids in tasks.splits.items():
        kinds = ("method-problem", "problem-setting", "method-setting")
        counts = [sum(tasks.types[task_id] == kind for task_id in ids) for kind in kinds]
        assert f"| {split} | {len(ids)} | {' | '.join(map(str, counts))} |" in page
