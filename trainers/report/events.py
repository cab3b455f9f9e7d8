"""``events.jsonl``: what happened to a run besides training, one JSON object per line.

A run that goes back to a checkpoint takes its metrics back, but no event: going back is one.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from envsuite.data.files import file_errors

FILE = "events.jsonl"
Kind = Literal["restart", "alarm", "pause", "return", "server"]
"""``restart``: the run was started again after a loss; ``alarm``: a metric left the range of healthy runs; ``pause``:
an alarm stopped the run; ``return``: one took it back to its best checkpoint; ``server``: one joined it or left it."""


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a run."""

    kind: Kind
    iteration: int
    """Iterations that were finished."""
    message: str
    """One line for a person."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values by their names, as JSON has them."""
    time: str = ""
    """When, in UTC (ISO 8601)."""


def write_event(folder: Path, event: RunEvent) -> None:
    """Appends an event to the file of a run; a line that a killed process left incomplete is ended before it.

    Args:
        folder: The run's folder; made if need be.
        event: The event; its ``time`` is that of the call.

    Raises:
        DataError: It cannot be written.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = orjson.dumps({**asdict(event), "time": now}) + b"\n"
    with file_errors(folder / FILE, "written"):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def read_events(folder: Path) -> list[RunEvent]:
    """Returns the events of a run in their order; none where it has no file. Incomplete lines are left out.

    Raises:
        DataError: The file cannot be read.
    """
    if not (folder / FILE).exists():
        return []
    with file_errors(folder / FILE):
        lines = (folder / FILE).read_bytes().splitlines()
    events = []
    for line in lines:
        try:
            events.append(RunEvent(**orjson.loads(line)))
        except (orjson.JSONDecodeError, TypeError):
            continue
    return events
