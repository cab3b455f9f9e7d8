"""Many requests to one endpoint at a time."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from envsuite.prompting.endpoints.endpoint import (
    EndpointNoRoom,
    EndpointRefused,
    EndpointUnavailable,
    EndpointUnusable,
    ModelEndpoint,
)
from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.prompting.endpoints.reading import AnswerTokens, Reply
from envsuite.prompting.endpoints.request import RequestResult

_LOG = logging.getLogger(__name__)


class RequestPool:
    """Sends requests from as many threads as the endpoint is to have requests at a time.

    When no request at all is answered any more, or the budget is spent, the pool stops: what is left is not asked.

    Args:
        options: Settings of the endpoint.
        slots: Most requests that are wanted at a time.
    """

    def __init__(self, options: EndpointOptions, slots: int) -> None:
        self.options = options
        self.most = min(options.concurrency, slots)
        """Most requests at a time."""
        self.stopped: str | None = None
        """Why no further request will be answered."""
        self._endpoint = ModelEndpoint(options)
        self._waiting: queue.SimpleQueue[tuple[int, Mapping[str, Any]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[RequestResult | Exception] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._counting = threading.Lock()
        self._requests = self._uncounted = 0
        self._tokens = AnswerTokens()
        self._models: set[str] = set()

    @property
    def url(self) -> str:
        """Address that requests are sent to."""
        return self._endpoint.url

    @property
    def pending(self) -> int:
        """Requests that :meth:`poll` has not returned yet."""
        return self._pending

    def submit(self, request_id: int, body: Mapping[str, Any]) -> None:
        """Queues a request.

        Args:
            request_id: Differs from that of every other request on its way.
            body: As :func:`~envsuite.prompting.endpoints.body_of` makes it.
        """
        self._pending += 1
        self._waiting.put((request_id, body))
        if len(self._threads) < min(self.most, self._pending):
            thread = threading.Thread(target=self._work, name="endpoint", daemon=True)
            self._threads.append(thread)
            thread.start()

    def poll(self, timeout: float | None = None) -> list[RequestResult]:
        """Waits until a request is finished, or ``timeout`` seconds have passed."""
        replies: list[RequestResult] = []
        while self._pending:
            try:
                item = self._done.get(timeout=0.0 if replies else timeout)
            except queue.Empty:
                break
            self._pending -= 1
            if isinstance(item, Exception):
                raise item
            replies.append(item)
        return replies

    def close(self) -> None:
        """Ends the threads, each after its present call."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []
        self._endpoint.close()

    def usage(self) -> dict[str, Any]:
        """Returns requests, tokens, the models that answered, and the cost where prices are known."""
        with self._counting:
            tokens = self._tokens
            usage: dict[str, Any] = {
                "requests": self._requests,
                "repeated_calls": self._endpoint.repeats,
                "requests_without_counts": self._uncounted,
                "prompt_tokens": tokens.prompt,
                "cached_tokens": tokens.cached,
                "answer_tokens": tokens.answer,
                "models": sorted(self._models),
            }
        if (cost := self.options.cost(tokens)) is not None:
            usage["cost"] = round(cost, 6)
        return usage

    def _work(self) -> None:
        """Answers requests until there is a ``None``."""
        while (item := self._waiting.get()) is not None:
            try:
                self._done.put(self._send_request(*item))
            except Exception as error:  # raised where somebody polls
                self._done.put(error)

    def _send_request(self, request_id: int, body: Mapping[str, Any]) -> RequestResult:
        if self.stopped is not None:
            return RequestResult(request_id, None, self.stopped)
        began = time.monotonic()
        try:
            reply = self._endpoint.ask(body)
        except EndpointNoRoom as error:
            return RequestResult(request_id, None, str(error), no_room=True)
        except EndpointRefused as error:
            return RequestResult(request_id, None, str(error))
        except EndpointUnusable as error:
            self._stop(str(error))
            return RequestResult(request_id, None, str(error))
        except EndpointUnavailable as error:
            if self._endpoint.last_answer < began and self.stopped is None:  # no other request was answered meanwhile
                self._stop(str(error))
            return RequestResult(request_id, None, self.stopped or str(error))
        self._count(reply)
        return RequestResult(request_id, reply)

    def _count(self, reply: Reply) -> None:
        budget = self.options.budget
        with self._counting:
            self._requests += 1
            if reply.model:
                self._models.add(reply.model)
            if reply.tokens is None:
                self._uncounted += 1
            else:
                self._tokens += reply.tokens
            spent = self._tokens.prompt + self._tokens.answer
        name = self.options.setting("budget")
        if budget is not None and reply.tokens is None:
            self._stop(f"{name} is {budget} tokens, but the endpoint does not count them (usage); leave the budget out")
        elif budget is not None and spent >= budget:
            self._stop(f"the budget of {budget} tokens is spent ({spent}; {name})")

    def _stop(self, reason: str) -> None:
        """Asks nothing more; what is on its way may still be answered."""
        with self._counting:
            if self.stopped is not None:
                return
            self.stopped = reason
        _LOG.warning("%s; nothing more is asked, and what was played is kept", reason)
        self._endpoint.end()
