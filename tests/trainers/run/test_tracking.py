"""Trackers of experiments, with the real packages: what they hold is what the metrics file holds."""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import tracked
from accelerate import Accelerator
from tiny_runs import settings, tokenizer

from envsuite.core.errors import EnvsuiteError
from trainers.report.metrics import read_metrics
from trainers.run.cli import parse
from trainers.run.config import TrainConfig
from trainers.run.features.tracking.tracker import TRACKERS, TrackedRun, Tracker, WandB
from trainers.run.features.tracking.trackers import Trackers
from trainers.run.folder import RunFolder
from trainers.settings import ConfigError, checked

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # read when trackio is imported
NAMES = ["tensorboard", "wandb", "trackio"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", tmp_path.name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    if "wandb" in sys.modules:  # it keeps the mode that it has read first for as long as the process lives
        sys.modules["wandb"].teardown()


class Followed:
    """A run whose metrics file is written here, with its trackers."""

    def __init__(self, place: Path, names: Sequence[str]) -> None:
        body = settings(place, tracking={"trackers": [*names]})
        self.config: TrainConfig = checked(TrainConfig, body)
        self.accelerator = Accelerator(cpu=True)
        self.place = place / "runs" / "tiny"

    def play(self, iterations: Sequence[int], kept: int | None = None, shift: float = 0.0) -> Trackers:
        """Opens folder and trackers, as a new run or after a resume, and writes a line for each iteration."""
        folder = RunFolder(self.place, self.accelerator, tokenizer())
        trackers = Trackers(self.config, self.accelerator, folder)
        if kept is None:
            folder.begin("seed: 0")
            trackers.begin({"seed": 0, "rollout": {"tasks": 2}}, [], 0)
        else:
            lines = folder.read_metrics()
            folder.go_on(int(lines[kept - 1]["iteration"]), "seed: 0", kept)
            trackers.begin({"seed": 0, "rollout": {"tasks": 2}}, lines, kept)
        for iteration in iterations:
            values = {"train/success": iteration / 8 + shift, "train/entropy": math.inf if iteration == 2 else 0.5}
            folder.write_metrics(iteration, values)
            trackers.log(iteration, values)
        folder.close()
        return trackers

    def of_file(self) -> tracked.Scalars:
        return Counter(
            (name, record["iteration"], value)
            for record in read_metrics(self.place / "metrics.jsonl")
            for name, value in record.items()
            if name != "iteration" and value is not None
        )

    def of(self, name: str) -> tracked.Scalars:
        if name == "tensorboard":
            found = tracked.tensorboard(self.place)[0]
        elif name == "wandb":
            found = tracked.wandb(self.place)[0]
        else:
            found = tracked.trackio(os.environ["WANDB_PROJECT"], "tiny")[0]
        return Counter({key: count for key, count in found.items() if math.isfinite(key[2])})


@pytest.mark.seconds
@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_holds_what_the_metrics_file_holds_of_a_run_that_goes_on_from_an_earlier_line(name, tmp_path):
    run = Followed(tmp_path, [name])
    with run.play([0, 1, 2, 2, 3]):
        pass
    assert run.of(name) == run.of_file() and len(run.of_file()) > 3
    time.sleep(1.1)  # W&B names a folder by the second
    with run.play([2, 2, 3, 4], kept=2):  # the checkpoint was written after two lines
        pass
    assert run.of(name) == run.of_file()
    assert sorted(step for tag, step, _ in run.of(name) if tag == "train/success") == [0, 1, 2, 3, 4]
    if name == "tensorboard":
        _, texts = tracked.tensorboard(run.place)
        assert "tasks: 2" in texts["config"] and texts["status"] == "finished"
    elif name == "wandb":
        _, configs, ids = tracked.wandb(run.place)
        assert configs[0]["rollout"] == {"tasks": 2} and len(ids) == 1, "one run, sent from two folders"
    else:
        _, texts, config = tracked.trackio(tmp_path.name, "tiny")
        assert config["rollout"] == {"tasks": 2} and texts["status"] == "finished"


def test_tensorboard_forgets_what_a_resumed_run_computes_otherwise(tmp_path):
    run = Followed(tmp_path, ["tensorboard"])
    with run.play([0, 1, 1, 2]):
        pass
    with run.play([1, 2], kept=2, shift=0.0625):  # the second line of iteration 1 comes again, too
        pass
    assert run.of("tensorboard") == run.of_file()


def test_a_tracker_that_is_added_to_a_run_gets_the_lines_before_too(tmp_path):
    with Followed(tmp_path, []).play([0, 1, 2]):
        pass
    run = Followed(tmp_path, ["tensorboard"])
    with run.play([3], kept=3):
        pass
    assert run.of("tensorboard") == run.of_file()


def test_how_a_run_ended_is_told(tmp_path):
    run = Followed(tmp_path, ["tensorboard"])
    with pytest.raises(ZeroDivisionError), run.play([0]):
        raise ZeroDivisionError
    assert tracked.tensorboard(run.place)[1]["status"] == "failed"


class Lost(Tracker):
    """Its server is lost after two lines."""

    needs = "trainers"
    taken: list[int] = []  # noqa: RUF012

    def __init__(self, about: TrackedRun) -> None: ...

    def log(self, line: int, iteration: int, values: Mapping[str, float]) -> None:
        if line == 2:
            raise ConnectionError("the server is down")
        self.taken.append(line)

    def finish(self, status: str) -> None: ...


def test_a_tracker_that_fails_is_warned_of_once_and_after_a_resume_gets_what_it_lacks(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(TRACKERS._entries, "lost", Lost)
    monkeypatch.setattr(Lost, "taken", [])
    run = Followed(tmp_path, ["lost", "tensorboard"])
    with caplog.at_level(logging.WARNING), run.play([0, 1, 2, 3, 4]):
        pass
    warned = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert len(warned) == 1 and "ConnectionError: the server is down" in warned[0] and "goes on" in warned[0]
    assert Lost.taken == [0, 1] and run.of("tensorboard") == run.of_file(), "the other tracker is not affected"
    monkeypatch.setattr(Lost, "log", lambda self, line, *rest: self.taken.append(line))
    with run.play([5], kept=5):
        pass
    assert Lost.taken == [0, 1, 2, 3, 4, 5]


def test_a_server_that_cannot_be_reached_does_not_keep_a_run_from_training(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9/?write_token=none")
    with caplog.at_level(logging.WARNING), Followed(tmp_path, ["trackio"]).play([0, 1]):
        pass


def test_only_the_first_process_has_trackers(tmp_path, monkeypatch):
    run = Followed(tmp_path, ["tensorboard"])
    monkeypatch.setattr(Accelerator, "is_main_process", property(lambda self: False))
    with run.play([0, 1]):
        pass
    assert not (run.place / "tensorboard").exists() and not (run.place / "trackers.json").exists()


def test_a_tracker_that_is_missing_does_not_exist_or_is_named_twice_is_refused(monkeypatch):
    parse(["--tracking.trackers", "[wandb]"])
    monkeypatch.setattr(WandB, "needs", "no_such_package")
    for names, said in {
        "[wandb]": r"tracking.trackers has wandb.*pip install 'envsuite\[wandb\]'",
        "[tensorbord]": "tensorbord.*tensorboard",
        "[wandb, wandb]": "names wandb twice",
    }.items():
        with pytest.raises(EnvsuiteError, match=said):
            parse(["--tracking.trackers", names])


def test_wandb_without_a_login_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"wandb login.*WANDB_MODE=offline"):
        Followed(tmp_path, ["wandb"]).play([])


@pytest.mark.seconds
@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_cannot_log_in_is_warned_of_once_and_training_goes_on(name, tmp_path, monkeypatch, caplog):
    def fail(kind: type[Tracker]) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(TRACKERS[name], "check_access", classmethod(fail))
    followed = Followed(tmp_path, NAMES)
    with caplog.at_level(logging.WARNING, "trainers.run.features.tracking.trackers"):
        with followed.play(range(3)):
            pass
    warned = [record.getMessage() for record in caplog.records if "the tracker" in record.getMessage()]
    assert len(warned) == 1 and warned[0].startswith(f"the tracker {name} failed (ConnectionError: no network)")
    assert len(read_metrics(followed.place / "metrics.jsonl")) == 3
    assert followed.config.tracking.trackers == NAMES, "after --resume it is tried again"
