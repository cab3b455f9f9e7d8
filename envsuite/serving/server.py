"""A server as a process: socket, threads, signals and shutdown."""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterator, Sequence

from flask import Blueprint

from envsuite.core.addresses import is_private, open_socket
from envsuite.core.errors import UsageError
from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import CONNECTIONS, OTHER_FILES, REFUSED, in_thread, run_until_signal
from envsuite.remote.wsgi import WSGIServer
from envsuite.serving.app import OPEN, make_app
from envsuite.serving.front import EnvOffer, Front, Inline, SessionPlace
from envsuite.serving.settings import ServerSettings
from envsuite.serving.workers import ServerWorker, WorkerPool

log = logging.getLogger("envsuite.serving")
THREADS = 32
"""Number of requests executed at a time. They mostly wait for workers."""
SESSIONS, ENVIRONMENTS, QUICK = "/v1/sessions", "/v1/environments", ("reset", "step")
DRAIN_SECONDS = 20
"""Seconds that running requests have to finish after SIGTERM."""


class EnvServer:
    """Serves sessions over HTTP until it is stopped.

    Args:
        settings: Settings of the server.
        blueprints: Further paths.

    Raises:
        UsageError: An environment cannot be offered, or the address is in use.
    """

    def __init__(self, settings: ServerSettings, blueprints: Sequence[Blueprint] = ()) -> None:
        self.settings = settings
        self._inline = Inline()
        self.front = Front(settings, self._place)
        quick = [offer.env_id for offer in self.front.offers.values() if offer.quick]
        # Loads the shared data now: the first clients would all do so at once. Missing data are reported to them.
        self._inline.submit([{"op": "describe", "environment": env_id} for env_id in quick])
        pooled_ids = [offer.env_id for offer in self.front.offers.values() if not offer.inline]
        self._pool = WorkerPool(settings.workers, pooled_ids, settings.deadline, self._drop_worker)
        self.app = make_app(self.front, self._ready, blueprints)
        try:
            listening = open_socket(settings.host, settings.port)
        except UsageError:
            self._close()
            raise
        self._http = WSGIServer(
            self.app, listening, settings.max_body, threads=THREADS,
            guard=RequestGuard(is_private(settings.host), settings.token, OPEN), quick=self._quick, slow=_makes_worlds,
            refused=self._count_refusal, drain_seconds=DRAIN_SECONDS, headers=[("Server", "envsuite")],
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Address at which it listens."""
        return self._http.url

    def run(self) -> None:
        """Serves until :meth:`stop`, then finishes running requests."""
        try:
            self._http.run()
        finally:
            self._close()

    def stop(self, *_: object) -> None:
        """Ends :meth:`run`, from a signal or another thread."""
        self.front.draining = True
        self._http.stop()

    def _place(self, offer: EnvOffer, generates: bool) -> SessionPlace:
        in_worker = self.settings.workers and (generates or not offer.inline)
        return self._pool.choose() if in_worker else self._inline

    def _quick(self, path: str) -> bool:
        session, _, call = path.removeprefix(SESSIONS)[1:].partition("/")
        return path in OPEN or (call in QUICK and path.startswith(SESSIONS) and self.front.quick(session))

    def _ready(self) -> bool:
        return self._pool.ready

    def _drop_worker(self, worker: ServerWorker, why: str) -> None:
        self.front.metrics.count("envsuite_workers_replaced_total")
        self.front.drop_place(worker, why)

    def _count_refusal(self) -> None:
        self.front.metrics.count("envsuite_connections_refused_total")

    def _close(self) -> None:
        self._pool.close()
        self.front.close()


def _makes_worlds(path: str) -> bool:
    return path == SESSIONS or path.startswith(ENVIRONMENTS)


def serve(settings: ServerSettings, blueprints: Sequence[Blueprint] = ()) -> None:
    """Serves until SIGTERM or SIGINT."""
    _open_files(CONNECTIONS + REFUSED + OTHER_FILES)
    server = EnvServer(settings, blueprints)
    open_to = "this machine only" if is_private(settings.host) else "other machines, too"
    access = "a token is needed" if settings.token is not None else "no token is needed"
    log.warning("%s: %s (%s; %s)", server.url, ", ".join(settings.environments), open_to, access)
    run_until_signal(server)


def _open_files(count: int) -> None:
    """Raises the limit of open files to ``count``, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def serving(settings: ServerSettings, blueprints: Sequence[Blueprint] = ()) -> Iterator[EnvServer]:
    """Runs a server in a thread of this process for the duration of the block."""
    server = EnvServer(settings, blueprints)
    with in_thread(server):
        yield server
