"""The servers of an environment of a vector: which are named, which fit, which answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from envsuite.core.boundary import reason
from envsuite.core.errors import DataError, EnvsuiteError, UsageError
from envsuite.remote.places import News, Places, tell, wait_for_servers
from envsuite.remote.session import EnvDescription, describe_again, describe_environment
from envsuite.remote.transport import ServerUnreachable

DOWN_SECONDS = 30.0
"""Seconds for which a server that did not answer gets no new episodes."""


class Members:
    """The servers that play one environment; may be used from several threads.

    Args:
        places: Where they are.
        env_id: The environment.
        arguments: Its arguments, as JSON values.

    Raises:
        UsageError: The environment cannot be made there.
        DataError: The servers that answer do not have the same one.
    """

    def __init__(self, places: Places, env_id: str, arguments: Mapping[str, Any]) -> None:
        self._places, self._env_id, self._arguments = places, env_id, arguments
        descriptions: dict[str, EnvDescription] = {}
        silent: Exception | None = None
        try:
            urls = places.some()
            for url in urls:
                try:
                    descriptions[url] = describe_environment(url, env_id, arguments, len(urls))
                except ServerUnreachable as error:
                    silent = error
        except (EnvsuiteError, TypeError, ValueError) as error:
            raise UsageError(f"{env_id} cannot be made: {reason(error)}") from error
        if not descriptions:
            raise UsageError(f"{env_id} cannot be made: {silent}") from silent
        (self._first, self.described), *pairs = descriptions.items()
        for url, description in pairs:
            self._compare(url, description)
        self.alone = places.fixed and len(urls) == 1
        """Whether there will never be another one."""
        self._named, self._fit, self._unfit = set(urls), set(descriptions), set[str]()
        self._down: dict[str, float] = {}
        """When servers that did not answer are asked again."""
        self._since: float | None = None
        """Since when there is none."""
        self._lock, self._checks = threading.Lock(), threading.Lock()

    def up(self) -> list[str]:
        """Returns the servers that get new episodes: those that answer, or all where none does."""
        urls = self._present()
        return [url for url in urls if self.answers(url)] or urls

    def wait_for_servers(self) -> tuple[str, ...]:
        """Returns the servers, at least one; waits while there is none.

        Raises:
            ServerUnreachable: There has been none for :data:`~envsuite.remote.places.EMPTY_SECONDS`.
        """
        since = self._since or time.monotonic()
        return tuple(self._present()) or wait_for_servers(self._present, str(self._places), since)

    def answers(self, url: str) -> bool:
        """Returns whether a server answered when it was asked last, or that was long ago."""
        return self._down.get(url, 0.0) <= time.monotonic()

    def mark_silent(self, url: str, why: str) -> None:
        """Records that a server does not answer."""
        with self._lock:
            new = url in self._fit and url not in self._down
            self._down[url] = time.monotonic() + DOWN_SECONDS
        if new:
            tell(News(url, self._env_id, False, why))

    def mark_reachable(self, url: str) -> None:
        """Records that a server answers."""
        with self._lock:
            again = url in self._down and self.answers(url)
            if again:
                del self._down[url]
        if again:
            tell(News(url, self._env_id, True, "it answers again"))

    def check(self, url: str) -> None:
        """Lets a new server join, if it describes the environment as the others do.

        Raises:
            ServerUnreachable: It does not answer, describes none, or describes another one.
        """
        if url in self._fit:
            return
        with self._checks:
            if url in self._fit:
                return
            try:
                description = describe_again(url, self._env_id, self._arguments)
            except ServerUnreachable:
                raise
            except (EnvsuiteError, TypeError, ValueError) as error:  # it may pass, e.g. while a proxy has no server
                raise self._none_for(url, error, new=url not in self._down) from error
            try:
                self._compare(url, description)
            except DataError as error:
                self._unfit.add(url)
                raise self._none_for(url, error, new=True) from error
            self._fit.add(url)
            with self._lock:
                self._down.pop(url, None)
        tell(News(url, self._env_id, True, f"{self._places} names it"))

    def _present(self) -> list[str]:
        """Returns the servers that are named now and not known to be unfit."""
        urls = self._places.now()
        with self._lock:
            departures = [url for url in self._named.difference(urls) if url in self._fit and url not in self._down]
            self._fit -= set(urls) - self._named  # another server may have the address now
            self._named = set(urls)
            self._unfit &= self._named
            fit_urls = [url for url in urls if url not in self._unfit]
            self._since = None if fit_urls else self._since or time.monotonic()
        for url in departures:
            tell(News(url, self._env_id, False, f"{self._places} names it no more"))
        return fit_urls

    def _none_for(self, url: str, error: Exception, new: bool) -> ServerUnreachable:
        """Tells of a new server without episodes, where that is ``new``; returns the error."""
        if new:
            tell(News(url, self._env_id, False, f"it gets no episodes; {reason(error)}"))
        return ServerUnreachable(f"{url} gets no episodes; {reason(error)}")

    def _compare(self, url: str, peer: EnvDescription) -> None:
        first = self.described
        if (peer.tasks.hash, peer.versions, peer.tools) != (first.tasks.hash, first.versions, first.tools):
            raise DataError(
                f"{self._env_id} is not the same at {self._first} (manifest {first.tasks.hash[:8]}, "
                f"{dict(first.versions)}) and {url} (manifest {peer.tasks.hash[:8]}, {dict(peer.versions)})"
            )
