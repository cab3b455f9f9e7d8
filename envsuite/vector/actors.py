"""Workers of a :class:`~envsuite.vector.workers.WorkerVector` that are actors of Ray, on any machine of its cluster.

Needs Ray: ``pip install 'envsuite[ray]'``. It decides where the actors are, and gives them their resources.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from envsuite.core.boundary import reason
from envsuite.core.errors import UsageError, require_extra
from envsuite.core.processes import frame, receive
from envsuite.vector.base import EnvFactory
from envsuite.vector.runner import CallRunner
from envsuite.vector.worker import READY, answer_calls
from envsuite.vector.workers import WorkerVector

OPTIONS: Mapping[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
"""Options of an actor that the caller may change: each asks for a processor, and all are spread over the nodes."""
_FIXED = {"max_concurrency": 1, "max_restarts": 0}  # a vector replaces what is lost itself


class ActorVector(WorkerVector):
    """Runs environments in ``workers`` actors of Ray: as a :class:`WorkerVector`, on the machines of a cluster.

    The nodes need this package, and what the environments need. An actor that is lost is answered for as a worker that
    crashed, and another one takes its place, wherever Ray has room.

    Args:
        factories: The environments.
        slots: Number of concurrent episodes; slot i belongs to actor i modulo ``workers``.
        workers: Number of actors.
        deadline: Limit in seconds of one call.
        snapshots: Take a snapshot with each answer.
        options: Options of an actor, as Ray has them, e.g. ``{"num_cpus": 0.5, "resources": {"worlds": 1}}``.

    Raises:
        MissingExtra: Ray is not installed.
        UsageError: There is no cluster, an option is none of Ray's, or as :class:`WorkerVector`.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        slots: int,
        workers: int = 1,
        deadline: float = 60.0,
        snapshots: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        ray = _ray()
        try:
            if not ray.is_initialized():
                before = signal.getsignal(signal.SIGTERM)
                ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, before)  # Ray has put one of its own there
            actor = ray.remote(_Actor).options(**{**OPTIONS, **(options or {}), **_FIXED})
        except ConnectionError as error:
            raise UsageError(f"there is no cluster of Ray ({reason(error)}); start one: ray start --head") from error
        except (TypeError, ValueError) as error:
            raise UsageError(f"options of Ray's actors: {reason(error)}") from error
        super().__init__(factories, slots, workers, deadline, snapshots, partial(_ActorProcess, ray, actor))


class _Actor:
    """Runs in a process of Ray's: the environments of one worker."""

    def start(self, factories: Sequence[EnvFactory], snapshots: bool) -> None:
        """Makes ready for calls."""
        self._runner = CallRunner(factories, snapshots)

    def answer(self, calls: list[tuple[object, ...]]) -> Iterator[list[bytes]]:
        """Yields the answers to calls."""
        yield from answer_calls(self._runner, calls)

    def close(self) -> None:
        """Closes every environment."""
        self._runner.close()


class _ActorProcess:
    """An actor as the vector sees a worker process: a socket, behind which a thread passes on calls and answers."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self._how = ray, actor.remote(), "was killed"
        self.socket, theirs = socket.socketpair()
        threading.Thread(target=self._pass_on, args=(theirs,), name="envsuite-actor", daemon=True).start()

    def stop(self, grace: float = 0.0) -> str:
        """Ends the actor, which has ``grace`` seconds to close its environments; returns how it ended."""
        self.socket.close()
        if self._ray.is_initialized():
            if grace > 0:
                self._ray.wait([self._actor.close.remote()], timeout=grace)
            self._ray.kill(self._actor)
        return self._how

    def _pass_on(self, channel: socket.socket) -> None:
        with channel, contextlib.suppress(EOFError, OSError):  # the vector has closed the socket
            try:
                ((factories, snapshots),) = receive(channel)
                self._ray.get(self._actor.start.remote(factories, snapshots))
                channel.sendall(frame([pickle.dumps(READY)]))
                while True:
                    calls = receive(channel)
                    for answers in self._actor.answer.options(num_returns="streaming").remote(calls):
                        channel.sendall(frame(self._ray.get(answers)))
            except self._ray.exceptions.RayError as error:
                self._how = f"is lost ({reason(error)[:200]})"


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it asks nobody otherwise
    with require_extra("environments in actors need Ray", "ray"):
        import ray
    return ray
