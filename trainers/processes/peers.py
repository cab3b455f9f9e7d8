"""Signs of life between the processes of a run, so that each knows which one is missing and what that did last.

Each process writes what it does into the store at which they met, and reads what the others wrote. That needs neither
the main thread, which may block in a collective operation, nor a collective operation, and it works with any backend.
``torch.distributed.monitored_barrier`` names missing ranks, too, but for gloo and at a barrier alone; NCCL's watchdog
aborts a process without saying what the missing one did; ``torchrun`` ends the processes of its own machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import orjson
import psutil
import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from envsuite.playing.activity import ACTIVITY, ActivityState, duration

GRACE_SECONDS = 10.0
"""Seconds that a process has to end by itself after it learns that another has ended."""
SILENT_SECONDS = 6.0
"""Seconds without a sign of life, besides the time between two, after which a process counts as silent."""
LATE = "waited for longer than process_timeout"
_KILLED = "killed, or ended without a word"
_STORE_ERRORS = (torch.distributed.DistError, RuntimeError)


@dataclass
class _PeerSign:
    """The last signs of another process."""

    doing: ActivityState
    beat: int = -1
    """Number of its last sign of life."""
    at: float = 0.0
    """When that was read (``time.monotonic``)."""
    ended: str | None = None
    """Its reason, once it has reported that it ends."""
    gone: bool = False
    """Whether its process is known to be gone; what it reported before has then been read."""


class Peers:
    """The other processes of the run: whether they live, and what they do.

    A thread ends this process when another one has ended, or has been waited for too long, and this one has not ended
    by itself soon after: a process that blocks in a collective operation notices nothing else.

    Args:
        rank: Number of this process.
        members: Host and process id of each process.
        store: Where they meet; a connection of its own, with a short timeout.
        timeout: Seconds that a process waits for another.
        first_has_store: Whether the store is in the first process (otherwise it is in the launcher).
        on_end: Told why, before the thread ends this process.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[tuple[str, int]],
        store: Store,
        timeout: float,
        first_has_store: bool,
        on_end: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.members = tuple(members)
        self.timeout = timeout
        self.interval = max(1.0, len(members) / 32)
        """Seconds between two signs of life; longer with many processes, each of which reads those of all."""
        self._store, self._end = store, on_end
        self._host = 0 if first_has_store else None
        self._others = [peer for peer in range(len(members)) if peer != rank]
        now = time.monotonic()
        self._seen = {peer: _PeerSign(ActivityState("start", 0.0), at=now) for peer in self._others}
        self._beats = 0
        self._ended: str | None = None
        self._read = self._resumed = now
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._write()  # before the others look for it
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    # -- for the main thread ----------------------------------------------------------------------------------------

    def report(self, message: str) -> None:
        """Reports to the others that this process ends, and why."""
        self._ended = message
        if self._lock.acquire(timeout=GRACE_SECONDS):
            try:
                with contextlib.suppress(*_STORE_ERRORS):
                    self._write()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Stops watching; a process that has the store, and a reason to tell, gives the others time to read it."""
        if self._ended is not None and self.rank == self._host and len(self.failures()) < len(self._others):
            time.sleep(2 * self.interval)
        self._closed.set()
        self._thread.join(GRACE_SECONDS)

    def failures(self, silence: float | None = None) -> dict[int, str]:
        """Returns the other processes that have ended, by rank, each with its reason and what it did last.

        Args:
            silence: Seconds without a sign of life after which a process counts as ended; by default the timeout.
        """
        reasons: dict[int, str] = {}
        limit = max(self.timeout if silence is None else silence, SILENT_SECONDS + self.interval)
        for peer, record in self._seen.items():
            host, pid = self.members[peer]
            if record.ended is not None:
                reasons[peer] = record.ended
            elif host == self.members[self.rank][0] and not alive(pid):
                if not record.gone:
                    record.gone = True
                    self._exchange()
                reasons[peer] = record.ended or f"{_KILLED}; last: {record.doing}"
            elif (quiet := self.silence(peer)) >= limit:
                reasons[peer] = f"no sign of life for {duration(quiet)}; last: {record.doing}"
        return reasons

    def waited_for(self, seconds: float, silence: float | None = None) -> str:
        """Waits at most ``seconds`` for another process to end; returns a message on those that have, empty if none."""
        end = time.monotonic() + seconds
        while not (reasons := self.failures(silence)) and time.monotonic() < end:
            time.sleep(0.1)
        return self._end_message(reasons)

    def first_alive(self, exempt: Sequence[int] = ()) -> bool:
        """Whether every process before this one has ended, is silent or is ``exempt``: this one has to speak then."""
        return set(range(self.rank)) <= {*self.failures(0.0), *exempt}

    def late(self) -> str:
        """Reports that this process ends because it has waited too long; returns the message, if it is to say it."""
        missing = self.missing()
        text = f"{LATE} for {self.describe(missing)}"
        self.report(text)
        return f"{self.name(self.rank)} {text}" if self.first_alive(missing) else ""

    # -- for any thread -----------------------------------------------------------------------------------------------

    def name(self, rank: int) -> str:
        """Returns the name of a process in messages."""
        host, pid = self.members[rank]
        return f"rank {rank} (pid {pid} on {host})"

    def silence(self, rank: int) -> float:
        """Seconds since the last sign of life of another process, as far as this one could see one."""
        now = time.monotonic() if rank == self._host else self._read
        return max(0.0, now - self._seen[rank].at)

    def silent(self, rank: int) -> bool:
        """Whether another process gives no sign of life."""
        return self.silence(rank) >= SILENT_SECONDS + self.interval

    def doing(self, rank: int) -> ActivityState:
        """Returns the activity of another process, as far as is known."""
        record = self._seen[rank]
        return record.doing if self.silent(rank) else record.doing.later(max(0.0, time.monotonic() - record.at))

    def missing(self) -> list[int]:
        """Returns the processes that this one waits for.

        Those that are silent; else those that have not begun the exchange that this one is in; else those that wait for
        something other than processes; else all others.
        """
        mine, doing = ACTIVITY.now(), {peer: self.doing(peer) for peer in self._others}
        silent = [peer for peer in self._others if self.silent(peer)]
        behind = [peer for peer in self._others if doing[peer].exchanges < mine.exchanges]
        elsewhere = [peer for peer in self._others if doing[peer].waits_for and not doing[peer].exchanging]
        return silent or behind or elsewhere or self._others

    def describe(self, ranks: Sequence[int]) -> str:
        """Names processes, the first four of them with what they do or did last."""
        parts = []
        for rank in ranks[:4]:
            quiet = f"gives no sign of life for {duration(self.silence(rank))}; last: " if self.silent(rank) else ""
            parts.append(f"{self.name(rank)}, which {quiet or 'is in '}{self.doing(rank)}")
        more = f"; and {len(ranks) - 4} further processes" if len(ranks) > 4 else ""
        return "; ".join(parts) + more

    def _end_message(self, reasons: dict[int, str]) -> str:
        return "; ".join(f"{self.name(rank)} ended: {reason}" for rank, reason in reasons.items())

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(self.interval):
            self._exchange()
            if not (reasons := self.failures()) and not self._overdue():
                continue
            if reasons and self._closed.wait(GRACE_SECONDS):
                return
            self._end(self._end_message(reasons) or f"{LATE} for {self.describe(self.missing())}")
            if reasons and self.first_alive():
                _say(self._end_message(reasons))
            elif not reasons:
                if late := self.late():
                    _say(late)
                time.sleep(2 * self.interval)  # the others read it
            os._exit(1)

    def _exchange(self) -> None:
        """Writes what this process does, and reads what the others wrote."""
        with self._lock:
            before, began = self._read, time.monotonic()
            # This process itself was stopped: it saw no one's signs.
            if began - before > self.interval + SILENT_SECONDS:
                self._shift(began - before)
                self._resumed = before = began
            values = None
            with contextlib.suppress(*_STORE_ERRORS):
                self._write()
                values = self._store.multi_get([_key(peer) for peer in self._others])
            self._read = now = time.monotonic()
            if values is None:
                # Nobody's signs can be read, which is the fault of the process that has the store, if one has.
                self._shift(now - before, besides=self._host)
                return
            for peer, value in zip(self._others, values, strict=True):
                message, record = orjson.loads(bytes(value)), self._seen[peer]
                if message["beat"] != record.beat:
                    record.beat, record.at, record.doing = message["beat"], now, ActivityState(**message["doing"])
                record.ended = message["ended"]

    def _write(self) -> None:
        self._beats += 1
        message = {"beat": self._beats, "doing": asdict(ACTIVITY.now()), "ended": self._ended}
        self._store.set(_key(self.rank), orjson.dumps(message).decode())

    def _shift(self, seconds: float, besides: int | None = None) -> None:
        """Does not count ``seconds`` as silence of any process but ``besides``."""
        for peer, record in self._seen.items():
            if peer != besides:
                record.at += seconds

    def _overdue(self) -> bool:
        """Whether this process has waited too long, and its collective operation has not noticed."""
        mine, seconds = ACTIVITY.now(), time.monotonic() - self._resumed
        return mine.exchanging and min(mine.wait_s, seconds) > self.timeout + GRACE_SECONDS


def _say(text: str) -> None:
    sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()


def _key(rank: int) -> str:
    return f"trainers/process/{rank}"


def alive(pid: int) -> bool:
    """Whether a process of this machine runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
