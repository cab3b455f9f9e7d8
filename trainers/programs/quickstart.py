"""``envsuite quickstart``: the quick start, from any folder, launched with accelerate on the CPU.

On two cores or more there are two processes with a thread each: a model this small leaves a second thread little to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envsuite.exits import status_of
from trainers.policy.source import find
from trainers.programs.train import main as train
from trainers.run.cli import TRAIN, parse
from trainers.run.lock import hold_folder
from trainers.settings.shipped import located

CONFIG = "configs/quickstart.yaml"
LAUNCH = ("configs/accelerate/cpu1.yaml", "configs/accelerate/cpu2.yaml")
"""Settings of one process, and of two."""
CHECK = "--check"
PROGRAM = replace(
    TRAIN,
    name="envsuite quickstart",
    description="""Train a small model to craft, on the CPU, in minutes, and write runs/quickstart/report.html.
A run that was interrupted goes on. Settings take the place of those of configs/quickstart.yaml.

examples:
  envsuite quickstart
  envsuite quickstart --iterations 2 --name short
  envsuite quickstart --recipe grpo --name grpo --seed 1
""",
    options={},
)


def main(arguments: Sequence[str]) -> int:
    """Launches the training run; the arguments are further options of ``trainers.train``.

    A run whose folder has checkpoints goes on from the newest one. With ``--check`` nothing is launched: settings,
    model and folder are looked at.

    Returns:
        That of the run; 0 if ``--check`` found nothing wrong; 2 for an error that the user can correct, with a message
        on stderr; 130 after Ctrl-C.
    """
    return status_of(lambda: _main(arguments))


def _main(words: Sequence[str]) -> int:
    checking = CHECK in words
    words = ["--config", CONFIG, *(word for word in words if word != CHECK)]
    has_run = _check(words, checking)
    if checking:
        return 0
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return train(["--launch-config", LAUNCH[cores > 1], *words, *(["--resume"] if has_run else [])])


def _check(words: Sequence[str], model: bool) -> bool:
    """Checks the settings, and the model if that is wanted; returns whether there is a run to go on with.

    Raises:
        EnvsuiteError: They cannot work; the message says which, and why.
    """
    command = parse(words, PROGRAM)
    if model:
        find(command.config.model.path, "model.path")
        for settings in LAUNCH:
            located(settings).read_bytes()
    folder = Path(command.config.output) / command.config.name
    if folder.exists():
        with hold_folder(folder, "envsuite quickstart", "--name"):  # before processes start that would find it taken
            pass
    return command.resume is None and any((folder / "checkpoints").glob("iteration-*"))
