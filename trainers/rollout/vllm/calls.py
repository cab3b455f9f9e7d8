"""Requests on their way to servers, each in a thread that waits for its answer."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from trainers.rollout.engine import Completion, Request
from trainers.rollout.sampling import mix
from trainers.rollout.vllm.completions import ask
from trainers.rollout.vllm.connection import Connection, Refused

_SEED_BITS = 63


@dataclass
class Row:
    """A request on its way, with what was sampled before its weights changed."""

    request: Request
    limit: int
    """Most response tokens."""
    seed: int
    server: Connection
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Gate:
    """Lets calls to servers through, except while their weights change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._inside = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Waits until the gate is open; it does not open again before the block has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self) -> None:
        """Let no further call through."""
        with self._changed:
            self._open = False

    def opened(self) -> None:
        """Let calls through."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def empty(self, seconds: float) -> bool:
        """Waits for all calls to end; returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, seconds)


class Calls:
    """Has servers complete rows; a row whose answer is cut off because the weights change goes on afterwards.

    Args:
        most: Rows that are on their way at a time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.version = 0
        """Version of the weights that the servers have; changes while the gate is shut."""
        self.gate = Gate()
        self.done: queue.SimpleQueue[Completion | Exception] = queue.SimpleQueue()
        """Answers, and errors for whoever waits for answers."""
        self._waiting: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._rows = 0

    def submit(self, row: Row) -> None:
        """Queue a row."""
        self._waiting.put(row)
        self._rows += 1
        if len(self._threads) < min(self.most, self._rows):
            thread = threading.Thread(target=self._work, name="vllm", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Has the threads end, each after its present call."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []

    def _work(self) -> None:
        """Completes rows until there is a ``None``."""
        while (row := self._waiting.get()) is not None:
            try:
                self.done.put(self._completed(row))
            except Exception as error:  # raised where somebody polls
                self.done.put(error)

    def _completed(self, row: Row) -> Completion:
        request, reason = row.request, "abort"
        while reason == "abort":
            with self.gate.call():
                version = self.version
                sampling = replace(request.sampling, max_tokens=row.limit - len(row.ids))
                seed = mix(row.seed, len(row.ids)) % (1 << _SEED_BITS)
                try:
                    (answer,) = ask(row.server, [[*request.prompt_ids.tolist(), *row.ids]], sampling, seed)
                except Refused as error:
                    if error.status != 400:
                        raise row.server.failed(f"HTTP {error.status}: {error}") from error
                    return unserved(request, "error", f"{row.server.url}: {error}")
            row.ids += answer.ids
            row.logprobs += answer.logprobs
            row.versions += [version] * len(answer.ids)
            reason = "length" if answer.reason == "abort" and len(row.ids) >= row.limit else answer.reason
        return Completion(
            request.request_id,
            np.array(row.ids, np.int32),
            np.array(row.logprobs, np.float32),
            reason,
            np.array(row.versions, np.int64),
        )


def unserved(request: Request, reason: str, error: str) -> Completion:
    """The answer to a request without a completion."""
    none = np.empty(0, np.int32)
    return Completion(request.request_id, none, none.astype(np.float32), reason, none.astype(np.int64), error)
