"""The engine that asks an endpoint for chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.playing.engine import ChatCompletion, ChatEngine, ChatRequest
from envsuite.prompting import Answer
from envsuite.prompting.endpoints import AnswerTokens, EndpointOptions, RequestResult, body_of
from envsuite.prompting.endpoints.pool import RequestPool
from trainers.settings import ConfigError

PREFIX = "rollout.engine_options."


class OpenAIEngine(ChatEngine):
    """Has any endpoint with OpenAI's chat completions answer, for evaluation, baselines and demonstrations.

    A request that fails is repeated for ``patience`` seconds; its episode is then started again. When nothing
    answers any more, or the budget is spent, the engine stops: what is left is not asked.

    Args:
        options: Its settings.
        slots: Most requests that are wanted at a time.
    """

    background = True
    takes_images = True

    def __init__(self, options: EndpointOptions, slots: int) -> None:
        self.options = options
        self.name = options.model
        self._pool = RequestPool(options, slots)
        self.most = self._pool.most

    @property
    def stopped(self) -> str | None:  # type: ignore[override]
        """Why no further request will be answered."""
        return self._pool.stopped

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings that cannot work, and a key that is not there."""
        _options(**options)

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
        """The engine with these settings, which are those of :class:`~envsuite.prompting.endpoints.Options`."""
        options = _options(
            url=url, model=model, key_variable=key_variable, concurrency=concurrency, patience=patience,
            timeout=timeout, budget=budget, prices=prices, served_as=served_as, extra=extra,
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
            self._pool.submit(request.request_id, body)

    def poll(self, timeout: float | None = None) -> list[ChatCompletion]:
        """Wait until a request is finished, or ``timeout`` seconds have passed."""
        return [_completion(exchange) for exchange in self._pool.poll(timeout)]

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return self._pool.pending

    def where(self, session: int | None) -> str:
        """Returns the address of the endpoint."""
        return self._pool.url

    def close(self) -> None:
        """End the threads, each after its present call."""
        self._pool.close()

    def usage(self) -> dict[str, Any]:
        """Returns requests, tokens, the models that answered, and the cost where prices are known."""
        return self._pool.usage()


def _options(**options: Any) -> EndpointOptions:
    try:
        return EndpointOptions(**options, prefix=PREFIX)
    except UsageError as error:
        raise ConfigError(str(error)) from error


def _completion(replied: RequestResult) -> ChatCompletion:
    reply = replied.reply
    if reply is None:
        return ChatCompletion(
            replied.request_id, Answer(""), "context" if replied.no_room else "error", replied.error
        )  # fmt: skip
    tokens = reply.tokens or AnswerTokens()
    return ChatCompletion(
        replied.request_id, reply.answer, reply.finish_reason, tokens=tokens.answer, prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached, counted=reply.tokens is not None,
    )  # fmt: skip
