"""``python -m trainers.quickstart``: the quick start, from any folder, launched with accelerate on the CPU.

On two cores or more there are two processes with a thread each: a model this small leaves a second thread little to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from envsuite.core.errors import EnvsuiteError
from trainers.settings.shipped import located

CONFIG = "configs/quickstart.yaml"
LAUNCH = ("configs/accelerate/cpu1.yaml", "configs/accelerate/cpu2.yaml")
"""Settings of one process, and of two."""
CHECK = "--check"


def main(arguments: Sequence[str] | None = None) -> int:
    """Launches the training run; the arguments are further options of ``trainers.train``.

    A run whose folder has checkpoints goes on from the newest one. With ``--check`` nothing is launched: settings,
    model and folder are looked at. Does not return where it launches: the launcher takes the place of this process.

    Returns:
        0 if ``--check`` found nothing wrong; 2 for an error that the user can correct, with a message on stderr.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    checking = CHECK in words
    words = ["--config", CONFIG, *(word for word in words if word != CHECK)]
    try:
        resumed = _check(words, checking)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if checking:
        return 0
    threads = os.environ.get("OMP_NUM_THREADS") or "1"
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    settings = str(located(LAUNCH[cores > 1]))
    launch = ["--config_file", settings, "--num_cpu_threads_per_process", threads, "-m", "trainers.train"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, *words, *(["--resume"] if resumed else [])]
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, "ACCELERATE_USE_CPU": "true"})


def _check(words: Sequence[str], model: bool) -> bool:
    """Checks the settings, and the model if that is wanted; returns whether there is a run to go on with.

    Raises:
        EnvsuiteError: They cannot work; the message says which, and why.
    """
    from trainers.run.cli import TRAIN, parse

    command = parse(words, TRAIN)
    if model:
        from trainers.policy.source import find

        find(command.config.model.path, "model.path")
        for settings in LAUNCH:
            located(settings).read_bytes()
    folder = Path(command.config.output) / command.config.name
    return command.resume is None and any((folder / "checkpoints").glob("iteration-*"))


if __name__ == "__main__":
    sys.exit(main())
