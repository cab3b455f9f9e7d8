from __future__ import annotations

import re
from pathlib import Path

import pytest

from envsuite.textcraft.tasks import load


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "environments" / "textcraft.md").read_text(encoding="utf-8")


def test_the_transcript_on_the_page_is_what_its_code_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    transcript, code = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("text", "python"))
    assert transcript is not None and code is not None
    exec(code[1], {})
    assert capsys.readouterr().out == transcript[1]


@pytest.mark.parametrize("source", ["builtin", "generated"])
def test_the_counts_on_the_page_are_those_of_the_task_sets(page: str, source: str) -> None:
    tasks = load(source)[1]
    for split, ids in tasks.splits.items():
        depths = [sum(tasks.types[name] == f"depth-{depth}" for name in ids) for depth in (2, 3, 4)]
        assert f"| {split} | {len(ids)} | {' | '.join(map(str, depths))} |" in page
