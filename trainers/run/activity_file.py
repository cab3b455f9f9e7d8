"""``activity.json`` in the folder of a run: what it does at this moment, for programs that follow it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

import orjson

from envsuite.data.files import write_atomically
from envsuite.playing.activity import ACTIVITY
from trainers.processes.peers import Peers
from trainers.run.progress import RunProgress
from trainers.run.stopping import Interrupted

_LOG = logging.getLogger(__name__)
NAME = "activity.json"
INTERVAL = 2.0
"""Seconds between two writes."""


class ActivityFile:
    """A thread that writes the file every two seconds, and at the end how the run ended; a context manager.

    A file that cannot be written is warned of once, and the run goes on.

    Args:
        folder: Folder of the run; ``None`` writes nothing (all processes but the first).
        progress: Stage and iteration.
        peers: The other processes; ``None`` where there are none.
        interval: Seconds between two writes.
    """

    def __init__(
        self, folder: Path | None, progress: RunProgress, peers: Peers | None = None, interval: float = INTERVAL
    ) -> None:
        self.path = None if folder is None else folder / NAME
        self.progress = progress
        self.peers = peers
        self.interval = interval
        self._writes = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._rewrite, name="activity-file", daemon=True)

    def __enter__(self) -> Self:
        """Writes the file for the first time, and starts the thread."""
        if self.path is not None:
            self.write("running")
            self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Ends the thread, and writes how the run ended."""
        if self.path is None:
            return
        self._closed.set()
        self._thread.join()
        is_stop = isinstance(error, Interrupted | KeyboardInterrupt)
        self.write("finished" if error is None else "interrupted" if is_stop else "failed", error)

    def _rewrite(self) -> None:
        while not self._closed.wait(self.interval):
            self.write("running")

    def write(self, state: str, error: BaseException | None = None) -> None:
        """Writes the file.

        Args:
            state: ``running``, ``finished``, ``interrupted`` or ``failed``.
            error: What ended the run.
        """
        if self.path is None:
            return
        try:
            write_atomically(self.path, orjson.dumps(self._content(state, error)))
            self._writes = True
        except OSError as problem:
            if self._writes:
                _LOG.warning("%s cannot be written (%s); the run goes on", self.path, problem)
            self._writes = False

    def _content(self, state: str, error: BaseException | None) -> dict[str, Any]:
        return {
            "time": time.time(),
            "state": state,
            "error": None if error is None else str(error) or type(error).__name__,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **self.progress.state(),
            "processes": self._processes(),
        }

    def _processes(self) -> list[str]:
        """Phase of each process, and what it waits for, by rank."""
        own = str(ACTIVITY.now())
        if self.peers is None:
            return [own]
        ranks = range(len(self.peers.members))
        return [own if rank == self.peers.rank else str(self.peers.doing(rank)) for rank in ranks]
