"""Runs that diverge: they stop with a message, and no checkpoint of theirs holds weights that are not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_runs import without_times, write_settings

from trainers.credit.estimators import ESTIMATORS, Advantage
from trainers.credit.estimators.grpo import GRPO
from trainers.steps import StepTable
from trainers.train import main


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> str:
    """An estimator whose advantages are not numbers from the second iteration on."""
    calls = 0

    @dataclass(frozen=True)
    class Spoilt(GRPO):
        """GRPO, then nothing."""

        def __call__(self, steps: StepTable) -> Advantage:
            """Advantages."""
            nonlocal calls
            calls += 1
            found = super().__call__(steps)
            return found if calls == 1 else replace(found, per_step=np.full(len(steps), np.nan))

    monkeypatch.setitem(ESTIMATORS._entries, "spoilt", Spoilt)
    return "spoilt"


def _finite(checkpoints: Path) -> list[str]:
    for folder in sorted(checkpoints.iterdir()):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert all(np.isfinite(values).all() for values in load_file(folder / name).values()), folder
    return [folder.name for folder in sorted(checkpoints.iterdir())]


def test_advantages_that_are_no_numbers_stop_the_run_with_a_checkpoint_that_goes_on(place, spoilt, capfd):
    changes = {"method": {"estimator": spoilt, "options": {}}, "recipe": "grpo", "iterations": 9, "evaluation.envs": []}
    config = write_settings(place, **changes, checkpoint_every=50, **{"optim.minibatches": 1})
    assert main(["--config", str(config)]) == 1
    said = capfd.readouterr().err
    assert "3 optimiser steps in a row were skipped" in said
    assert "First not finite: advantage: nan in episode" in said and "iteration-00003" in said
    records = without_times(place / "runs/tiny")
    assert [record["train/skipped_steps"] for record in records] == [0.0, 1.0, 1.0]
    assert [record["train/optimizer_steps"] for record in records] == [1.0, 1.0, 1.0]
    assert _finite(place / "runs/tiny/checkpoints") == ["iteration-00003"]


def test_a_learning_rate_that_ruins_the_weights_leaves_no_checkpoint_of_them(place, capfd):
    changes = {"checkpoint_every": 1, "optim.lr": 1e30, "method": {"shapers": {"even_tokens": {}}}}
    import even_tokens  # noqa: F401  # a reward in which the episodes differ

    assert main(["--config", str(write_settings(place, **changes))]) == 1
    said = capfd.readouterr().err
    assert "a weight is not finite, or beyond 1e18" in said and "lower optim.lr" in said and "Traceback" not in said
    folder = place / "runs/tiny/checkpoints"
    assert not folder.exists() or not _finite(folder)


def test_a_model_of_weights_that_are_not_finite_is_refused(place, capfd):
    from safetensors.numpy import save_file

    path = place / "model/model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = np.nan
    save_file(weights, path, metadata={"format": "pt"})
    assert main(["--config", str(write_settings(place))]) == 1
    assert "its weights give values that are not finite" in capfd.readouterr().err
