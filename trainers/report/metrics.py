"""The names of all metrics, and ``metrics.jsonl``: one JSON object per line, one line per iteration or evaluation."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, UsageError, unknown
from envsuite.data.files import file_errors, write_atomically

_LOG = logging.getLogger(__name__)
GROUPS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Title and metrics of each group of names."""
METRICS: dict[str, str] = {
    f"{group}/{name}": text for group, body in GROUPS.items() for name, text in body["metrics"].items()
}
"""Every metric name and its one-line description with its unit; ``<…>`` stands for any further text."""

_FAMILIES = tuple(name.partition("<")[0] for name in METRICS if "<" in name)


def is_metric(name: str) -> bool:
    """Whether ``name`` is one of :data:`METRICS` or belongs to one of its families."""
    in_family = any(name.startswith(family) and len(name) > len(family) for family in _FAMILIES)
    return in_family or (name in METRICS and "<" not in name)


def is_share(name: str) -> bool:
    """Whether a metric lies between 0 and 1."""
    return "0 to 1" in METRICS.get(name, "") or name.startswith(("eval/success/", "eval/score/"))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a metrics file, each with ``iteration`` and metric values (``None`` for non-finite ones).

    Drops an incomplete last line.

    Raises:
        DataError: The file is missing, or another line is damaged.
    """
    with file_errors(path):
        lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # text after the last newline is an incomplete line
        try:
            records.append(_record(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return records


def _record(line: bytes) -> dict[str, Any]:
    """Reads one line of a metrics file.

    Raises:
        ValueError: It is damaged; says how.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("iteration"), int):
        raise ValueError("not a metrics record (no integer 'iteration')")
    return record


def drop_damaged(path: Path, lines: int, iteration: int) -> int:
    """Removes the damaged lines of a metrics file, with one warning, so that a run can go on from a good checkpoint.

    Args:
        path: The file; a missing one counts as empty.
        lines: Number of its lines when the checkpoint was written.
        iteration: Iterations finished by then.

    Returns:
        The number of those lines that are left; they are the first ones.

    Raises:
        DataError: The file cannot be read or written.
    """
    with file_errors(path, "written"):
        file_lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        sound: list[bytes] = []
        count = 0
        for number, line in enumerate(file_lines):
            try:
                count += _record(line)["iteration"] <= iteration and number < lines
                sound.append(line)
            except ValueError:
                continue
        if len(sound) < len(file_lines) or not path.exists():
            write_atomically(path, b"".join(line + b"\n" for line in sound))
    if count < lines or len(sound) < len(file_lines):
        _LOG.warning(
            "%s: %d damaged line(s) dropped; %d of the %d lines that the checkpoint knows are left",
            path, len(file_lines) - len(sound), count, lines,
        )  # fmt: skip
    return count


class MetricsWriter:
    """Appends lines to a metrics file; each is on disk when :meth:`write` returns.

    Opening a file removes an incomplete last line.

    Args:
        path: The file; its folder is created if necessary.

    Raises:
        DataError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with file_errors(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._replace(self.path.read_bytes())
            self._file = self.path.open("ab")

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Appends one line.

        Args:
            iteration: Number of the iteration, from 1; 0 for measurements before training.
            values: Metric values by name; non-finite ones become ``null``.

        Raises:
            UnknownName: A name is not in :data:`METRICS`.
            UsageError: A value is not a number.
            DataError: The line cannot be written (disk full).
        """
        for name in values:
            if not is_metric(name):
                raise unknown("metric", name, METRICS)
        try:
            line = orjson.dumps({"iteration": iteration, **values}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
        except TypeError as error:
            raise UsageError(f"metrics of iteration {iteration}: {error}") from error
        with file_errors(self.path, "written"):
            self._file.write(line)
            self._file.flush()

    def truncate(self, lines: int) -> None:
        """Keeps the first ``lines`` lines: those before the checkpoint from which a run resumes.

        The file is replaced atomically: a crash leaves the old one.

        Raises:
            DataError: The file has fewer lines, or cannot be written.
        """
        content = self.path.read_bytes().split(b"\n")[:-1]
        if len(content) < lines:
            raise DataError(f"{self.path}: has {len(content)} lines, the checkpoint was written after {lines}")
        self._file.close()
        with file_errors(self.path, "written"):
            self._replace(b"".join(line + b"\n" for line in content[:lines]))
            self._file = self.path.open("ab")

    def _replace(self, content: bytes) -> None:
        write_atomically(self.path, content[: content.rfind(b"\n") + 1])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
