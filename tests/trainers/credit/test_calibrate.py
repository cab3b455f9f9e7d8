"""The command that chooses BiPACE's layer, pooling and radius."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny_runs import trained

from envsuite.core.errors import DataError
from trainers.credit.calibration import Candidate, choose, layers_of, probe_accuracy
from trainers.policy.hidden import Fingerprint
from trainers.programs.calibrate import main


def test_the_probe_names_tasks_that_a_line_separates_and_no_others() -> None:
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1, 2], 40)
    held_out = np.arange(120) % 2 == 1
    noise = rng.normal(size=(120, 200)).astype(np.float32)
    assert probe_accuracy(noise, task, held_out) < 0.6
    telling = noise + 3.0 * rng.normal(size=(3, 200)).astype(np.float32)[task]
    assert probe_accuracy(telling, task, held_out) > 0.95
    assert probe_accuracy(telling[:, :8], task, held_out) > 0.8, "also with fewer columns than rows"


def test_the_best_probe_wins_among_the_partitions_that_resolve_something() -> None:
    coarse = Candidate(Fingerprint(-1), 0.05, clusters=4, singletons=0.1, accuracy=0.812)
    alone = Candidate(Fingerprint(-4), 0.05, clusters=90, singletons=1.0, accuracy=0.9)
    good = Candidate(Fingerprint(-12), 0.05, clusters=12, singletons=0.1, accuracy=0.808)
    assert choose([coarse, alone, good], 5) == good, "as in the paper's appendix H"
    mean = Candidate(Fingerprint(-2, "mean"), 0.05, clusters=12, singletons=0.1, accuracy=0.808)
    assert choose([mean, good], 5) == good, "of equals, the last token"
    with pytest.raises(DataError, match=r"at least 5 clusters .* --radii \(clusters found: \[4, 90\]\)"):
        choose([coarse, alone], 5)


def test_the_layers_tried_are_the_papers_for_its_depth() -> None:
    assert [28 + layer for layer in layers_of(28)] == [4, 8, 12, 16, 20, 24, 27]
    assert layers_of(3) == [-3, -2, -1]


@pytest.mark.slow
def test_a_run_is_calibrated_to_settings_that_a_run_takes(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(place, iterations=2, **{"evaluation.envs": []})
    capfd.readouterr()
    assert main([str(place / "runs" / "tiny"), "--radii", "0.01", "0.1", "--steps", "30"]) == 0
    said = capfd.readouterr().out
    assert said.count("\n| -") == 8, "two layers, two poolings, two radii"
    settings = yaml.safe_load(said.partition("Settings:")[2])
    assert settings["method"]["options"]["layer"] in (-1, -2) and 0.02 < settings["method"]["options"]["radius"] < 0.4
    trained(place, **{"name": "next", "recipe": "bipace", "iterations": 1, "evaluation.envs": [], **settings})


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "give the folder of a run" in capfd.readouterr().err
    (tmp_path / "config.yaml").write_text("model: {path: x}")
    assert main([str(tmp_path)]) == 1
    assert "no episodes of training there" in capfd.readouterr().err
