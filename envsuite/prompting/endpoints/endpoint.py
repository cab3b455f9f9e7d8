"""Calls to one endpoint, repeated while they may succeed."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from httpx2 import Response

from envsuite.core import http
from envsuite.core.addresses import is_private
from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.prompting.endpoints.reading import MalformedAnswer, Reply, read

_LOG = logging.getLogger(__name__)
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)  # the same request may succeed later
_SPENT = ("insufficient_quota", "billing_hard_limit_reached", "credit_balance")  # no 429 that passes
_LONGER = ("context_length_exceeded", "context length", "context window", "maximum context", "prompt is too long")

_VERSION = re.compile(r"(?:-\d[\d-]*|[@:].*)?", re.DOTALL)
"""The end of a model's name that does not make it another: a date, or a version."""


class EndpointUnavailable(Exception):
    """No answer, for as long as was waited for one."""


class EndpointRefused(Exception):
    """This request gets no answer; others may."""


class EndpointNoRoom(EndpointRefused):
    """The messages leave no room for an answer in the model's context."""


class EndpointUnusable(Exception):
    """No request will get an answer: another key, address, model or setting is needed."""


class ModelEndpoint:
    """An endpoint for chat completions; may be used from several threads.

    Answers come whole, not as a stream: a connection that breaks off in the middle of one is a failed call like any
    other, and is repeated.

    Args:
        options: Its settings.
    """

    def __init__(self, options: EndpointOptions) -> None:
        self.options = options
        self.url = options.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self.last_answer = 0.0
        """When the last answer came (``time.monotonic``); 0 before the first."""
        self.repeats = 0
        """Calls that were repeated."""
        self._key = options.key()
        self._ended = threading.Event()
        self._later = 0.0  # nothing is sent before, since the endpoint asked for it
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(options.timeout, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=options.concurrency, max_keepalive_connections=options.concurrency),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            trust_env=not is_private(str(urlsplit(self.url).hostname)),  # a proxy does not reach this machine's own
        )

    def ask(self, body: Mapping[str, Any]) -> Reply:
        """Returns the completion of a request.

        Raises:
            EndpointUnavailable: None came for ``patience`` seconds, or :meth:`end` was called.
            EndpointRefused: The endpoint refuses this request.
            EndpointUnusable: It refuses every request.
        """
        first_failure, pause = 0.0, _FIRST_PAUSE
        while True:
            self._wait(self._later - time.monotonic())
            try:
                reply = self._send(body)
            except _TransientError as error:
                why, least = str(error), error.least
            else:
                self.last_answer = time.monotonic()
                return reply
            now = time.monotonic()
            first_failure = first_failure or now
            self._later = max(self._later, now + least)
            wait = max(least, pause * random.uniform(0.5, 1.0))
            if now + wait > first_failure + self.options.patience:
                advice = f", and wants to be asked again after {least:.0f} s" if least else ""
                raise EndpointUnavailable(
                    f"{self.url}: {why}; tried for {now - first_failure:.0f} s{advice} "
                    f"({self.options.setting('patience')} is {self.options.patience:g})"
                )
            self.repeats += 1
            _LOG.warning("%s: %s; trying again in %.1f s", self.url, why, wait)
            self._wait(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def end(self) -> None:
        """Ends all waiting: calls that fail from now on are not repeated."""
        self._ended.set()

    def close(self) -> None:
        """Ends waiting calls, and drops the connections."""
        self.end()
        self._client.close()

    def _wait(self, seconds: float) -> None:
        if self._ended.is_set() or (seconds > 0 and self._ended.wait(seconds)):
            raise EndpointUnavailable(f"{self.url}: nothing more is asked")

    def _send(self, body: Mapping[str, Any]) -> Reply:
        try:
            response = http.ask(self._client, "POST", self.url, json=body)
        except (httpx2.TransportError, httpx2.DecodingError, RuntimeError) as error:  # RuntimeError: closed meanwhile
            raise _TransientError(str(error) or type(error).__name__) from error
        status, text = response.status_code, self._error_text(response)
        if status in _PASSING and not any(word in text for word in _SPENT):
            raise _TransientError(f"HTTP {status}: {text}", http.retry_after(response.headers))
        if status != 200:
            raise self._refusal(status, text)
        try:
            reply = read(response.json())
        except MalformedAnswer as error:
            raise _TransientError(self._hide_key(str(error))) from error
        except (ValueError, RecursionError) as error:
            raise _TransientError(f"it answered {text!r}, which is no JSON") from error
        self._check_model(reply.model)
        return reply

    def _refusal(self, status: int, text: str) -> Exception:
        """Returns the error for an answer that the same request would get again."""
        where, setting = f"{self.url}: HTTP {status}: {text}", self.options.setting
        if status in (401, 403):
            variable = self.options.key_variable
            hint = f"the key is that of {variable}" if variable else "no key is sent"
            return EndpointUnusable(f"{where} ({hint}: {setting('key_variable')} names the variable that has it)")
        if status == 404 or 300 <= status < 400:
            return EndpointUnusable(f"{where}; see {setting('url')} (most end in /v1) and {setting('model')}")
        if any(word in text.lower() for word in _LONGER):
            return EndpointNoRoom(where)
        if status in (402, *_PASSING) or not self.last_answer:
            return EndpointUnusable(f"{where}; {setting('extra')} can change or leave out a field of the request")
        return EndpointRefused(where)

    def _check_model(self, name: str) -> None:
        """Refuses the answer of another model; one with a date or a folder around its name is the same."""
        model = self.options.served_as or self.options.model
        bare, own = (full_name.rsplit("/", 1)[-1] for full_name in (name, model))
        if not name or (bare.startswith(own) and _VERSION.fullmatch(bare[len(own) :])):
            return
        raise EndpointUnusable(
            f"{self.url}: {name!r} answered, and {model!r} was asked; if that is right, set "
            f"{self.options.setting('served_as')} to {name!r}"
        )

    def _error_text(self, response: Response) -> str:
        """Returns what an answer says of an error, without the key."""
        text = response.text
        try:
            body = response.json()
            error = body.get("error", body)
            if isinstance(error, dict) and "message" in error:
                text = f"{error['message']}" + (f" ({error['code']})" if error.get("code") else "")
        except (ValueError, AttributeError, RecursionError):
            pass
        return self._hide_key(text)[:300]

    def _hide_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _TransientError(Exception):
    """A failure that may pass.

    Args:
        reason: What failed.
        least: Seconds that the endpoint wants to be left alone.
    """

    def __init__(self, reason: str, least: float = 0.0) -> None:
        super().__init__(reason)
        self.least = least
