"""Trackers of experiments: TensorBoard, Weights & Biases, trackio, each behind the same few calls."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from trainers.settings import ConfigError
from trainers.settings.registry import Registry

Status = Literal["finished", "interrupted", "failed"]
"""How a run ended."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker shows."""

    name: str
    project: str
    folder: Path
    """The run's folder."""
    config: Mapping[str, Any]
    """The resolved settings."""
    key: str
    """Identity of the run in the tracker: eight characters that no other run has."""
    resumed: bool
    """Whether the tracker has been given a part of the run."""
    purge: int | None = None
    """Iteration from which on lines come again, which a tracker that :attr:`~Tracker.forgets` has to forget."""


class Tracker(ABC):
    """Shows one run; each call may raise whatever its library raises.

    A tracker of another package is registered as an entry point of the group ``trainers.trackers``.
    """

    needs: ClassVar[str]
    """The module that it needs; the extra of this package is named as the tracker is."""
    forgets: ClassVar[bool] = False
    """Whether it can drop what it was given, from an iteration on."""

    @abstractmethod
    def __init__(self, about: TrackedRun) -> None: ...

    @classmethod
    def check_access(cls) -> None:
        """Refuses to begin where an account is needed and nobody has logged in.

        Raises:
            ConfigError: The message says how to log in.
        """
        return

    @abstractmethod
    def log(self, line: int, iteration: int, values: Mapping[str, float]) -> None:
        """Takes one line of the metrics file.

        Args:
            line: Its number, from 0.
            iteration: Number of the iteration; several lines may have the same.
            values: Metrics by their names in :data:`trainers.report.metrics.METRICS`.
        """

    @abstractmethod
    def finish(self, status: Status) -> None:
        """Ends the run in the tracker; nothing is called after it."""


TRACKERS: Registry[Tracker] = Registry("tracking.trackers", group="trainers.trackers")


def check_trackers(names: list[str]) -> None:
    """Checks that the trackers exist and that their packages are installed, without importing these.

    Raises:
        UnknownName: There is none of that name; the message lists those that exist.
        ConfigError: A package is missing, or a tracker is named twice; the message says what to type.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"tracking.trackers names {name} twice; name it once")
        if find_spec(TRACKERS[name].needs.partition(".")[0]) is None:
            raise ConfigError(
                f"tracking.trackers has {name}, whose package is not installed; "
                f"type pip install 'envsuite[{name}]', or leave it out"
            )


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    """Event files in the run's folder ``tensorboard``; on resume it forgets what comes again (``purge_step``)."""

    needs = "tensorboard"
    forgets = True

    def __init__(self, about: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(about.folder / "tensorboard"), purge_step=about.purge)
        if not about.resumed:
            self._writer.add_text("config", f"```yaml\n{yaml.safe_dump(dict(about.config), sort_keys=False)}```")
        self._iteration = 0

    def log(self, line: int, iteration: int, values: Mapping[str, float]) -> None:
        """Writes to the disk at once."""
        self._iteration = iteration
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def finish(self, status: Status) -> None:
        """Writes the status as a text."""
        self._writer.add_text("status", status, self._iteration)
        self._writer.close()


@TRACKERS.register("wandb")
class WandB(Tracker):
    """Weights & Biases; lines are its steps, iterations the x axis.

    Its variables (``WANDB_MODE``, ``WANDB_ENTITY``, ``WANDB_BASE_URL``, …) are followed. A step that it has cannot be
    replaced: where a run resumes from before its last line, what it was given first stays.
    """

    needs = "wandb"

    def __init__(self, about: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=about.project, name=about.name, id=about.key, resume="allow", dir=str(about.folder),
            config=dict(about.config),
            settings=wandb.Settings(
                console="off", init_timeout=60, finish_timeout=60, x_transaction_log_flush_interval=1.0,
            ),
        )  # fmt: skip
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    @classmethod
    def check_access(cls) -> None:
        """Logs in, unless the mode is offline; asks on a terminal."""
        import wandb

        if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
            return
        try:
            logged_in = wandb.login()
        except wandb.errors.UsageError:
            logged_in = False
        if not logged_in:
            raise ConfigError(
                "tracking.trackers has wandb, which nobody has logged in to; type wandb login, or set "
                "WANDB_MODE=offline to keep its files in the run's folder"
            )

    def log(self, line: int, iteration: int, values: Mapping[str, float]) -> None:
        """Hands the line to W&B's own process, which sends it."""
        self._run.log({"iteration": iteration, **values}, step=line)

    def finish(self, status: Status) -> None:
        """Ends the run, as failed unless it finished; waits a minute at most for what is not sent yet."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "finished" else 1)


@TRACKERS.register("trackio")
class Trackio(Tracker):
    """trackio; its database is where ``TRACKIO_DIR`` says, or on the server that ``TRACKIO_SERVER_URL`` names."""

    needs = "trackio"

    def __init__(self, about: TrackedRun) -> None:
        import trackio

        name = f"{about.name}-{about.key}"  # it finds runs by their names
        self._end: Any = trackio.finish
        self._markdown: type[Any] = trackio.Markdown
        resume = "allow" if about.resumed else "never"
        self._run: Any = trackio.init(about.project, name=name, config=dict(about.config), resume=resume, embed=False)
        self._iteration = 0

    def log(self, line: int, iteration: int, values: Mapping[str, float]) -> None:
        """Hands the line to trackio's own thread, which writes it within a second."""
        self._iteration = iteration
        self._run.log(dict(values), step=iteration)

    def finish(self, status: Status) -> None:
        """Writes the status as a text, and all that is left."""
        self._run.log({"status": self._markdown(status)}, step=self._iteration)
        self._end()
