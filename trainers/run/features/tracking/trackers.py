"""Gives the lines of the metrics file to trackers of experiments; the file stays the source of truth."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import orjson
from accelerate import Accelerator

from envsuite.core.errors import DataError
from envsuite.playing.activity import ACTIVITY
from trainers.processes.distributed import on_main
from trainers.run.config import TrainConfig
from trainers.run.features.tracking.tracker import TRACKERS, Status, TrackedRun, Tracker
from trainers.run.folder import RunFolder
from trainers.run.stopping import Interrupted
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)


@dataclass
class _Followed:
    """How far a tracker has followed the metrics file; kept in ``trackers.json``, by the tracker's name."""

    key: str
    lines: int = 0
    """Lines that it was given."""


class Trackers:
    """The trackers of a run, in its first process; a context manager, whose end is the run's.

    Each follows the metrics file. One that fails is warned of once and gets nothing more, and training goes on; when
    the run is resumed, it gets the lines that it lacks. Lines that come again after a resume are not given twice.

    Args:
        config: The run's settings.
        accelerator: The run's accelerator.
        folder: The run's folder.

    Raises:
        ConfigError: Nobody has logged in to one that needs it.
    """

    def __init__(self, config: TrainConfig, accelerator: Accelerator, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.names = [*config.tracking.trackers] if accelerator.is_main_process else []
        self._open: dict[str, Tracker] = {}
        self._followed: dict[str, _Followed] = {}
        self._line = 0
        on_main(accelerator, self._check_access)

    def _check_access(self) -> None:
        for name in [*self.names]:
            try:
                TRACKERS[name].check_access()
            except ConfigError:
                raise
            except Exception as error:  # any library's, e.g. without a network
                self.names.remove(name)
                self._warn(name, error)

    def begin(self, settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], count: int) -> None:
        """Opens each tracker's run, or goes on in it.

        Args:
            settings: The resolved settings.
            lines: The lines of the metrics file before a resume; empty for a new run.
            count: How many of them the run goes on from.
        """
        self._line = count
        earlier_runs = self._read() if lines else {}
        for name in self.names:
            self._followed[name] = earlier_runs.get(name) or _Followed(secrets.token_hex(4))
            self._safely(name, partial(self._begin, name, settings, lines, count))

    def _begin(self, name: str, settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], count: int) -> None:
        kind, run, project = TRACKERS[name], self._followed[name], os.environ.get("WANDB_PROJECT") or "envsuite"
        is_resumed, purge = run.lines > 0, None
        run.lines = min(run.lines, len(lines))  # damaged lines are gone
        if kind.forgets and run.lines > count:
            purge = int(lines[count]["iteration"])
            run.lines = next((i for i in range(count) if lines[i]["iteration"] >= purge), count)
        about = (self.config.name, project, self.folder.path, settings, run.key, is_resumed, purge)
        tracker = self._open[name] = kind(TrackedRun(*about))
        for number in range(run.lines, count):
            values = {key: math.nan if value is None else value for key, value in lines[number].items()}
            tracker.log(number, int(values.pop("iteration")), values)
        run.lines = max(run.lines, count)
        self._write()

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Gives every tracker the line that was written to the metrics file."""
        for name, tracker in [*self._open.items()]:
            if self._line >= self._followed[name].lines:
                self._safely(name, partial(tracker.log, self._line, iteration, values))
                if name in self._open:
                    self._followed[name].lines = self._line + 1
        self._line += 1
        if self._open:
            self._write()

    def __enter__(self) -> Self:
        """Returns the trackers."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Ends each tracker's run."""
        is_stop = isinstance(error, Interrupted)
        status: Status = "finished" if error is None else "interrupted" if is_stop else "failed"
        for name, tracker in [*self._open.items()]:
            self._safely(name, partial(tracker.finish, status))

    def _safely(self, name: str, call: Callable[[], None]) -> None:
        """Calls a tracker; one that raises is warned of and left out from then on."""
        try:
            with ACTIVITY.waiting(f"the tracker {name}"):
                call()
        except Exception as error:  # any library's, over any network
            self._open.pop(name, None)
            self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        _LOG.warning(
            "the tracker %s failed (%s: %s) and gets nothing more; training goes on, and %s has every line. "
            "After --resume it gets those that it lacks",
            name, type(error).__name__, error, self.folder.metrics.name,
        )  # fmt: skip

    def _write(self) -> None:
        content = {name: {"key": run.key, "lines": run.lines} for name, run in self._followed.items()}
        self.folder.write("trackers.json", orjson.dumps(content))

    def _read(self) -> dict[str, _Followed]:
        path = self.folder.path / "trackers.json"
        try:
            content = orjson.loads(path.read_bytes())
            return {name: _Followed(str(entry["key"]), int(entry["lines"])) for name, entry in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); remove it to begin new runs in the trackers") from error
