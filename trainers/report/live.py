"""A run as it is now, read from its folder while it is written."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, EnvsuiteError
from trainers.report.graphs import pack_pictures, pictures
from trainers.report.html import file_entry, methods_data, page_data
from trainers.report.methods import DEFAULT, Advantages
from trainers.report.pack import PackedEpisodes, pack, pack_advantages
from trainers.report.run import RunData, iteration_of
from trainers.steps.parquet import read_table

SILENT = 15.0
"""Seconds after which a run that writes its activity every two seconds counts as silent."""
LOG_BYTES = 200_000
"""How much of the end of a run's log is read."""
ALERTS = 20
KEPT = 16
"""Packed files that are kept in memory, and packed graphs and advantages of files."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (WARNING|ERROR|CRITICAL|INFO) ([\w.]+): (.*)")
_ENDED = "ended by an error: "

Stamp = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of files: they change when a file does."""


class LiveRun:
    """Reads the folder of a run: all methods may be called while the run writes, and from any thread.

    ``problems`` names files that are damaged or not yet whole; what was read of them before stays.

    Args:
        folder: Folder of the run; it need not exist yet.
        methods: Methods whose advantages can be asked for, as :class:`~trainers.report.methods.Advantages` takes them.
    """

    def __init__(self, folder: Path, methods: Sequence[str] = DEFAULT) -> None:
        self.folder = folder
        self.methods = methods
        self._lock = threading.RLock()
        self._run: RunData | None = None
        self._run_stamp: Stamp = ()
        self._run_problem = ""
        self._method_problem = ""
        self._run_advantages: Advantages | None = None
        self._counts: dict[str, tuple[Stamp, tuple[int, int, int]]] = {}
        self._pack = lru_cache(KEPT)(lambda path, stamp: pack(path))
        self._pack_more = lru_cache(KEPT)(self._pack_part)

    def now(self) -> dict[str, Any]:
        """Returns what changes all the time; ``version`` is another whenever :meth:`state` is."""
        with self._lock:
            run = self._load()
            files, problems = self._files(run)
            problems += [self._run_problem] if self._run_problem else []
            stamps = [file["stamp"] for file in files]
            version = hashlib.sha256(repr((self._run_stamp, self._run_problem, stamps)).encode()).hexdigest()[:16]
            return {
                "begun": run is not None,
                "version": version,
                "activity": self._activity(),
                "alerts": self._alerts(),
                "problems": problems + ([self._method_problem] if self._method_problem else []),
            }

    def state(self) -> dict[str, Any]:
        """Returns what a page shows besides the episodes; ``begun`` is false where the run has written nothing."""
        with self._lock:
            run = self._load()
            files, _ = self._files(run)
            if run is None:
                return {**self.now(), "name": self.folder.resolve().name, "files": files}
            return {**page_data(run), **methods_data(self._advantages(run)), "files": files, **self.now()}

    def _files(self, run: RunData | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Files of episodes that are whole, and what is wrong with others."""
        files, problems = [], []
        for label, path in [] if run is None else run.episode_files():
            try:
                files.append(self._entry(label, path))
            except DataError as error:
                problems.append(str(error))
        return files, problems

    def _advantages(self, run: RunData) -> Advantages:
        """The advantages under :attr:`methods`; under none where these do not exist."""
        if self._run_advantages is None or self._run_advantages.run is not run:
            self._method_problem = ""
            try:
                self._run_advantages = Advantages(run, self.methods)
            except EnvsuiteError as error:
                self._method_problem = str(error)
                self._run_advantages = Advantages(run, ())
        return self._run_advantages

    def part(self, kind: str, key: str) -> str | None:
        """Returns a packed part of the page.

        Args:
            kind: ``"episodes"``, ``"graphs"`` or ``"advantages"``.
            key: Name of a file of episodes, without its suffix.

        Returns:
            The part; ``None`` where there is no such file, or it has no advantages.

        Raises:
            DataError: The file is damaged, or not yet whole.
        """
        with self._lock:
            run = self._load()
            path = None if run is None else next((path for _, path in run.episode_files() if path.stem == key), None)
            if run is None or path is None or kind not in ("episodes", "graphs", "advantages"):
                return None
            stamp = _stamp(_shards(path))
            if kind == "episodes":
                return self._pack(path, stamp).payload
            return self._pack_more(kind, path, stamp, self._run_stamp if kind == "advantages" else ())

    def _pack_part(self, kind: str, path: Path, stamp: Stamp, _: Stamp) -> str | None:
        """Packs graphs or advantages; metrics say whether a file has all episodes of its iteration."""
        bundle = self._pack(path, stamp)
        if kind == "graphs":
            return pack_pictures(bundle, pictures(path))
        assert self._run is not None
        results = self._advantages(self._run).of_file(path)
        return pack_advantages(bundle, results) if results else None

    def _load(self) -> RunData | None:
        """The run's settings, metrics and summary; read again where one of the files has changed."""
        stamp = _stamp([self.folder / name for name in ("config.yaml", "metrics.jsonl", "summary.json")])
        if stamp != self._run_stamp or self._run_problem:
            self._run_stamp, self._run_problem = stamp, ""
            if not (self.folder / "config.yaml").exists():
                self._run = None
            else:
                try:
                    self._run = RunData.load(self.folder)
                except DataError as error:
                    self._run_problem = str(error)
        return self._run

    def _entry(self, label: str, path: Path) -> dict[str, Any]:
        """Describes a file of episodes for the page; counts again where the file has changed."""
        stamp = _stamp(_shards(path))
        if path.stem not in self._counts or self._counts[path.stem][0] != stamp:
            self._counts[path.stem] = stamp, _count(path)
        counts = PackedEpisodes("", *self._counts[path.stem][1], ())
        entry = file_entry(label, path, counts, iteration_of(path) is not None)
        return {**entry, "key": path.stem, "stamp": "-".join(f"{size:x}.{when:x}" for _, size, when in stamp)}

    def _activity(self) -> dict[str, Any] | None:
        """Reads ``activity.json``, with ``age_s``; ``None`` where there is none that can be read."""
        path = self.folder / "activity.json"
        try:
            activity = orjson.loads(path.read_bytes())
            age = max(0.0, time.time() - path.stat().st_mtime)
        except (OSError, orjson.JSONDecodeError):
            return None
        if not isinstance(activity, dict) or not isinstance(activity.get("state"), str):
            return None
        silent = activity["state"] == "running" and age > SILENT
        return {**activity, "age_s": round(age), "state": "silent" if silent else activity["state"]}

    def _alerts(self) -> list[dict[str, str]]:
        """The last warnings and errors of the run's log, the latest first."""
        try:
            with (self.folder / "run.log").open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - LOG_BYTES))
                text = file.read(LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        alerts = []
        for line in text.split("\n"):
            match = _LINE.fullmatch(line)
            if match and (match[2] != "INFO" or match[4].startswith(_ENDED)):
                alerts.append({"time": match[1], "level": match[2].lower(), "text": match[4]})
        return alerts[: -ALERTS - 1 : -1]


def _count(path: Path) -> tuple[int, int, int]:
    """Episodes of a file, and how many were solved and failed."""
    columns = read_table(path, ["episode_id", "success", "error"]).to_pydict()
    rows = zip(columns["episode_id"], columns["success"], columns["error"], strict=True)
    outcomes = {episode: (success, error is not None) for episode, success, error in rows}
    return len(outcomes), sum(success for success, _ in outcomes.values()), sum(error for _, error in outcomes.values())


def _shards(path: Path) -> list[Path]:
    return [path] if path.exists() else sorted(path.parent.glob(f"{path.stem}.*-of-*.parquet"))


def _stamp(paths: Sequence[Path]) -> Stamp:
    stamps = []
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            stamps.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(stamps)
