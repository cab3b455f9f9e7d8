"""Stopping, by force or by request, and going on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from folders import SUPPORT
from tiny_runs import summary, train, weights, without_times, write_settings

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
def test_a_run_killed_between_two_checkpoints_and_resumed_equals_one_that_was_not(reference: Path) -> None:
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
def test_damaged_metrics_forbid_no_resuming(reference: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_wherever_a_run_is_killed_it_resumes_to_the_same_end(reference: Path, moment: str, number: int) -> None:
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
def test_a_signal_leaves_a_checkpoint_that_resumes_to_the_same_end(
    reference: Path, kind: signal.Signals, moment: str, number: int
) -> None:
    config = _same_settings(reference)
    code, said = _struck(moment, number, kind, config)
    assert code == 128 + kind, said
    assert "--resume" in said and "Traceback" not in said
    assert main(["--config", str(config), "--resume"]) == 0
    _equal(reference, config.parent / "other" / "reference")


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(place: Path) -> None:
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
