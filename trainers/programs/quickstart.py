"""``envsuite quickstart``: from an environment in a file, and logs of its play, to an agent that has learnt.

It types for the user what ``docs/your-environment.md`` has, on the CPU. On two cores or more two processes train with a
thread each: a model this small leaves a second thread little to do.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from envsuite.core.errors import UsageError
from envsuite.exits import status_of
from envsuite.scaffold.command import TEMPLATES, write_folder
from trainers.programs.imitate import main as imitate
from trainers.programs.train import main as train
from trainers.run.cli import TRAIN, parse
from trainers.run.lock import hold_folder

NAME, CONFIG, BASE = "errand", "train.yaml", "runs/errand-base"
"""The folder that is written, its settings of training, and its base model."""
LAUNCH = ("configs/accelerate/cpu1.yaml", "configs/accelerate/cpu2.yaml")
"""Settings of one process, and of two."""
CHECK = "--check"
PROGRAM = replace(
    TRAIN,
    name="envsuite quickstart",
    description="""Train an agent on the CPU, in minutes: write the folder errand, which has an environment in a
file, as `envsuite new errand` does; have a small model imitate logs of its play; train it by reinforcement learning.
errand/runs/errand/report.html shows what became of it. What was interrupted goes on. Settings take the place of those
of errand/train.yaml.

examples:
  envsuite quickstart
  envsuite quickstart --recipe grpo --name grpo
  envsuite quickstart --iterations 2 --name short
""",
    options={},
)


def main(arguments: Sequence[str]) -> int:
    """Writes the folder, imitates and trains; what is there is not made again, and a run with checkpoints goes on.

    The arguments are further options of ``trainers.train``. With ``--check`` nothing is written or launched.

    Returns:
        That of the run; 0 if ``--check`` found nothing wrong; 2 for an error that the user can correct, with a message
        on stderr; 130 after Ctrl-C.
    """
    return status_of(lambda: _main(arguments))


def _main(words: Sequence[str]) -> int:
    checking = CHECK in words
    words = ["--config", CONFIG, *(word for word in words if word != CHECK)]
    with contextlib.chdir(TEMPLATES / "environment"):  # before anything is written
        parse(words, PROGRAM)
    if checking:
        return 0
    if not Path(NAME).exists():
        what, _ = write_folder("environment", NAME)
        _say(f"envsuite new {NAME}  # {what}")
    if not Path(NAME, CONFIG).is_file():
        raise UsageError(f"{NAME} is there and has no {CONFIG}; rename it, or type the command in another folder")
    os.chdir(NAME)
    config = parse(words, PROGRAM).config
    if config.model.path == BASE and not Path(BASE).exists():
        imitation = ["--config", "imitate.yaml", "--output", f"{BASE}.partial"]  # it saves its model on the way, too
        _say(f"cd {NAME}; envsuite imitate {' '.join(imitation)}")
        torch.set_num_threads(1)
        if status := imitate(imitation):
            return status
        Path(f"{BASE}.partial").rename(BASE)
    folder = Path(config.output, config.name)
    if folder.exists():
        with hold_folder(folder, "envsuite quickstart", "--name"):  # before processes start that would find it taken
            pass
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if any((folder / "checkpoints").glob("iteration-*")):
        words.append("--resume")
    _say(f"cd {NAME}; envsuite train {'--processes 2 ' * (cores > 1)}{' '.join(words)}")
    if not (status := train(["--launch-config", LAUNCH[cores > 1], *words])):
        sys.stdout.write(f"The files are in the folder {NAME}. Next: write your own environment into its {NAME}.py.\n")
    return status


def _say(command: str) -> None:
    sys.stdout.write(f"$ {command}\n")
    sys.stdout.flush()
