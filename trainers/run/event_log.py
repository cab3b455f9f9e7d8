"""Tells what happens to a run besides training: to the log, the display, ``events.jsonl`` and a webhook."""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path

import orjson

from envsuite.core.errors import DataError
from envsuite.remote.places import News
from trainers.report.events import RunEvent, read_events, write_event
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
_SECONDS = 5.0
"""How long a webhook may take to answer."""


class EventLog:
    """Tells the events of a run, each once, also where the run does an iteration again.

    Args:
        folder: The run's folder.
        name: The run's name.
        webhook: Address that events are sent to, or the environment variable that holds it; ``None`` for none.
        writes: Whether this process writes and sends; the others log alone.

    Raises:
        ConfigError: ``webhook`` is neither.
    """

    def __init__(self, folder: Path, name: str, webhook: str | None, writes: bool) -> None:
        self.folder, self.name, self.writes = folder, name, writes
        self._servers: dict[tuple[str, str], bool] = {}
        """Whether each server that there was news of is here, by its address and what it serves."""
        self._address = webhook if webhook is None or "://" in webhook else os.environ.get(webhook, "")
        if self._address is not None and not self._address.startswith(("http://", "https://")):
            raise ConfigError(
                f"alarms.webhook is {webhook!r}, which is neither an address (http:// or https://) nor an environment "
                "variable that holds one"
            )

    def __call__(self, event: RunEvent) -> None:
        """Tells an event.

        Raises:
            DataError: It cannot be written (disk full).
        """
        _LOG.warning("%s", event.message)
        if not self.writes:
            return
        key = (event.kind, event.iteration, event.message)
        if key in ((past.kind, past.iteration, past.message) for past in read_events(self.folder)):
            return
        write_event(self.folder, event)
        if self._address:
            body = orjson.dumps({"run": self.name, "text": f"{self.name}: {event.message}", **asdict(event)})
            # The interpreter waits for the thread at its end, so that the last event is sent, too.
            threading.Thread(target=_post, args=(self._address, body), name="webhook").start()

    def note(self, news: News, iteration: int) -> None:
        """Writes into the file of events that a server has joined or left; once, however many parts say so."""
        if not self.writes or self._servers.get((news.url, news.serves)) == news.joined:
            return
        self._servers[news.url, news.serves] = news.joined
        try:
            write_event(self.folder, RunEvent("server", iteration, str(news), asdict(news)))
        except DataError as error:
            _LOG.warning("%s", error)


def _post(address: str, body: bytes) -> None:
    """Sends JSON to an address; a failure is logged, without the address, which may be secret."""
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return
    except OSError as error:
        _LOG.warning("the webhook of the alarms failed (%s)", error)
    except (ValueError, HTTPException) as error:  # their words have the address in them
        _LOG.warning("the webhook of the alarms failed (%s)", type(error).__name__)
