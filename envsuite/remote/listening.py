"""A listening socket that may be told to end at any time, for the servers of this package. Needs waitress."""

from __future__ import annotations

import threading
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher


class StoppableServer(TcpWSGIServer):  # type: ignore[misc]
    """Reads requests and passes them to ``app``. Its trigger may be pulled at any time, also after its end.

    Waitress's own trigger, pulled when it is closed, raises ``OSError`` or writes into the next file that is opened.

    Args:
        app: A WSGI application.
        dispatcher: Threads for requests; ``adjustments.threads`` of them are started.
        adjustments: Waitress's settings: address, number of threads, limits.

    Raises:
        OSError: The address is not available.
    """

    def __init__(self, app: Any, dispatcher: ThreadedTaskDispatcher, adjustments: Adjustments) -> None:
        self._closing = threading.RLock()  # a signal may come in between
        self._shut = False
        self.watched: dict[int, Any] = {}
        """Socket, trigger and connections by descriptor, for waitress's own loop."""
        super().__init__(app, self.watched, dispatcher=dispatcher, adj=adjustments, sockinfo=adjustments.listen[0])
        dispatcher.set_thread_count(adjustments.threads)

    def pull_trigger(self) -> None:
        """Ends the wait for data from clients, from any thread; does nothing after :meth:`shut`."""
        with self._closing:
            if not self._shut:
                super().pull_trigger()

    def shut(self) -> None:
        """Closes all connections and stops listening."""
        for channel in list(self.active_channels.values()):
            HTTPChannel.handle_close(channel)
        with self._closing:
            self._shut = True
            self.close()
