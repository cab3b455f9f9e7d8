"""Runs many episodes in worker processes, which may crash or hang without affecting each other."""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from envsuite.core.errors import UsageError
from envsuite.core.processes import START_SECONDS, Channel, Child
from envsuite.core.tools import Action
from envsuite.vector.base import COLLATERAL, Description, EnvFactory, Vector, VectorEvent, VectorSnapshot, Wait, failure
from envsuite.vector.local import check_description
from envsuite.vector.worker import READY

CLOSE_SECONDS = 1.0
"""Grace period in seconds in which idle workers close their environments before they are killed."""


@dataclass(frozen=True)
class _WorkerCall:
    name: str
    env_id: str
    slot: int | None
    """``None`` for a call that belongs to no slot."""

    def __str__(self) -> str:
        of = "" if self.slot is None else f" of slot {self.slot}"
        return f"{self.name}{of} ({self.env_id})"


class Process(Protocol):
    """A process that answers calls."""

    socket: socket.socket

    def stop(self, grace: float = 0.0) -> str:
        """Ends it; kills it after ``grace`` seconds. Returns how it ended."""
        ...


class _Worker:
    """A worker process, its outstanding calls, and the time at which it began the first of them."""

    def __init__(
        self, index: int, factories: Sequence[EnvFactory], snapshots: bool, start: Callable[[], Process]
    ) -> None:
        self.index = index
        self.child = start()
        self.channel = Channel(self.child.socket)
        self.calls: deque[_WorkerCall] = deque()
        self.unsent: list[bytes] = []
        self.ready = False
        self.since = time.monotonic()
        self.channel.send([pickle.dumps((list(factories), snapshots))])

    def limit(self, deadline: float) -> float:
        """Returns when the current call becomes overdue (``time.monotonic``)."""
        return self.since + (deadline if self.ready else START_SECONDS)

    def post(self, call: _WorkerCall, message: bytes) -> None:
        """Sends a call: immediately if the process is idle, else with others at the next :meth:`flush`."""
        self.unsent.append(message)
        self.calls.append(call)
        if len(self.calls) == 1:
            self.since = time.monotonic()
            self.flush()

    def flush(self) -> None:
        """Sends the waiting calls."""
        try:
            if self.unsent:
                self.channel.send(self.unsent)
            elif self.channel.unsent:
                self.channel.flush()
        except OSError:  # it has died: the reader notices, after the answers sent before
            pass
        self.unsent = []


