"""The runs that ``python -m benchmarks.agents`` plays."""

from pathlib import Path

import pytest

from benchmarks.agents import models, players, trained
from envsuite.core.errors import DataError
from trainers.run.cli import EVALUATE, parse


def test_the_last_checkpoint_of_a_run_plays_and_those_of_the_runs_named_after_it(tmp_path: Path) -> None:
    for run in ("shop/checkpoints/iteration-00003", "shop/checkpoints/iteration-00012", "shop-base", "shopping-0"):
        (tmp_path / run).mkdir(parents=True)
    for run in ("shop-steppo-1", "shop-steppo-0"):
        (tmp_path / run / "checkpoints" / "iteration-00012").mkdir(parents=True)
    assert list(trained("shop", tmp_path)) == [
        ("trained", str(tmp_path / "shop/checkpoints/iteration-00012")),
        ("steppo-0", str(tmp_path / "shop-steppo-0/checkpoints/iteration-00012")),
        ("steppo-1", str(tmp_path / "shop-steppo-1/checkpoints/iteration-00012")),
    ]


def test_without_a_run_it_says_which_configuration_to_train_with(tmp_path: Path) -> None:
    config = parse(["--config", "configs/sokoban.yaml"], EVALUATE).config
    with pytest.raises(DataError, match=r"sokoban: no checkpoint; train with configs/sokoban.yaml first"):
        next(models("sokoban", config, tmp_path, tmp_path))


def test_players_get_the_tasks_and_limits_of_the_evaluation_and_the_default_observation() -> None:
    config = parse(["--config", "configs/searchqa.yaml"], EVALUATE).config
    (command,) = players(config, Path("out"))
    words = " ".join(command)
    assert "--types encyclopaedia-composition-2 encyclopaedia-inference-2" in words and "--steps 5" in words
    assert "--option results=1" in words and "observation" not in words
    assert words.endswith("--policy expert --policy lexical --policy random")
