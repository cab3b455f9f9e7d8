"""Requests on their way, which may outlast the weights that they began with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from envsuite.playing.engine import Completion, Sampling
from trainers.rollout.engine import RequestRow
from trainers.rollout.sampling import mix
from trainers.rollout.vllm.host import VLLMAnswer, VLLMHost

H = TypeVar("H", bound=VLLMHost)
_SEED_BITS = 63


@dataclass
class VLLMRow(RequestRow, Generic[H]):
    """A request on its way to a vLLM."""

    host: H

    def remaining(self) -> tuple[list[int], Sampling, int]:
        """Prompt, sampling and seed of what is still to be sampled."""
        sampling = replace(self.request.sampling, max_tokens=self.limit - len(self.ids))
        seed = mix(self.seed, len(self.ids)) % (1 << _SEED_BITS)
        return [*self.request.prompt_ids.tolist(), *self.ids], sampling, seed

    def add(self, answer: VLLMAnswer, version: int) -> None:
        """Appends tokens that weights of ``version`` sampled."""
        self.ids += answer.ids
        self.logprobs += answer.logprobs
        self.versions += [version] * len(answer.ids)

    @property
    def full(self) -> bool:
        """Whether it has all tokens that it may have."""
        return len(self.ids) >= self.limit


class VLLMRows(ABC, Generic[H]):
    """Has vLLM complete rows."""

    version = 0
    """Version of the weights that sample; changes only between :meth:`hold` and :meth:`go_on`."""

    @abstractmethod
    def submit(self, row: VLLMRow[H]) -> None:
        """Queues a row."""

    @abstractmethod
    def finish(self, completion: Completion) -> None:
        """Queues the answer to a request that vLLM is not asked."""

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Completion]:
        """Waits for an answer, ``timeout`` seconds at most; returns all that there are.

        Raises:
            EngineFailed: vLLM cannot go on.
        """

    @abstractmethod
    def hold(self) -> None:
        """Cuts off rows on their way, and has vLLM drop what it computed; no row goes on before :meth:`go_on`.

        Raises:
            EngineFailed: vLLM does not cut them off.
        """

    @abstractmethod
    def go_on(self) -> None:
        """Lets rows go on, from the tokens that they have."""

    @abstractmethod
    def close(self) -> None:
        """Ends what completes rows."""
