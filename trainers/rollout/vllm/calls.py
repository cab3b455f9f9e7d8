"""Rows that servers complete, each in a thread that waits for its answer."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from envsuite.playing.engine import Completion
from trainers.rollout.engine import refusal_completion
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.fleet import drop
from trainers.rollout.vllm.host import HostGone, VLLMRefused
from trainers.rollout.vllm.rows import VLLMRow, VLLMRows

_AGAIN_SECONDS = 0.5  # a call that reached a paused server is ended by pausing it again


class CallGate:
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

    def open(self) -> None:
        """Let calls through."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_empty(self, seconds: float) -> bool:
        """Waits for all calls to end; returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, seconds)


class ServerRows(VLLMRows[VLLMConnection]):
    """Has servers complete rows; a row whose answer is cut off because the weights change goes on afterwards.

    Args:
        servers: All that rows are sent to, as they come and go.
        most: Rows that are on their way at a time.
    """

    def __init__(self, servers: list[VLLMConnection], most: int) -> None:
        self._servers, self._most = servers, most
        self._gate = CallGate()
        self._done: queue.SimpleQueue[Completion | Exception] = queue.SimpleQueue()
        self._waiting: queue.SimpleQueue[VLLMRow[VLLMConnection] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._rows = 0

    def submit(self, row: VLLMRow[VLLMConnection]) -> None:
        """Queues a row."""
        self._waiting.put(row)
        self._rows += 1
        if len(self._threads) < min(self._most, self._rows):
            thread = threading.Thread(target=self._work, name="vllm", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self, completion: Completion) -> None:
        """Queues the answer to a request that no server is asked."""
        self._done.put(completion)

    def poll(self, timeout: float | None) -> list[Completion]:
        """Waits for an answer, ``timeout`` seconds at most; returns all that there are."""
        completions: list[Completion] = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._done.get(timeout=0.0 if completions else timeout)
                if isinstance(item, Exception):
                    raise item
                completions.append(item)
        return completions

    def hold(self) -> None:
        """Cuts off rows on their way, and has the servers drop what they computed."""
        self._gate.shut()
        until, servers = 0.0, [*self._servers]
        self._set_holds(servers, True)
        try:
            while True:
                at_once(self._servers, lambda server: server.pause())
                if self._gate.wait_empty(_AGAIN_SECONDS):
                    return
                until = until or time.monotonic() + max(server.patience for server in self._servers)
                if time.monotonic() > until:
                    raise self._servers[0].failure("/pause does not end the requests that are on their way")
        finally:
            self._set_holds(servers, False)

    def go_on(self) -> None:
        """Lets rows go on, from the tokens that they have."""
        self._gate.open()

    @staticmethod
    def _set_holds(servers: list[VLLMConnection], holds: bool) -> None:
        for server in servers:
            server.holds = holds

    def close(self) -> None:
        """Has the threads end, each after its present call."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []

    def _work(self) -> None:
        """Completes rows until there is a ``None``."""
        while (row := self._waiting.get()) is not None:
            try:
                self._done.put(self._complete(row))
            except Exception as error:  # raised where somebody polls
                self._done.put(error)

    def _complete(self, row: VLLMRow[VLLMConnection]) -> Completion:
        reason = "abort"
        while reason == "abort":
            with self._gate.call():
                version = self.version
                prompt, sampling, seed = row.remaining()
                row.host = self._server_of(row)
                try:
                    (answer,) = row.host.ask([prompt], sampling, seed)
                except HostGone as error:
                    drop(self._servers, row.host, error)
                    continue
                except VLLMRefused as error:
                    if error.status == 503:  # it is being paused
                        continue
                    if error.status != 400:
                        raise row.host.failure(f"HTTP {error.status}: {error}") from error
                    return refusal_completion(row.request, "error", f"{row.host.url}: {error}")
                if row.host not in self._servers:  # found to be gone meanwhile: these may be of other weights
                    continue
            row.add(answer, version)
            reason = "length" if answer.reason == "abort" and row.full else answer.reason
        return row.completion(reason)

    def _server_of(self, row: VLLMRow[VLLMConnection]) -> VLLMConnection:
        """The server of a row, or where that is gone another one that has the weights."""
        if row.host in self._servers:
            return row.host
        ready = [server for server in self._servers if server.version is not None]
        if not ready:
            raise row.host.failure("it is gone, and no other server has the weights")
        return ready[row.seed % len(ready)]


def at_once(servers: list[VLLMConnection], work: Callable[[VLLMConnection], object]) -> None:
    """Works with all servers at the same time; goes on without those that are gone, and raises any other failure."""
    failures: dict[VLLMConnection, Exception] = {}

    def try_work(server: VLLMConnection) -> None:
        try:
            work(server)
        except Exception as error:  # raised below
            failures[server] = error

    threads = [threading.Thread(target=try_work, args=(server,), daemon=True) for server in [*servers]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server, error in failures.items():
        if not isinstance(error, HostGone):
            raise error
        drop(servers, server, error)
