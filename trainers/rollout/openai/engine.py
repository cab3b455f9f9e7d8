"""The engine that asks an endpoint for chat completions."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envsuite.prompting import Answer
from trainers.rollout.engine import ENGINES, ChatCompletion, ChatEngine, ChatRequest
from trainers.rollout.openai.endpoint import Endpoint, NoRoom, Refused, Unavailable, Unusable
from trainers.rollout.openai.options import Options
from trainers.rollout.openai.reading import Reply, Tokens

_LOG = logging.getLogger(__name__)
_SEEDS = 1 << 31  # more bits are refused by some endpoints
_MILLION = 1_000_000


@ENGINES.register("openai")
class OpenAIEngine(ChatEngine):
    """Has any endpoint with OpenAI's chat completions answer, for evaluation, baselines and demonstrations.

    A request that fails is repeated for ``patience`` seconds; its episode is then started once more. When nothing
    answers any more, or the budget is spent, the engine stops: what is left is not asked.

    Args:
        options: Its settings.
        slots: Most requests that are wanted at a time.
    """

    attempts = 2
    takes_images = True

    def __init__(self, options: Options, slots: int) -> None:
        self.options = options
        self.name = options.model
        self.most = min(options.concurrency, slots)
        self._endpoint = Endpoint(options)
        self._waiting: queue.SimpleQueue[ChatRequest | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[ChatCompletion | Exception] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._counting = threading.Lock()
        self._requests = self._uncounted = 0
        self._tokens = Tokens()
        self._models: set[str] = set()

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings that cannot work, and a key that is not there."""
        Options(**options)

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
    ) -> OpenAIEngine:
        """The engine with these settings, which are those of :class:`Options`."""
        options = Options(
            url, model, key_variable, concurrency, patience, timeout, budget, prices, served_as, extra
        )  # fmt: skip
        return cls(options, slots)

    # -- the contract ----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[ChatRequest]) -> None:
        """Queue requests."""
        for request in requests:
            self._pending += 1
            self._waiting.put(request)
            if len(self._threads) < min(self.most, self._pending):
                thread = threading.Thread(target=self._work, name="openai", daemon=True)
                self._threads.append(thread)
                thread.start()

    def poll(self, timeout: float | None = None) -> list[ChatCompletion]:
        """Wait until a request is finished, or ``timeout`` seconds have passed."""
        found: list[ChatCompletion] = []
        while self._pending:
            try:
                item = self._done.get(timeout=0.0 if found else timeout)
            except queue.Empty:
                break
            self._pending -= 1
            if isinstance(item, Exception):
                raise item
            found.append(item)
        return found

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
            tokens, models = self._tokens, sorted(self._models)
            found: dict[str, Any] = {
                "requests": self._requests,
                "repeated_calls": self._endpoint.repeats,
                "requests_without_counts": self._uncounted,
                "prompt_tokens": tokens.prompt,
                "cached_tokens": tokens.cached,
                "answer_tokens": tokens.answer,
                "models": models,
            }
        if (prices := self.options.prices) is not None:
            fresh, cached = tokens.prompt - tokens.cached, prices.get("cached", prices["input"])
            cost = fresh * prices["input"] + tokens.cached * cached + tokens.answer * prices["output"]
            found["cost"] = round(cost / _MILLION, 6)
        return found

    # -- requests --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Answers requests until there is a ``None``."""
        while (request := self._waiting.get()) is not None:
            try:
                self._done.put(self._answered(request))
            except Exception as error:  # raised where somebody polls
                self._done.put(error)

    def _answered(self, request: ChatRequest) -> ChatCompletion:
        if self.stopped is not None:
            return _none(request, self.stopped)
        began = time.monotonic()
        try:
            reply = self._endpoint.ask(self._body(request))
        except NoRoom as error:
            return _none(request, str(error), "context")
        except Refused as error:
            return _none(request, str(error))
        except Unusable as error:
            self._stop(str(error))
            return _none(request, str(error))
        except Unavailable as error:
            if self._endpoint.answered < began and self.stopped is None:  # no other request was answered meanwhile
                self._stop(str(error))
            return _none(request, self.stopped or str(error))
        self._count(reply)
        counted = 0 if reply.tokens is None else reply.tokens.answer
        return ChatCompletion(request.request_id, reply.answer, reply.finish_reason, tokens=counted)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.options.model,
            "messages": [*request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stream": False,
        }
        if request.seed is not None:
            body["seed"] = request.seed % _SEEDS
        if request.tools:
            body["tools"] = [*request.tools]
        body |= self.options.extra or {}
        return {name: value for name, value in body.items() if value is not None}

    def _count(self, reply: Reply) -> None:
        budget = self.options.budget
        with self._counting:
            self._requests += 1
            if reply.model:
                self._models.add(reply.model)
            if reply.tokens is None:
                self._uncounted += 1
            else:
                old, new = self._tokens, reply.tokens
                self._tokens = Tokens(old.prompt + new.prompt, old.cached + new.cached, old.answer + new.answer)
            spent = self._tokens.prompt + self._tokens.answer
        if budget is not None and reply.tokens is None:
            self._stop(
                f"rollout.engine_options.budget is {budget} tokens, but the endpoint does not count them (usage); "
                "leave the budget out"
            )
        elif budget is not None and spent >= budget:
            self._stop(f"the budget of {budget} tokens is spent ({spent}; rollout.engine_options.budget)")

    def _stop(self, reason: str) -> None:
        """Ask nothing more; what is on its way may still be answered."""
        with self._counting:
            if self.stopped is not None:
                return
            self.stopped = reason
        _LOG.warning("%s; nothing more is asked, and what was played is kept", reason)
        self._endpoint.end()


def _none(request: ChatRequest, error: str, reason: str = "error") -> ChatCompletion:
    return ChatCompletion(request.request_id, Answer(""), reason, error)
