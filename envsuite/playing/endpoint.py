"""The engine that asks an endpoint for chat completions, with many requests at a time."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envsuite.playing.engine import ChatCompletion, ChatEngine, ChatRequest
from envsuite.prompting import Answer
from envsuite.prompting.endpoints import AnswerTokens, EndpointOptions, Reply, body_of
from envsuite.prompting.endpoints.endpoint import (
    EndpointNoRoom,
    EndpointRefused,
    EndpointUnavailable,
    EndpointUnusable,
    ModelEndpoint,
)

PREFIX = "rollout.engine_options."
_LOG = logging.getLogger(__name__)


class EndpointEngine(ChatEngine):
    """Has any endpoint with OpenAI's chat completions answer, for evaluation, baselines and demonstrations.

    Requests are sent from as many threads as the endpoint is to have requests at a time. One that fails is repeated
    for ``patience`` seconds. When no request at all is answered any more, or the budget is spent, the engine stops:
    what is left is not asked.

    Args:
        options: Settings of the endpoint.
        slots: Most requests that are wanted at a time.
    """

    background = True
    takes_images = True

    def __init__(self, options: EndpointOptions, slots: int) -> None:
        self.options = options
        self.name = options.model
        self.most = min(options.concurrency, slots)
        self.stopped: str | None = None
        self._endpoint = ModelEndpoint(options)
        self._waiting: queue.SimpleQueue[tuple[int, Mapping[str, Any]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[ChatCompletion | Exception] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._counting = threading.Lock()
        self._requests = self._uncounted = 0
        self._tokens = AnswerTokens()
        self._models: set[str] = set()

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings that cannot work, and a key that is not there."""
        EndpointOptions(**options, prefix=PREFIX)

    @classmethod
    def from_setup(
        cls,
        slots: int,
        *,
        url: str,
        model: str,
        key_variable: str | None = None,
        concurrency: int = 8,
        patience: float = 120.0,
        timeout: float = 600.0,
        budget: int | None = None,
        prices: Mapping[str, float] | None = None,
        served_as: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> EndpointEngine:
        """The engine with these settings, which are those of :class:`~envsuite.prompting.endpoints.EndpointOptions`."""
        options = EndpointOptions(
            url=url, model=model, key_variable=key_variable, concurrency=concurrency, patience=patience,
            timeout=timeout, budget=budget, prices=prices, served_as=served_as, extra=extra, prefix=PREFIX,
        )  # fmt: skip
        return cls(options, slots)

    def submit(self, requests: Sequence[ChatRequest]) -> None:
        """Queue requests."""
        for request in requests:
            sampling = request.sampling
            body = body_of(
                self.options, [*request.messages], None if request.tools is None else [*request.tools],
                temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_tokens,
                seed=request.seed,
            )  # fmt: skip
            self._pending += 1
            self._waiting.put((request.request_id, body))
            if len(self._threads) < min(self.most, self._pending):
                thread = threading.Thread(target=self._work, name="endpoint", daemon=True)
                self._threads.append(thread)
                thread.start()

    def poll(self, timeout: float | None = None) -> list[ChatCompletion]:
        """Wait until a request is finished, or ``timeout`` seconds have passed."""
        completions: list[ChatCompletion] = []
        while self._pending:
            try:
                answer = self._done.get(timeout=0.0 if completions else timeout)
            except queue.Empty:
                break
            self._pending -= 1
            if isinstance(answer, Exception):
                raise answer
            completions.append(answer)
        return completions

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return self._pending

    def where(self, session: int | None) -> str:
        """Returns the address of the endpoint."""
        return self._endpoint.url

    def close(self) -> None:
        """End the threads, each after its present call."""
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
        while (request := self._waiting.get()) is not None:
            try:
                self._done.put(self._complete(*request))
            except Exception as error:  # raised where somebody polls
                self._done.put(error)

    def _complete(self, number: int, body: Mapping[str, Any]) -> ChatCompletion:
        if self.stopped is not None:
            return _failure(number, self.stopped)
        began = time.monotonic()
        try:
            reply = self._endpoint.ask(body)
        except EndpointNoRoom as error:
            return _failure(number, str(error), "context")
        except EndpointRefused as error:
            return _failure(number, str(error))
        except EndpointUnusable as error:
            self._stop(str(error))
            return _failure(number, str(error))
        except EndpointUnavailable as error:
            if self._endpoint.last_answer < began and self.stopped is None:  # no other request was answered meanwhile
                self._stop(str(error))
            return _failure(number, self.stopped or str(error))
        self._count(reply)
        tokens = reply.tokens or AnswerTokens()
        return ChatCompletion(
            number, reply.answer, reply.finish_reason, tokens=tokens.answer, prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached, counted=reply.tokens is not None,
        )  # fmt: skip

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


def _failure(number: int, error: str, reason: str = "error") -> ChatCompletion:
    return ChatCompletion(number, Answer(""), reason, error)
