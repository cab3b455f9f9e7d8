"""The evaluations of ``benchmarks.agents``."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.agents import models
from envsuite.core.errors import DataError
from trainers.run.cli import EVALUATE, parse


def test_every_run_of_a_configuration_is_played_and_its_base_model_once(tmp_path: Path) -> None:
    config = parse(["--config", "configs/papersearch.yaml"], EVALUATE).config
    with pytest.raises(DataError, match="no checkpoint"):
        list(models("papersearch", config, tmp_path, tmp_path / "out"))
    for run in ("papersearch", "papersearch-steppo-1", "papersearch-base", "papers-2"):
        (tmp_path / run).mkdir()
    for run, iteration in (("papersearch", 9), ("papersearch", 18), ("papersearch-steppo-1", 18), ("papers-2", 1)):
        (tmp_path / run / "checkpoints" / f"iteration-{iteration:05}").mkdir(parents=True)
    commands = list(models("papersearch", config, tmp_path, tmp_path / "out"))
    played = {words[words.index("--policy") + 1]: words[words.index("--model.path") + 1] for words in commands}
    assert len(commands) == 3 and played == {
        "imitation": "runs/papersearch-base",
        "trained": str(tmp_path / "papersearch/checkpoints/iteration-00018"),
        "steppo-1": str(tmp_path / "papersearch-steppo-1/checkpoints/iteration-00018"),
    }
