"""papers.json has a hash of the resolved settings of every run of the papers' tables; they must stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.papers.index import FOLDER, read_index
from tools.freeze import digest
from trainers.planning.program import PLAN
from trainers.run.cli import dump, parse

FROZEN = json.loads(Path(__file__).with_name("papers.json").read_text(encoding="utf-8"))


def test_the_settings_of_every_run_are_the_frozen_ones() -> None:
    hashes = {
        f"papers/{run.path.with_suffix('')}": digest(dump(parse(["--config", str(FOLDER / run.path)], PLAN).config))
        for run in read_index().runs
    }
    assert hashes == FROZEN
