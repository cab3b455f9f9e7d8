"""Stopping, by force or by request, and going on.

Checkpoints: whole or not at all, and refused by name where they do not fit.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from folders import SUPPORT
from tiny_runs import model, summary, tokenizer, train, weights, without_times, write_settings

from trainers.policy.stateful import OptimizerState, Stateful, StatefulPart, StateMismatch
from trainers.run import checkpoint
from trainers.run.checkpoint import CheckpointError
from trainers.train import main

KILLED = (sys.executable, str(SUPPORT / "killed_run.py"))


def _struck(moment: str, number: int, kind: signal.Signals, config: Path, *more: str) -> tuple[int, str]:
    run = train("--config", str(config), *more, program=(*KILLED, moment, str(number), str(int(kind))))
    return run.returncode, run.stderr + run.stdout


def _equal(one: Path, two: Path, iteration: int = 4) -> None:
    assert without_times(one) == without_times(two)
    checkpoints = [run / "checkpoints" / f"iteration-{iteration:05d}" for run in (one, two)]
    assert weights(checkpoints[0]) == weights(checkpoints[1])
    names = [[e["name"] for e in summary(run)["evaluations"]] for run in (one, two)]
    assert names[0] == names[1]
    files = [sorted(file.name for file in (run / "episodes").iterdir()) for run in (one, two)]
    assert files[0] == files[1]


@pytest.fixture
def reference(place: Path) -> Path:
    """A run that was never stopped."""
    assert main(["--config", str(write_settings(place, name="reference"))]) == 0
    return place / "runs" / "reference"


def _same_settings(reference: Path) -> Path:
    """The reference's settings under its own name in another folder, since a checkpoint compares names."""
    place = reference.parents[1]
    return write_settings(place, name="reference", output=str(place / "other"))


@pytest.mark.seconds
def test_a_run_killed_between_two_checkpoints_and_resumed_equals_one_that_was_not(reference):
    config = _same_settings(reference)
    run = config.parent / "other" / "reference"
    code, _ = _struck("metrics", 3, signal.SIGKILL, config)
    assert code == -signal.SIGKILL
    assert [r["iteration"] for r in without_times(run)] == [0, 1, 2, 2, 3], "iteration 3 is to be done again"
    (run / "episodes" / "iteration-00007.parquet").write_bytes(b"of a longer run")
    assert main(["--config", str(config), "--resume"]) == 0
    _equal(reference, run)
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["--config", str(config), "--resume"]) == 0, "a finished run may be resumed"
    assert (run / "metrics.jsonl").read_bytes() == before, "and repeats nothing"


@pytest.mark.seconds
def test_damaged_metrics_forbid_no_resuming(reference, caplog):
    config, metrics = str(reference.parents[1] / "config.yaml"), reference / "metrics.jsonl"
    first, _, *rest = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([first, bytes(40), b"\n", *rest, b"{half\n"]))
    assert main(["--config", config, "--resume", "--iterations", "5"]) == 0
    told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert told == [f"{metrics}: 2 damaged line(s) dropped; 6 of the 7 lines that the checkpoint knows are left"]
    assert [record["iteration"] for record in without_times(reference)] == [0, 2, 2, 3, 4, 4, 5, 5]
    metrics.unlink()
    assert main(["--config", config, "--resume", "--iterations", "6"]) == 0
    assert [record["iteration"] for record in without_times(reference)] == [6, 6], "nor do lost ones"


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment, number",
    [("metrics", 1), ("checkpoint", 2), ("metrics", 4), ("checkpoint", 4), ("rollout", 1), ("rollout", 4)],
)
def test_wherever_a_run_is_killed_it_resumes_to_the_same_end(reference, moment, number):
    config = _same_settings(reference)
    code, _ = _struck(moment, number, signal.SIGKILL, config)
    assert code == -signal.SIGKILL
    checkpoints = config.parent / "other" / "reference" / "checkpoints"
    resume = ["--resume"] if any(checkpoints.glob("iteration-*")) else []
    assert main(["--config", str(config), *resume]) == 0
    _equal(reference, config.parent / "other" / "reference")


