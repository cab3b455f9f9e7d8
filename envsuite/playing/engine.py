"""Engines, which answer requests for the next action: prompts of token ids, or messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from envsuite.core.errors import EnvsuiteError
from envsuite.core.images import Pixels
from envsuite.playing.step import Logprobs, Parts, Tokens, Versions, as_tokens
from envsuite.prompting import Answer


class EngineFailed(EnvsuiteError, RuntimeError):
    """The engine cannot go on, or would sample from other weights; the run stops with a checkpoint."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability mass; 1 keeps all."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 keeps all."""
    max_tokens: int = 512
    """Most tokens of one response."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end a response (they are part of it)."""
    ignore_eos: bool = False
    """Go on past ``stop_ids`` to ``max_tokens``; for benchmarks."""


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt to be continued."""

    request_id: int
    """Differs from that of every other request on its way."""
    prompt_ids: Tokens
    """May be given as any sequence; held as an array."""
    sampling: Sampling
    session: int | None = None
    """Requests of one session (an episode) often start with the tokens of the one before; an engine may keep what
    it computed for them until :meth:`BaseEngine.release`."""
    seed: int | None = None
    """Makes the sample a function of prompt, weights and seed, whatever shares the batch."""
    images: tuple[Pixels, ...] = ()
    """The images that ids of the prompt below -1 are parts of (:mod:`envsuite.prompting.images`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", as_tokens(self.prompt_ids))


@dataclass(frozen=True, eq=False)
class Completion:
    """The answer to a request; the arrays have one value for each sampled token, and may be given as any sequence."""

    request_id: int
    token_ids: Tokens
    """The sampled tokens, the stop token included."""
    logprobs: Logprobs
    """Log-probability of each at the temperature of the request, under the weights that sampled it: of the softmax of
    logits / temperature, before top-p and top-k. For a greedy request, at temperature 1."""
    finish_reason: str
    """``"stop"``; ``"length"``: the limit of tokens, or the end of the context, was reached; ``"context"``: the prompt
    leaves no room for a response, and ``error`` says so; ``"error"``."""
    policy_version: Versions
    """Version of the weights that sampled each token. One number stands for all tokens."""
    error: str | None = None
    """Why there is no completion, e.g. a server that failed. The episode is started again; the run continues."""
    experts: Parts = ()
    """Experts of each token of prompt and response but the last, from an engine that records experts."""

    @property
    def count(self) -> int:
        """Number of sampled tokens."""
        return len(self.token_ids)

    def __post_init__(self) -> None:
        ids = as_tokens(self.token_ids)
        versions = np.broadcast_to(np.asarray(self.policy_version, np.int64), ids.shape)
        object.__setattr__(self, "token_ids", ids)
        object.__setattr__(self, "logprobs", np.asarray(self.logprobs, np.float32))
        object.__setattr__(self, "policy_version", versions)


@dataclass(frozen=True, eq=False)
class ChatRequest:
    """Messages to be answered."""

    request_id: int
    """Differs from that of every other request on its way."""
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    """OpenAI's function schemas; ``None``: no tools."""
    sampling: Sampling
    """Its stop tokens and top-k mean nothing here."""
    session: int | None = None
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class ChatCompletion:
    """The answer to messages."""

    request_id: int
    answer: Answer
    finish_reason: str
    """As that of a :class:`Completion`; ``"error"``: there is no answer, through no fault of the model."""
    error: str | None = None
    """Why there is no answer."""
    tokens: int = 0
    """Tokens of the answer, as the endpoint counts them; 0 where it does not."""
    prompt_tokens: int = 0
    """Tokens of the messages, counted alike."""
    cached_tokens: int = 0
    """Those of them that the endpoint had computed before."""
    counted: bool = True
    """Whether the endpoint counts."""

    @property
    def count(self) -> int:
        """Number of tokens of the answer."""
        return self.tokens


RequestT = TypeVar("RequestT")
CompletionT = TypeVar("CompletionT")


class BaseEngine(ABC, Generic[RequestT, CompletionT]):
    """The part of an engine that the rollout manager uses, whether it takes tokens or messages."""

    takes_images: ClassVar[bool] = False
    """Whether requests may have images."""
    max_length: int | None = None
    """Most tokens of prompt and response together; ``None`` where the engine does not know."""
    policy_version: int = 0
    """Number of optimiser steps that the present weights have seen."""
    background: bool = False
    """Whether the engine works on requests between two polls, in servers or other processes."""
    stopped: str | None = None
    """Why no further request will be answered; the episodes that are left are then not played."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings before anything is loaded; an engine whose settings cannot be wrong has nothing to check.

        Args:
            options: Those that :meth:`from_setup` is called with; their names have been checked.

        Raises:
            ConfigError: They cannot work; the message names the setting.
        """
        return

    @classmethod
    def check_machine(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings that need what this machine lacks; a plan for other machines does not call this.

        Args:
            options: Those that :meth:`from_setup` is called with; :meth:`check` has seen them.

        Raises:
            ConfigError: Something is missing; the message names it, and the remedy.
        """
        return

    @classmethod
    def check_model(cls, options: Mapping[str, Any], settings: Any, path: str) -> None:
        """Refuses settings that contradict the model, before its weights are read.

        Args:
            options: Those that :meth:`from_setup` is called with; :meth:`check` has seen them.
            settings: The model's configuration.
            path: ``model.path``, for messages.

        Raises:
            ConfigError: A setting contradicts the model; the message names both.
        """
        return

    @classmethod
    def from_setup(cls, setup: Any, *args: Any, **options: Any) -> BaseEngine[RequestT, CompletionT]:
        """The engine of a run; ``options`` are the settings ``rollout.engine_options``."""
        raise NotImplementedError(f"{cls.__name__} cannot be chosen by name: it has no from_setup")

    @abstractmethod
    def submit(self, requests: Sequence[RequestT]) -> None:
        """Queue requests; returns at once. One that cannot be served is answered with an error by :meth:`poll`."""

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[CompletionT]:
        """Wait until at least one request is finished, and return all that are.

        Args:
            timeout: Seconds to wait at most; ``None`` for no limit. An engine that works only while it is polled does
                some work whatever the timeout.

        Returns:
            ``[]`` only if nothing is pending, or if the time was up.

        Raises:
            EngineFailed: The engine cannot go on.
        """

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of requests submitted and not yet returned."""

    def release(self, session: int) -> None:
        """Forget what is kept for ``session``."""

    def abandon(self, request_id: int, session: int | None) -> None:
        """Give up a request that was not answered in time; a later answer is ignored.

        The next request of the session should go to another server, if there is one.
        """

    def where(self, session: int | None) -> str:
        """Where the requests of a session are computed, for messages: the engine, or the server that has them."""
        return "the engine"

    def close(self) -> None:
        """End what the engine started. Does nothing the second time."""


class ChatEngine(BaseEngine[ChatRequest, ChatCompletion]):
    """Answers messages with a model that is not trained here: no tokens, no log-probabilities, no weights.

    For evaluation, baselines and demonstrations; training refuses it. :meth:`from_setup` is called with the number of
    requests at a time.
    """

    name: str
    """Name of the model."""
    most: int
    """Most requests at a time; more episodes at a time would only wait for each other."""

    def usage(self) -> dict[str, Any]:
        """Returns counts of requests and tokens so far, and their cost, for reports."""
        return {}
