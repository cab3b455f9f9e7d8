from __future__ import annotations

from envsuite.sokoban.generate import LevelKind
from envsuite.sokoban.tasks import load


def test_the_counts_on_the_page_are_those_of_the_task_sets(page: str) -> None:
    tasks = load("builtin")[1]
    for boxes, word in (("1", "one box"), ("2", "two boxes")):
        counts = [sum(tasks.types[i] == f"boxes-{boxes}" for i in ids) for ids in tasks.splits.values()]
        assert f'| `builtin`, {word} (`tasks="boxes-{boxes}"`) | {" | ".join(map(str, counts))} |' in page
    generated = load("generated", LevelKind(), 0, 1000)[1]
    assert (
        f"| `generated` (default: `levels=1000`) | {' | '.join(str(len(i)) for i in generated.splits.values())} |"
        in page
    )
