"""Worker processes of the reference engine: assigns games to them and handles crashes and hangs."""

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
from envsuite.core.processes import START_SECONDS, Child, frame, receive

CLOSE_SECONDS = 1.0
"""Grace period of idle workers before they are killed."""
_SERVE = "envsuite.alfworld.reference_worker:serve"


class ReferenceWorker:
    """A worker process and its games; handles one call at a time."""

    def __init__(self) -> None:
        self.child = Child(_SERVE, {"PYTHONHASHSEED": "0"})  # textworld iterates over sets
        self.seats: set[int] = set()
        self.ended: str | None = None
        """How the process ended, and during which call; ``None`` while it runs."""
        self._dropped: deque[int] = deque()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._ready = False

    def call(self, name: str, seat: int, argument: str, deadline: float) -> Answer:
        """Resets or steps a game of this process; calls of other games wait meanwhile.

        Args:
            name: ``"reset"`` or ``"step"``.
            seat: Number of the game.
            argument: Path of the game, or the command.
            deadline: Limit in seconds, from the moment at which the process begins with the call.

        Raises:
            WorkerLost: The process died or did not answer in time, now or before.
        """
        if os.getpid() != self._owner:
            raise WorkerLost("it belongs to the process that this one was forked from")
        with self._lock:
            if self.ended is not None:
                raise WorkerLost(f"{self.ended}, over another game")
            seats = []
            while self._dropped:
                seats.append(self._dropped.popleft())
            game = "/".join(Path(argument).parts[-3:-1])
            during = f"during the reset of {game}" if name == "reset" else f"during the command {argument[:80]!r}"
            try:
                if not self._ready:
                    self._receive(START_SECONDS)
                    self._ready = True
                self.child.socket.settimeout(deadline)
                self.child.socket.sendall(frame([pickle.dumps((seats, name, seat, argument))]))
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
            except BaseException:  # Ctrl-C: the outstanding answer would be taken for that of a later call
                self.ended = f"it {self.child.stop()} {during}, which was interrupted"
                raise
            return answer

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as is known without asking it."""
        return self.ended is None and os.getpid() == self._owner and self.child.process.poll() is None

    def release(self, seat: int) -> None:
        """Releases a game; takes no lock, since a garbage collector may call it at any time."""
        self.seats.discard(seat)
        self._dropped.append(seat)

    def _receive(self, seconds: float) -> Any:
        (message,) = receive(self.child.socket, time.monotonic() + seconds)
        if not self._ready:
            assert message == READY
        return message


class ReferencePool:
    """Worker processes, started on demand, each of which plays several games.

    Thread-safe. When a worker dies or misses the deadline, its episodes are lost; it is replaced when the next game
    starts, and the other workers are not affected. Workers end with the program.

    Args:
        workers: Maximum number of processes; by default the number of cores.
        deadline: Limit of one call in seconds, from the moment at which its worker begins with it.

    Raises:
        UsageError: A number is not positive.
    """

    def __init__(self, workers: int | None = None, deadline: float = 60.0) -> None:
        self.size = (os.cpu_count() or 1) if workers is None else workers
        self.deadline = deadline
        if self.size < 1 or deadline <= 0:
            raise UsageError(f"workers and deadline must be positive, got {self.size} and {deadline}")
        self.workers: list[ReferenceWorker] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._finalizer = weakref.finalize(self, _end, self.workers, os.getpid())
        _POOLS.add(self)

    def seat(self) -> tuple[ReferenceWorker, int]:
        """Assigns a game to an idle worker, else to a new one, else to the one with the fewest games.

        Raises:
            UsageError: The pool is closed.
        """
        with self._lock:
            if not self._finalizer.alive:
                raise UsageError("the pool of this game is closed; make another Pool()")
            self.workers[:] = [worker for worker in self.workers if worker.alive]
            worker = min(self.workers, key=lambda worker: len(worker.seats), default=None)
            if worker is None or (worker.seats and len(self.workers) < self.size):
                worker = ReferenceWorker()
                self.workers.append(worker)
            seat = next(self._numbers)
            worker.seats.add(seat)
            return worker, seat

    def close(self) -> None:
        """Ends every worker; their games are lost."""
        self._finalizer()

    def forget(self) -> None:
        """Detaches from the workers, which belong to the process that this one was forked from."""
        self._lock = threading.Lock()
        self._finalizer.detach()
        self.workers = []
        self._finalizer = weakref.finalize(self, _end, self.workers, os.getpid())


_POOLS: weakref.WeakSet[ReferencePool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)


def _end(workers: list[ReferenceWorker], owner: int) -> None:
    if os.getpid() != owner:
        return
    end = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.child.socket.close()
    for worker in workers:
        how = worker.child.stop(max(0.0, end - time.monotonic()))
        worker.ended = worker.ended or f"it {how} when the pool was closed"
    workers.clear()
