"""Worker processes for the reference engine: which one plays a game, and what becomes of one that dies or hangs."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from envsuite.alfworld.reference_worker import READY, Answer
from envsuite.core.errors import UsageError, WorkerLost
from envsuite.processes import START_SECONDS, Child, frame, receive

CLOSE_SECONDS = 1.0
"""How long idle workers get to end before they are killed."""
_SERVE = "envsuite.alfworld.reference_worker:serve"


class Worker:
    """One process, and the games that it plays, one call at a time."""

    def __init__(self) -> None:
        self.child = Child(_SERVE, {"PYTHONHASHSEED": "0"})  # textworld iterates over sets
        self.seats: set[int] = set()
        self.ended: str | None = None
        """How the process ended, and during what; ``None`` while it runs."""
        self._dropped: deque[int] = deque()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._ready = False

    def call(self, name: str, seat: int, argument: str, deadline: float) -> Answer:
        """Have a game of this process reset or stepped; other games wait meanwhile.

        Args:
            name: ``"reset"`` or ``"step"``.
            seat: Number of the game.
            argument: Path of the game, or the command.
            deadline: Most seconds that the process may take, from when it begins.

        Raises:
            WorkerLost: The process died or did not answer in time, now or before.
        """
        if os.getpid() != self._owner:
            raise WorkerLost("it belongs to the process that this one was forked from")
        with self._lock:
            if self.ended is not None:
                raise WorkerLost(f"{self.ended}, over another game")
            dropped = []
            while self._dropped:
                dropped.append(self._dropped.popleft())
            game = "/".join(Path(argument).parts[-3:-1])
            during = f"during the reset of {game}" if name == "reset" else f"during the command {argument[:80]!r}"
            try:
                if not self._ready:
                    self._receive(START_SECONDS)
                    self._ready = True
                self.child.socket.settimeout(deadline)
                self.child.socket.sendall(frame([pickle.dumps((dropped, name, seat, argument))]))
                answer: Answer = self._receive(deadline)
            except TimeoutError:
                self.child.stop()
                limit = deadline if self._ready else START_SECONDS
                self.ended = f"it took more than {limit:g} s {during if self._ready else 'to start'} and was killed"
                raise WorkerLost(self.ended) from None
            except (EOFError, OSError):
                how = self.child.stop(CLOSE_SECONDS)
                self.ended = f"it {how} {during if self._ready else 'before it could start'}"
                raise WorkerLost(self.ended) from None
            except BaseException:  # Ctrl-C: the answer that is still to come would be taken for another call's
                self.ended = f"it {self.child.stop()} {during}, which was interrupted"
                raise
            return answer

    @property
    def alive(self) -> bool:
        """The process runs, as far as is known without asking it."""
        return self.ended is None and os.getpid() == self._owner and self.child.process.poll() is None

    def release(self, seat: int) -> None:
        """A game is no longer played; takes no lock, since a garbage collector may call it at any time."""
        self.seats.discard(seat)
        self._dropped.append(seat)

    def _receive(self, seconds: float) -> Any:
        (message,) = receive(self.child.socket, time.monotonic() + seconds)
        if not self._ready:
            assert message == READY
        return message


class Pool:
    """Worker processes, started as games need them, each of which plays several.

    Thread-safe. A worker that dies, or does not answer within the deadline, takes along the episodes that it plays; it
    is replaced when the next game starts, and the others notice nothing. Workers end when the program does.

    Args:
        workers: The most processes; as many as there are cores by default.
        deadline: Most seconds that one call may take, once its worker has begun with it.

    Raises:
        UsageError: A number is not positive.
    """

    def __init__(self, workers: int | None = None, deadline: float = 60.0) -> None:
        self.size = (os.cpu_count() or 1) if workers is None else workers
        self.deadline = deadline
        if self.size < 1 or deadline <= 0:
            raise UsageError(f"workers and deadline must be positive, got {self.size} and {deadline}")
        self.workers: list[Worker] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._finalizer = weakref.finalize(self, _end, self.workers, os.getpid())
        _POOLS.add(self)

    def seat(self) -> tuple[Worker, int]:
        """A place for one game: on an idle worker, else on a new one, else on the one with the fewest games.

        Raises:
            UsageError: The pool is closed.
        """
        with self._lock:
            if not self._finalizer.alive:
                raise UsageError("a game of a pool that is closed; make another Pool()")
            self.workers[:] = [worker for worker in self.workers if worker.alive]
            worker = min(self.workers, key=lambda worker: len(worker.seats), default=None)
            if worker is None or (worker.seats and len(self.workers) < self.size):
                worker = Worker()
                self.workers.append(worker)
            seat = next(self._numbers)
            worker.seats.add(seat)
            return worker, seat

    def close(self) -> None:
        """End every worker; games that they play are lost."""
        self._finalizer()

    def forget(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        self._lock = threading.Lock()
        self._finalizer.detach()
        self.workers = []
        self._finalizer = weakref.finalize(self, _end, self.workers, os.getpid())


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)


def _end(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return
    end = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.child.socket.close()
    for worker in workers:
        how = worker.child.stop(max(0.0, end - time.monotonic()))
        worker.ended = worker.ended or f"it {how} when the pool was closed"
    workers.clear()
