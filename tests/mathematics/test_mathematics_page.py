"""docs/environments/mathematics.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from envsuite.mathematics.generate import BY_STRATUM, KINDS, LEVELS
from envsuite.mathematics.source import COUNTS, ProblemFiles
from envsuite.mathematics.tasks import load


def test_the_counts_on_the_page_are_those_of_the_task_sets(page: str) -> None:
    assert f"| `builtin`, each of the {len(BY_STRATUM)} types | {' | '.join(map(str, COUNTS.values()))} |" in page
    assert f"| {sum(COUNTS.values())} of each type below" in page
    splits = load("generated", 0, 1000, KINDS, LEVELS)[1].splits.values()
    assert f"| `generated` (default: `problems=1000`) | {' | '.join(str(len(ids)) for ids in splits)} |" in page
    assert all(f"| `{kind}` |" in page for kind in KINDS)


def test_the_code_for_parquet_makes_lines_that_are_read(page: str, tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "prompt": [{"role": "user", "content": "How many?"}],
        "reward_model": {"ground_truth": "34", "style": "rule"},
    }
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "dapo-math-17k.parquet")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    names["lines"](tmp_path / "dapo-math-17k.parquet", tmp_path)
    problems = ProblemFiles(tmp_path)
    assert list(problems.listed.values()) == [("train", "dapo-math-17k")]
    assert orjson.loads((tmp_path / "dapo-math-17k.jsonl").read_bytes()) == row
