"""A server's worker processes, which may crash or hang without affecting other sessions."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from envsuite.core.processes import Child, frame, receive_body
from envsuite.remote.protocol import HttpProblem
from envsuite.serving.host import Answer
from envsuite.serving.worker import makes_worlds, unpack_answers

log = logging.getLogger("envsuite.serving")
START_SECONDS = 900.0
"""Seconds that a worker has to load or, on first use, generate the data of its environments."""
STOP_SECONDS = 1.0


@dataclass
class _WorkerMessage:
    calls: int
    since: float
    """Time at which it was sent, or its latest answer came; infinite while it waits for its turn to make worlds."""
    answers: list[Answer] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    overdue: bool = False
    """Whether its call missed the deadline."""


class ServerWorker:
    """One process that plays sessions.

    Args:
        index: Number of the worker, for messages.
        environments: Environments whose data it loads at the start.
        deadline: Limit in seconds of one call.
        lost: Called once, with the worker and the reason, when it is gone.
    """

    def __init__(
        self, index: int, environments: Sequence[str], deadline: float, lost: Callable[[ServerWorker, str], None]
    ) -> None:
        self.index, self.deadline, self.sessions = index, deadline, 0
        self.why: str | None = None
        """Why the process is gone; ``None`` while it runs."""
        self._lost = lost
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._messages: dict[int, _WorkerMessage] = {}
        self._started = time.monotonic()
        self._ready: float | None = None
        self._child = Child("envsuite.serving.worker:serve")
        self._child.socket.sendall(frame([orjson.dumps(list(environments))]))
        self._reader = threading.Thread(target=self._read, name=f"envsuite-worker-{index}", daemon=True)
        self._reader.start()

    @property
    def ready(self) -> bool:
        """Whether it has loaded its data."""
        return self._ready is not None

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._child.process.pid

    def submit(self, calls: Sequence[Mapping[str, Any]]) -> Callable[[], list[Answer]]:
        """Sends ``calls``; the returned function waits for the answers."""
        message = _WorkerMessage(len(calls), math.inf if makes_worlds(calls) else time.monotonic())
        number = next(self._numbers)
        with self._lock:
            is_gone = self.why is not None
            if not is_gone:
                self._messages[number] = message
        if not is_gone:
            body = frame([orjson.dumps({"id": number, "calls": calls})])
            try:
                with self._sending:
                    self._child.socket.sendall(body)
            except OSError:  # it has died: the reader notices
                pass

        def collect() -> list[Answer]:
            while not is_gone and not message.done.wait(
                min(self.deadline, max(0.0, self._limit(message) - time.monotonic()))
            ):
                if time.monotonic() >= self._limit(message):
                    self._end(f"a call took more than {self.deadline:g} s", overdue=message)
            return self._complete_answers(message)

        return collect

    def close(self) -> None:
        """Ends the process; a running call is lost."""
        self._end("the server ends")
        self._reader.join()

    def _limit(self, message: _WorkerMessage) -> float:
        if self._ready is None:
            return self._started + START_SECONDS
        return max(message.since, self._ready) + self.deadline

    def _complete_answers(self, message: _WorkerMessage) -> list[Answer]:
        """Returns all answers: those received, and problems in place of missing ones."""
        answers = list(message.answers)
        for position in range(len(answers), message.calls):
            if position == len(message.answers) and message.overdue:
                kind, detail = "session-lost", f"the session has failed: {self.why}"
            else:
                kind, detail = "session-ended", f"the session has ended: {self.why}"
            problem = HttpProblem(410, kind, detail, field="session", error="WorkerLost")
            answers.append((problem.status, problem.document()))
        return answers

    def _read(self) -> None:
        channel = self._child.socket
        try:
            while True:
                number, answers = unpack_answers(receive_body(channel))
                now = time.monotonic()
                if number == 0:
                    self._ready = now
                    continue
                message = self._messages[number]
                message.answers += answers
                message.since = now
                if len(message.answers) == message.calls:
                    with self._lock:
                        del self._messages[number]
                    message.done.set()
        except (EOFError, OSError):
            self._end()

    def _end(self, why: str | None = None, overdue: _WorkerMessage | None = None) -> None:
        """Ends the process, for a reason or, without one, because it has ended by itself."""
        before = "" if why is None else f"{why}; "
        with self._lock:
            if self.why is not None:
                return
            self.why = f"{before}worker {self.index} has ended"  # calls that come before it is known how are told so
        how = self._child.stop(0.0 if overdue is not None else STOP_SECONDS)
        with self._lock:
            self.why = f"{before}worker {self.index} {how}"
            messages = list(self._messages.values())
            self._messages.clear()
        self._lost(self, self.why)
        for message in messages:
            message.overdue = message is overdue
            message.done.set()


class WorkerPool:
    """The workers of a server; lost ones are replaced.

    Args:
        workers: Number of workers; without environments they start when the first one is chosen.
        environments: Environments whose data they load at the start.
        deadline: Limit in seconds of one call.
        lost: Called with each lost worker and the reason.
    """

    def __init__(
        self, workers: int, environments: Sequence[str], deadline: float, lost: Callable[[ServerWorker, str], None]
    ) -> None:
        self._environments, self._deadline, self._tell = tuple(environments), deadline, lost
        self._lock = threading.Lock()
        self._closed, self._count = False, workers
        self.workers = [self._start(index) for index in range(workers if environments else 0)]

    @property
    def ready(self) -> bool:
        """Whether all have loaded their data."""
        return all(worker.ready for worker in self.workers)

    def choose(self) -> ServerWorker:
        """Returns the worker with fewest sessions, among ready ones if there are any."""
        with self._lock:
            self.workers += [self._start(index) for index in range(len(self.workers), self._count)]
            for index, worker in enumerate(self.workers):
                if worker.why is not None and not self._closed:
                    self.workers[index] = self._start(index)
            return min(self.workers, key=lambda worker: (not worker.ready, worker.sessions, worker.index))

    def close(self) -> None:
        """Ends all workers."""
        with self._lock:
            self._closed = True
        for worker in self.workers:
            worker.close()

    def _start(self, index: int) -> ServerWorker:
        return ServerWorker(index, self._environments, self._deadline, self._report_loss)

    def _report_loss(self, worker: ServerWorker, why: str) -> None:
        if not self._closed:
            log.warning("worker lost: %s; its %d sessions have ended", why, worker.sessions)
        self._tell(worker, why)
