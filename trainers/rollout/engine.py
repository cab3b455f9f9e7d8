"""What turns prompts into tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from trainers.registry import Registry


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


@dataclass(frozen=True)
class Request:
    """One prompt to be continued."""

    request_id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    session: int | None = None
    """Requests of one session (an episode) often start with the tokens of the one before; an engine may keep what
    it computed for them until :meth:`Engine.release`."""
    seed: int | None = None
    """Makes the sample a function of prompt, weights and seed, whatever shares the batch."""


@dataclass(frozen=True)
class Completion:
    """What an engine answers."""

    request_id: int
    token_ids: tuple[int, ...]
    """The sampled tokens, the stop token included."""
    logprobs: tuple[float, ...]
    """Log-probability of each at temperature 1, under the weights that sampled it."""
    finish_reason: str
    """``"stop"`` or ``"length"``."""
    policy_version: int
    error: str | None = None
    """Why there is no completion (a server that failed); the episode then fails, the run goes on."""


class Engine(ABC):
    """Continues prompts, many at a time, each at its own pace."""

    policy_version: int = 0

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; returns at once."""

    @abstractmethod
    def poll(self) -> list[Completion]:
        """Work until at least one request is finished, and return what is; ``[]`` only if nothing is queued."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of requests submitted and not yet returned."""

    def release(self, session: int) -> None:  # noqa: B027  (an engine without a cache has nothing to release)
        """Forget what is kept for ``session``."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int | None = None
    ) -> list[Completion]:
        """Continue all ``prompts`` and return the completions in their order."""
        self.submit([
            Request(i, tuple(prompt), sampling, seed=None if seed is None else seed + i)
            for i, prompt in enumerate(prompts)
        ])  # fmt: skip
        done: dict[int, Completion] = {}
        while self.pending:
            done.update((completion.request_id, completion) for completion in self.poll())
        return [done[i] for i in range(len(prompts))]


ENGINES: Registry[Engine] = Registry("engine")