class WorkerVector(Vector):
    """Runs environments in ``workers`` processes, each of which has many slots.

    A worker that crashes, or misses the deadline of a call, is killed and replaced; each of its episodes is answered
    with an error, and the other workers are not affected. Episodes are the same as in a
    :class:`~envsuite.vector.local.LocalVector`. Workers end with the program, in whatever way it ends. POSIX only.

    Args:
        factories: The environments.
        slots: Number of concurrent episodes; slot i belongs to worker i modulo ``workers``.
        workers: Number of processes; at most the number of slots are started.
        deadline: Limit in seconds of one call, the making of its environment included.
        snapshots: Take a snapshot with each answer.
        start: Starts a process; by default on this machine.

    Raises:
        UsageError: An environment cannot be made, or a number is not positive.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        slots: int,
        workers: int = 1,
        deadline: float = 60.0,
        snapshots: bool = False,
        start: Callable[[], Process] | None = None,
    ) -> None:
        super().__init__(factories, slots, deadline, snapshots)
        if workers < 1:
            raise UsageError(f"workers must be positive, got {workers}")
        self._start = start or partial(Child, "envsuite.vector.worker:serve")
        self._env_ids: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self._events: list[VectorEvent] = []
        self._described: list[Description | str] = []
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker | None] = [None] * min(workers, slots)
        self._finalizer = weakref.finalize(self, _end, self._workers, self._selector, os.getpid())
        try:
            for index in range(len(self._workers)):
                self._worker(index)
            for env in range(len(self.factories)):
                self._post(0, _WorkerCall("describe", self.factories[env].env_id, None), ("describe", env))
                while len(self._described) <= env:
                    self._advance(None)
            self._descriptions = list(map(check_description, self.factories, self._described))
        except BaseException:
            self.close()
            raise

    def poll(self, timeout: float | None = None) -> list[VectorEvent]:
        """Returns the events that have arrived; waits at most ``timeout`` seconds for a first one."""
        end = None if timeout is None else time.monotonic() + timeout
        self._advance(0.0)
        while not self._events and self._called:
            remaining = None if end is None else end - time.monotonic()
            if remaining is not None and remaining <= 0:
                break
            self._advance(remaining)
        events, self._events = self._events, []
        return self._finish_calls(events)

    def waiting_for(self) -> Wait | None:
        """Returns the call that has been running for longest."""
        busy = [worker for worker in self._workers if worker is not None and worker.calls]
        if not busy:
            return None
        worker = min(busy, key=lambda worker: worker.since)
        if not worker.ready:
            return Wait(f"worker {worker.index} to start", worker.since)
        return Wait(f"{worker.calls[0]}, worker {worker.index}", worker.since, worker.calls[0].slot)

    def close(self) -> None:
        """Ends every worker; idle ones get a second to close their environments."""
        self._finalizer()

    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        self._env_ids[slot] = self.factories[env].env_id
        self._post(slot, _WorkerCall("reset", self._env_ids[slot], slot), ("reset", int(slot), int(env), task_id, seed))
        self._lost.pop(slot, None)

    def _restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> None:
        self._env_ids[slot] = self.factories[env].env_id
        self._post(slot, _WorkerCall("restore", self._env_ids[slot], slot), ("restore", int(slot), int(env), snapshot))
        self._lost.pop(slot, None)

    def _step(self, slot: int, action: Action) -> None:
        if slot in self._lost:
            self._events.append(failure(slot, self._lost.pop(slot)))
        else:
            self._post(slot, _WorkerCall("step", self._env_ids[slot], slot), ("step", int(slot), action))

    def _post(self, slot: int, call: _WorkerCall, message: tuple[Any, ...]) -> None:
        if not self._finalizer.alive:
            raise UsageError(f"{call.name} of a vector that is closed; make another one")
        self._worker(slot % len(self._workers)).post(call, pickle.dumps(message))

    def _worker(self, index: int) -> _Worker:
        """Returns worker ``index``; starts it if it is not running."""
        worker = self._workers[index]
        if worker is None:
            worker = self._workers[index] = _Worker(index, self.factories, self.snapshots, self._start)
            self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        return worker

    def _advance(self, timeout: float | None) -> None:
        """Sends waiting calls, receives answers for ``timeout`` seconds, and ends overdue workers."""
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.flush()
            write = selectors.EVENT_WRITE if worker.channel.unsent else 0
            self._selector.modify(worker.channel.socket, selectors.EVENT_READ | write, worker)
        now = time.monotonic()
        waits = [worker.limit(self.deadline) - now for worker in workers if worker.calls]
        if timeout is not None:
            waits.append(timeout)
        for key, _ in self._selector.select(max(0.0, min(waits)) if waits else 0.0):
            try:
                self._take(key.data, key.data.channel.receive())
            except EOFError:
                self._lose(key.data, overdue=False)
        now = time.monotonic()
        for worker in workers:
            if worker.calls and worker is self._workers[worker.index] and now >= worker.limit(self.deadline):
                self._lose(worker, overdue=True)

    def _take(self, worker: _Worker, messages: list[Any]) -> None:
        worker.since = time.monotonic()
        for message in messages:
            if message == READY:
                worker.ready = True
                continue
            worker.calls.popleft()
            if isinstance(message, VectorEvent):
                self._events.append(message)
            else:
                self._described.append(message)

    def _lose(self, worker: _Worker, overdue: bool) -> None:
        """Ends a worker, and answers for each of its episodes."""
        self._selector.unregister(worker.channel.socket)
        self._workers[worker.index] = None
        how = worker.child.stop(0.0 if overdue else CLOSE_SECONDS)
        during = f"during {worker.calls[0]}" if worker.calls else "between two calls"
        if not worker.ready:
            why = f"WorkerCrashed: worker {worker.index} {how} before it could start"
        elif overdue:
            why = f"DeadlineExceeded: {worker.calls[0]} took more than {self.deadline:g} s; worker {worker.index} {how}"
        else:
            why = f"WorkerCrashed: worker {worker.index} {how} {during}"
        slots = set()
        for position, call in enumerate(worker.calls):
            if call.slot is None:
                self._described.append(why)
            else:
                slots.add(call.slot)
                self._events.append(failure(call.slot, f"{COLLATERAL}{why}" if position else why))
        for slot in self._live - slots:
            if slot % len(self._workers) == worker.index:
                self._lost[slot] = f"{COLLATERAL}{why}"


def _end(workers: list[_Worker | None], selector: selectors.BaseSelector, process: int) -> None:
    """Ends all workers, unless this is a fork of the process that they belong to."""
    if os.getpid() != process:
        return
    selector.close()
    running = [worker for worker in workers if worker is not None]
    for worker in running:
        worker.channel.socket.close()
    end = time.monotonic() + CLOSE_SECONDS
    for worker in sorted(running, key=lambda worker: bool(worker.calls)):
        worker.child.stop(0.0 if worker.calls else max(0.0, end - time.monotonic()))
    workers[:] = [None] * len(workers)
