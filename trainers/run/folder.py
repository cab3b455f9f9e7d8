"""The folder that a run leaves behind: settings, metrics, episodes, summary, checkpoints."""

from __future__ import annotations

import platform
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from envsuite.data.files import file_errors, write_file
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.step import Episode
from envsuite.prompting.images import readable
from trainers.credit.crediting import Credit
from trainers.processes.distributed import first_value, on_main, sharing_failures
from trainers.report.metrics import MetricsWriter, drop_damaged, read_metrics
from trainers.run.checkpoint import CheckpointError, all_damaged, folder_of, iteration_of, newest
from trainers.run.features.alarms.watch import best_iteration
from trainers.settings import ConfigError
from trainers.steps.parquet import shard_of, write_episodes


class RunFolder:
    """The files of one run; only the first process writes, but each its own episodes.

    Args:
        path: The folder.
        accelerator: The run's accelerator.
        tokenizer: Makes the texts that people read beside the token ids.
    """

    def __init__(self, path: Path, accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase) -> None:
        self.path = path
        self.accelerator = accelerator
        self.tokenizer = tokenizer
        self._writer: MetricsWriter | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / "metrics.jsonl"

    def check_shared(self) -> None:
        """Checks that all processes see one folder, where each writes its part; every process must call this.

        Raises:
            ConfigError: A process does not see what the first one writes.
            DataError: It cannot be written.
        """
        if self.accelerator.num_processes == 1:
            return
        number = first_value(self.accelerator, secrets.token_hex(8))
        probe = self.path / f".seen-{number}"  # a name of which no machine remembers that it is not there

        def touch() -> None:
            with file_errors(self.path, "written"):
                self.path.mkdir(parents=True, exist_ok=True)
                probe.touch()

        on_main(self.accelerator, touch)
        try:
            with sharing_failures(self.accelerator):
                if not probe.exists():
                    raise ConfigError(
                        f"output is {self.path.parent}, where {socket.gethostname()} does not see what the first "
                        "process writes; set it to a folder that all machines of the run share"
                    )
        finally:
            if self.accelerator.is_main_process:
                probe.unlink(missing_ok=True)

    def begin(self, config: str) -> None:
        """Prepare the folder for a new run, and write its settings.

        Raises:
            ConfigError: It holds checkpoints already.
            CheckpointError: It holds damaged checkpoints alone.
            DataError: It cannot be written.
        """
        with sharing_failures(self.accelerator):  # all look before one writes
            if any(self.checkpoints.glob("iteration-*")):
                if newest(self.checkpoints) is None:
                    raise CheckpointError(all_damaged(self.checkpoints))
                raise ConfigError(f"{self.path} holds a run already; go on with --resume, or choose another --name")
        self.go_on(-1, config, 0)

    def go_on(self, iteration: int, config: str, metrics_lines: int) -> None:
        """Prepare the folder for a run that continues after ``iteration``: whatever was written after it is removed.

        Args:
            iteration: Iterations finished.
            config: Settings of the run.
            metrics_lines: How many lines of the metrics file are kept.

        Raises:
            DataError: It cannot be written.
        """

        def prepare() -> None:
            self._tidy(iteration)
            self.write("config.yaml", config.encode())
            self._writer = MetricsWriter(self.metrics)
            self._writer.truncate(metrics_lines)

        on_main(self.accelerator, prepare)

    def mend_metrics(self, lines: int, iteration: int) -> int:
        """Drops damaged lines of the metrics file; returns how many of the checkpoint's ``lines`` are left.

        Raises:
            DataError: It cannot be read or written.
            PeerFailed: The first process raised it.
        """
        with sharing_failures(self.accelerator):
            return drop_damaged(self.metrics, lines, iteration) if self.accelerator.is_main_process else lines

    @property
    def metrics_lines(self) -> int:
        """Lines of the metrics file; 0 in all processes but the first."""
        return len(self.read_metrics())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of the metrics file; none in all processes but the first.

        Raises:
            DataError: It is missing or damaged.
        """
        return read_metrics(self.metrics) if self.accelerator.is_main_process else []

    def best_checkpoint(self, before: float) -> Path | None:
        """The folder of the best checkpoint of before an iteration, for the first process; ``None``: there is none."""
        iterations = map(iteration_of, self.checkpoints.glob("iteration-*"))
        iteration = best_iteration(iterations, self.read_metrics(), before)
        return None if iteration is None else folder_of(self.checkpoints, iteration)

    def write_metrics(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append a line to the metrics file.

        Raises:
            DataError: It cannot be written (disk full).
        """
        if self._writer is not None:
            self._writer.write(iteration, values)

    def close(self) -> None:
        """Close the metrics file."""
        if self._writer is not None:
            self._writer.close()

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that either the old or the whole new one is there.

        Raises:
            DataError: It cannot be written (disk full).
        """
        if self.accelerator.is_main_process:
            write_file(self.path / name, content)

    def write_summary(self, body: Mapping[str, Any]) -> None:
        """Write ``summary.json``, with the versions of what the results depend on."""
        self.write("summary.json", orjson.dumps({**body, "versions": versions()}, option=orjson.OPT_INDENT_2))

    def write_episodes(self, name: str, episodes: Sequence[Episode], credit: Credit | None = None) -> None:
        """Write this process's shard of ``episodes/<name>.parquet``; each process must call this.

        Args:
            name: Name of the file.
            episodes: Episodes that this process played.
            credit: Advantages of their steps.

        Raises:
            DataError: It cannot be written (disk full).
            PeerFailed: Another process cannot write its shard.
        """
        advantages: dict[tuple[int, int], float] = {}
        if credit is not None and credit.advantage.per_step is not None:
            keys = zip(credit.table.episode_id.tolist(), credit.table.t.tolist(), strict=True)
            advantages = dict(zip(keys, credit.advantage.per_step.tolist(), strict=True))
        path = self._episodes / f"{name}.parquet"
        shard = shard_of(path, self.accelerator.process_index, self.accelerator.num_processes)
        episodes = sorted(episodes, key=lambda episode: episode.episode_id)
        with sharing_failures(self.accelerator), ACTIVITY.waiting(f"the file {shard}"):
            write_episodes(shard, episodes, advantages or None, self._text(episodes))

    @property
    def _episodes(self) -> Path:
        return self.path / "episodes"

    def _tidy(self, iteration: int) -> None:
        """Make the folders, and remove episode files of later iterations, which an earlier process may have left."""
        if not self.accelerator.is_main_process:
            return
        with file_errors(self.path, "written"):
            for part in (self.checkpoints, self._episodes, self.path / "plots"):
                part.mkdir(parents=True, exist_ok=True)
            for file in self._episodes.glob("*.parquet"):
                match = re.match(r"(?:iteration|eval)-([0-9]+)", file.name)
                if match and int(match[1]) > iteration:
                    file.unlink()

    def _text(self, episodes: Sequence[Episode]) -> dict[tuple[int, int], tuple[str, str]]:
        """Prompt and response of every step, for reading."""
        steps = [(episode.episode_id, step) for episode in episodes for step in episode.steps]
        different = {ids.tobytes(): ids for _, step in steps for ids in (step.prompt_ids, step.response_ids)}
        texts = {key: readable(self.tokenizer, ids) for key, ids in different.items()}  # groups repeat themselves
        return {
            (episode_id, step.t): (texts[step.prompt_ids.tobytes()], texts[step.response_ids.tobytes()])
            for episode_id, step in steps
        }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    names = ("envsuite", "torch", "transformers", "accelerate", "peft", "gymnasium", "numpy", "minecraft-data")
    package_versions = {"python": platform.python_version()}
    for name in names:
        try:
            package_versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return package_versions