@pytest.mark.parametrize(
    "kind, moment, number",
    [
        pytest.param(signal.SIGTERM, "rollout", 2, marks=pytest.mark.slow),  # in the first iteration's rollout
        pytest.param(signal.SIGINT, "metrics", 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "rollout", 1, marks=pytest.mark.slow),  # in the evaluation before training
        pytest.param(signal.SIGTERM, "rollout", 4, marks=pytest.mark.slow),  # in that of iteration 2
        pytest.param(signal.SIGINT, "checkpoint", 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "metrics", 4, marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_a_checkpoint_that_resumes_to_the_same_end(reference, kind, moment, number):
    config = _same_settings(reference)
    code, said = _struck(moment, number, kind, config)
    assert code == 128 + kind, said
    assert "--resume" in said and "Traceback" not in said
    assert main(["--config", str(config), "--resume"]) == 0
    _equal(reference, config.parent / "other" / "reference")


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(place):
    config = write_settings(place, iterations=50)
    script = (
        "import os, signal, sys; from trainers.report.metrics import MetricsWriter; from trainers.train import main\n"
        "write = MetricsWriter.write\n"
        "def twice(self, *rest):\n"
        "    write(self, *rest); os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)\n"
        "MetricsWriter.write = twice\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    run = train("--config", str(config), program=(sys.executable, "-c", script), status=130)
    assert "interrupted" in run.stderr and "Traceback" not in run.stderr
    assert not any((place / "runs/tiny/checkpoints").iterdir())


CONFIG = {"name": "a", "seed": 1, "envs": [{"id": "X", "url": "http://one"}], "optim": {"lr": 0.1}}


class Kept:
    """A part that keeps anything."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.kept = dict(state)

    def state(self) -> dict[str, Any]:
        return self.kept

    def load(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self.kept.keys():
            raise StateMismatch(f"it holds {sorted(state)}, not {sorted(self.kept)}")
        self.kept = dict(state)


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def _save(folder: Path, accelerator: Accelerator, seed: int = 0, **parts: Stateful) -> None:
    facts = {"iteration": int(folder.name[-1]), "config": CONFIG}
    checkpoint.save(folder, accelerator, model("qwen2", len(tokenizer()), seed), tokenizer(), parts, facts)


def _load(folder: Path, accelerator: Accelerator, config: Mapping[str, Any] = CONFIG, **parts: Stateful) -> None:
    checkpoint.load(folder, accelerator, model("qwen2", len(tokenizer()), 9), parts, config)


def test_a_part_gets_back_what_it_gave(tmp_path, accelerator):
    tree = {
        "steps": 3, "words": ["a", None, 0.5], "none": {}, "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "deep": [{"tensor": torch.ones(2, dtype=torch.bfloat16)}, {"flags": np.array([True, False])}],
        "empty": np.zeros(0),
    }  # fmt: skip
    _save(tmp_path / "iteration-1", accelerator, kept=Kept(tree))
    part = Kept(dict.fromkeys(tree))
    _load(tmp_path / "iteration-1", accelerator, kept=part)
    found = part.kept
    assert found["steps"] == 3 and found["words"] == ["a", None, 0.5] and found["none"] == {}
    assert found["array"].dtype == np.int32 and (found["array"] == tree["array"]).all() and found["empty"].shape == (0,)
    assert torch.equal(found["deep"][0]["tensor"], tree["deep"][0]["tensor"])
    assert found["deep"][1]["flags"].tolist() == [True, False]


def test_what_does_not_fit_is_named(tmp_path, accelerator):
    folder = tmp_path / "iteration-1"
    policy, other = torch.nn.Linear(3, 2), torch.nn.Linear(4, 2)
    optimizers = [torch.optim.AdamW(module.parameters()) for module in (policy, other)]
    policy(torch.ones(1, 3)).sum().backward()
    optimizers[0].step()
    own = OptimizerState(policy, optimizers[0])
    _save(
        folder,
        accelerator,
        optimizer=own,
        critic=StatefulPart("critic", policy, optimizers[0]),
        sampler=Kept({"orders": []}),
    )
    for parts, words in (
        ({"optimizer": own}, ["has a critic", "is without one"]),
        ({"optimizer": own, "critic": own, "sampler": Kept({}), "replay": Kept({})}, ["has no replay"]),
        ({"optimizer": own, "critic": StatefulPart("critic", other, optimizers[1]), "sampler": Kept({"orders": 0})},
         ["the critic does not fit", "weight has shape (2, 3)", "(2, 4)"]),
        ({"optimizer": OptimizerState(other, optimizers[1]), "critic": Kept({}), "sampler": Kept({})},
         ["the optimizer does not fit", "weight has shape (2, 3)", "(2, 4)"]),
        ({"optimizer": own, "critic": StatefulPart("critic", policy, optimizers[0]), "sampler": Kept({"rng": 0})},
         ["the sampler does not fit", "['orders']"]),
    ):  # fmt: skip
        with pytest.raises(CheckpointError) as refused:
            _load(folder, accelerator, **parts)
        assert all(word in str(refused.value) for word in words), refused.value


def test_a_checkpoint_that_was_put_aside_for_another_gets_its_name_back(tmp_path, accelerator, monkeypatch):
    folder = tmp_path / "iteration-1"
    _save(folder, accelerator, kept=Kept({"age": 1}))
    replace = os.replace

    def dying(source: Path, target: Path) -> None:
        if Path(target) == folder:  # the power fails between the two renames
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        _save(folder, accelerator, kept=Kept({"age": 2}))
    monkeypatch.undo()
    assert not folder.exists() and (tmp_path / ".iteration-1.old").exists()
    assert checkpoint.newest(tmp_path) == folder
    part = Kept({"age": 0})
    _load(folder, accelerator, kept=part)
    assert part.kept == {"age": 1}
    _save(folder, accelerator, kept=Kept({"age": 3}))
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "and nothing is left of the interrupted write"
    _load(folder, accelerator, kept=part)
    assert part.kept == {"age": 3}


def test_an_old_copy_never_takes_the_place_of_a_newer_checkpoint(tmp_path, accelerator):
    folder = tmp_path / "iteration-1"
    _save(folder, accelerator, kept=Kept({"age": 1}))
    shutil.copytree(folder, tmp_path / ".iteration-1.old")
    _save(folder, accelerator, kept=Kept({"age": 2}))
    shutil.copytree(folder, tmp_path / ".iteration-1.old", dirs_exist_ok=True)
    part = Kept({"age": 0})
    assert checkpoint.newest(tmp_path) == folder
    _load(folder, accelerator, kept=part)
    assert part.kept == {"age": 2}


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, accelerator, monkeypatch):
    folder = tmp_path / "iteration-1"
    _save(folder, accelerator, kept=Kept({"age": 1}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    replace, calls = os.replace, []

    def full_at_the_last_rename(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            full()
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_at_the_last_rename)
    with pytest.raises(CheckpointError, match="No space left"):
        _save(folder, accelerator, kept=Kept({"age": 2}))
    checkpoint.verify(folder)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(checkpoint, "flush_to_disk", full)
    for name in ("iteration-1", "iteration-2"):
        with pytest.raises(CheckpointError, match=r"could not be written .*No space left.*--resume"):
            _save(tmp_path / name, accelerator, kept=Kept({"age": 2}))
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert checkpoint.verify(folder)["parts"]["kept"] == {"age": 1}
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(bytes([*content[:-1], content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged .*other content"):
        checkpoint.verify(folder)


def test_prune_keeps_the_newest(tmp_path):
    for number in (1, 2, 3, 10):
        checkpoint.folder_of(tmp_path, number).mkdir()
    (tmp_path / ".iteration-00004.partial").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00003", "iteration-00010"]


def test_checkpoints_that_are_links_are_removed_and_replaced_and_their_targets_stay(tmp_path, accelerator):
    root, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    for number in (1, 2):
        _save(elsewhere / str(number), accelerator, kept=Kept({"age": number}))
    root.mkdir()
    for number in (1, 2, 3):  # the last one leads nowhere
        checkpoint.folder_of(root, number).symlink_to(elsewhere / str(number))
    assert checkpoint.newest(root) == checkpoint.folder_of(root, 2)
    (root / ".iteration-00009.old").symlink_to(elsewhere)
    for number in (2, 3):
        _save(checkpoint.folder_of(root, number), accelerator, kept=Kept({"age": 10}))
    checkpoint.prune(root, 1)
    assert [path.name for path in root.iterdir()] == ["iteration-00003"]
    assert [checkpoint.verify(elsewhere / str(number))["parts"]["kept"]["age"] for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    "change, refused",
    [
        ({"seed": 2}, "was written with seed = 1, this run has 2"),
        ({"optim": {"lr": 0.2}}, r"optim\.lr = 0\.1, this run has 0\.2"),
        ({"envs": [{"id": "Y", "url": "http://one"}]}, r"envs\[0\]\.id"),
        ({"envs": []}, "envs = "),
        ({"name": "b"}, None),
        ({"envs": [{"id": "X", "url": "http://two"}]}, None),
        ({"process_timeout": 3.0}, None),
    ],
)
def test_settings_that_change_the_run_may_not_change_and_others_may(tmp_path, accelerator, change, refused):
    _save(tmp_path / "iteration-1", accelerator)
    with nullcontext() if refused is None else pytest.raises(CheckpointError, match=refused):
        _load(tmp_path / "iteration-1", accelerator, {**CONFIG, **change})


def test_each_state_of_a_runs_checkpoints_has_one_remedy(tmp_path, accelerator):
    with pytest.raises(CheckpointError, match="no checkpoint to resume from; start the run without --resume"):
        checkpoint.choose_checkpoint(tmp_path, "auto")
    _save(tmp_path / "iteration-1", accelerator)
    newest = tmp_path / "iteration-2"
    for name, content in {
        "model.safetensors": b"short", "state.json": b"{}", "config.json": None,
        "manifest.json": b'{"format": "another/1", "files": {}}',
    }.items():  # fmt: skip
        _save(newest, accelerator)
        assert checkpoint.choose_checkpoint(tmp_path, "auto") == newest
        (newest / name).unlink() if content is None else (newest / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=str(newest / name)):
            checkpoint.verify(newest)
    assert checkpoint.choose_checkpoint(tmp_path, "auto") == tmp_path / "iteration-1"
    (tmp_path / "iteration-1" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged \(iteration-1, iteration-2\).* --name"):
        checkpoint.choose_checkpoint(tmp_path, "auto")
