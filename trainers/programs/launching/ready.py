"""``python -m trainers.programs.launching.ready URL...``: waits until each address answers."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from envsuite.core.errors import EnvsuiteError
from envsuite.exits import status_of

SECONDS = 1800.0
"""Most that is waited: a large model on a GPU is loaded and compiled for minutes."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotReady(EnvsuiteError):
    """A server did not answer in time; the message names it."""


def wait_for(urls: Sequence[str], seconds: float = SECONDS, check: Callable[[], None] = lambda: None) -> None:
    """Returns once each address has answered with success.

    Args:
        urls: Addresses.
        seconds: Most that is waited for all of them.
        check: Called between two requests; may raise.

    Raises:
        NotReady: The time is up.
    """
    end = time.monotonic() + seconds
    for url in urls:
        while not _answers(url):
            check()
            if time.monotonic() > end:
                raise NotReady(f"{url} does not answer after {seconds:g} s; the server's log says why")
            time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    """Waits for the addresses of the command line; returns the exit status."""

    def waited() -> int:
        wait_for(sys.argv[1:])
        return 0

    return status_of(waited)


if __name__ == "__main__":
    sys.exit(main())
