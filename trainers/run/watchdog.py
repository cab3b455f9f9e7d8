"""Says what a run waits for when that takes long: in each process's log, and for all processes on the display."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Self

from envsuite.playing.activity import ACTIVITY, ActivityState, duration
from trainers.processes.peers import Peers
from trainers.run.progress import RunProgress

_LOG = logging.getLogger(__name__)
_INTERVAL = 1.0
NOTICE = 60.0
"""Seconds that a wait lasts before it is shown and logged; logged again after each doubling."""


class Watchdog:
    """A thread that looks once a second at what this process and the others do; a context manager.

    The first process tells of the others, too, unless it waits for them itself, which it says with what they do.

    Args:
        progress: Display.
        peers: The other processes; ``None`` where there are none.
    """

    def __init__(self, progress: RunProgress, peers: Peers | None = None) -> None:
        self.progress = progress
        self.peers = peers
        self._next: dict[int, float] = {}
        """Seconds of wait at which each process's is logged next, by rank; of the waits that were."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self.look()

    def look(self) -> None:
        """Shows and logs the long waits of this moment."""
        waits = {rank: (seconds, text) for rank, seconds, text in self._waits() if seconds >= NOTICE}
        for rank in [rank for rank in self._next if rank not in waits]:
            del self._next[rank]
            _LOG.info("%s goes on", self._name(rank))
        for rank, (seconds, text) in waits.items():
            due = self._next.get(rank, NOTICE)
            if seconds >= due:
                _LOG.warning("%s", text)
            while due <= seconds:
                due *= 2
            self._next[rank] = due
        self.progress.notice("; ".join(text for _, text in waits.values()))

    def _waits(self) -> Iterator[tuple[int, float, str]]:
        """Yields each process that waits: its rank, for how many seconds, and the message."""
        peers, mine = self.peers, ACTIVITY.now()
        rank = 0 if peers is None else peers.rank
        if mine.waits_for:
            yield rank, mine.wait_s, self._text(rank, mine)
        if peers is None or rank or (mine.exchanging and mine.wait_s >= NOTICE):
            return
        for peer in range(1, len(peers.members)):
            doing = peers.doing(peer)
            if peers.silent(peer):
                quiet = peers.silence(peer)
                yield peer, quiet, f"{peers.name(peer)} gives no sign of life for {duration(quiet)}; last: {doing}"
            elif doing.waits_for and not doing.exchanging:
                yield peer, doing.wait_s, self._text(peer, doing)

    def _text(self, rank: int, doing: ActivityState) -> str:
        what = doing.waits_for
        if self.peers is not None and rank == self.peers.rank and doing.exchanging:
            what = self.peers.describe(self.peers.missing())
        return f"{self._name(rank)} has waited {duration(doing.wait_s)} in {doing.phase} for {what}"

    def _name(self, rank: int) -> str:
        return f"rank 0 (pid {os.getpid()} on {socket.gethostname()})" if self.peers is None else self.peers.name(rank)
