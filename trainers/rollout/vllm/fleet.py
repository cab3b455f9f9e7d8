"""vLLM servers that join and leave while a run goes on."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from envsuite.playing.engine import EngineFailed
from envsuite.remote.places import News, Places, tell
from envsuite.remote.transport import ServerUnreachable
from trainers.processes.distributed import all_gather_object, first_value
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.host import HostGone, VLLMRefused
from trainers.rollout.vllm.proof import check_host
from trainers.settings import ConfigError

RETRY_SECONDS = 30.0
"""Seconds until a server that could not join is asked again."""
_LOG = logging.getLogger(__name__)
_LOCK = threading.Lock()


def drop(servers: list[VLLMConnection], server: VLLMConnection, error: HostGone) -> None:
    """Goes on without a server that is gone.

    Raises:
        HostGone: It is the last one.
    """
    with _LOCK:
        if server not in servers:
            return
        if len(servers) == 1:
            raise error
        servers.remove(server)
    server.give_up()
    tell(News(server.url, "vLLM", False, str(error)))


class Fleet:
    """The servers that all processes of a run share, the same in each of them.

    Args:
        servers: The present ones; changed in place.
        places: Where they are named.
        setup: The parts of the run.
        make: Connects to a server.
    """

    def __init__(
        self, servers: list[VLLMConnection], places: Places, setup: EngineSetup, make: Callable[[str], VLLMConnection]
    ) -> None:
        self.servers, self._places, self._setup, self._make = servers, places, setup, make
        self.longest = 0
        """Most tokens of a sequence that a server has to take."""
        self._again: dict[str, float] = {}

    def begin(self) -> None:
        """Connects to the servers that are named now; every process must call this.

        Raises:
            EngineFailed: There is none.
        """
        try:
            self.servers += [self._make(url) for url in first_value(self._setup.accelerator, self._places.some())]
        except ServerUnreachable as error:
            raise EngineFailed(str(error)) from error

    def agree(self) -> None:
        """Goes on without the servers that are gone for any of the processes; every process must call this.

        Raises:
            EngineFailed: There is no other.
        """
        common = self._common({server.url for server in self.servers})
        for server in [server for server in self.servers if server.url not in common]:
            self._leave(server, "it is gone for another process")
        if not self.servers:
            raise EngineFailed(f"vLLM servers ({self._places}): none is left that answers all processes")

    def renew(self) -> list[VLLMConnection]:
        """Lets servers join that are named now; every process must call this.

        Returns:
            Those that are named no more, for :meth:`dismiss`; none where nothing else is left.

        Raises:
            EngineFailed: As :meth:`agree`.
        """
        self.agree()
        urls = first_value(self._setup.accelerator, self._places.now())
        here = {server.url for server in self.servers}
        new_servers = {url: server for url in urls if url not in here and (server := self._connect(url)) is not None}
        common = self._common({*new_servers})
        for url in [url for url in new_servers if url in common]:
            self.servers.append(new_servers[url])
            tell(News(url, "vLLM", True, "it gets the weights with this update"))
        for url in new_servers.keys() - common:
            new_servers[url].close()
        leaving = [server for server in self.servers if server.url not in urls]
        if len(leaving) == len(self.servers):
            return []
        for server in leaving:
            server.patience = min(server.patience, 1.0)
        return leaving

    def dismiss(self, leaving: list[VLLMConnection]) -> None:
        """Goes on without servers, whose requests have been cut off."""
        for server in leaving:
            if server in self.servers:
                with contextlib.suppress(EngineFailed, VLLMRefused):
                    server.resume()
                self._leave(server, f"{self._places} names it no more")

    def _leave(self, server: VLLMConnection, why: str) -> None:
        with _LOCK, contextlib.suppress(ValueError):  # another thread has done so
            self.servers.remove(server)
        server.give_up()
        tell(News(server.url, "vLLM", False, why))

    def _connect(self, url: str) -> VLLMConnection | None:
        """The server at ``url``, if it answers now and computes as the trainer does."""
        if time.monotonic() < self._again.get(url, 0.0):
            return None
        self._again[url] = time.monotonic() + RETRY_SECONDS  # also where it joins, and cannot take the weights
        server, setup = self._make(url), self._setup
        patience, server.patience = server.patience, 0.0
        try:
            longest = check_host(server, setup.model, setup.config.compute_dtype)
            if longest < self.longest:
                raise server.failure(f"it takes {longest} tokens, and the others {self.longest}")
        except (EngineFailed, ConfigError, VLLMRefused) as error:
            _LOG.warning("%s gets no requests: %s", url, error)
            server.close()
            return None
        server.patience = patience
        return server

    def _common(self, urls: set[str]) -> set[str]:
        return set.intersection(*all_gather_object(self._setup.accelerator, urls))
