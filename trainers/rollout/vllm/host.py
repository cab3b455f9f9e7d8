"""One vLLM with a copy of the weights, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envsuite.playing.engine import EngineFailed, Sampling

Sleeping = Literal["weights", "kv_cache"]
"""Memory that sleep gives back, in vLLM's words."""


class VLLMRefused(Exception):
    """Raised for an answer that the same call would get again; vLLM itself works.

    Args:
        status: HTTP status; 400 where the call makes no sense to it.
        message: What vLLM said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HostGone(EngineFailed):
    """Raised where a vLLM does not answer any more, or has lost its weights; others can go on without it."""


@dataclass(frozen=True)
class VLLMAnswer:
    """The tokens that were sampled for one prompt."""

    ids: list[int]
    logprobs: list[float]
    reason: str
    """``"stop"``, ``"length"``, or ``"abort"`` where it was cut off."""


class VLLMHost(ABC):
    """One vLLM: a server, or one inside this process.

    Each call raises :class:`EngineFailed` where vLLM cannot go on, and :class:`VLLMRefused` where it declines.

    Args:
        name: For messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = ""
        """Name under which it has its model, or the adapter that it was given last."""
        self.adapter = ""
        """Name of that adapter; empty where it has none."""
        self.version: str | None = None
        """Version of the weights that it was given last."""
        self.workers = 1
        """Workers, each of which has a part of the weights."""
        self.replicas = 1
        """Copies of the weights, each with so many workers (vLLM's data parallelism)."""

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """Calls a method of the trainer's worker extension; returns the answer of each worker.

        Raises:
            EngineFailed: There is no such method, or it says that it failed.
        """

    @abstractmethod
    def learn_model(self) -> int:
        """Learns the name of its model; returns the most tokens of a sequence that it takes."""

    def count_replicas(self) -> int:
        """Copies of the weights that it has."""
        return 1

    @abstractmethod
    def ask(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, replica: int | None = None
    ) -> list[VLLMAnswer]:
        """Continues prompts, in any replica or the given one, and waits for all of them."""

    @abstractmethod
    def pause(self) -> None:
        """Cuts off all requests, drops what was computed, and samples nothing until :meth:`resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Samples again."""

    @abstractmethod
    def sleep(self, level: int) -> None:
        """Gives back the memory of keys and values, and of weights: 1 keeps those outside the device, 2 drops them."""

    @abstractmethod
    def wake_up(self, what: Sleeping) -> None:
        """Takes the memory of weights, or of keys and values, again; samples once it has both."""

    @abstractmethod
    def put_adapter(self, name: str, folder: Path) -> None:
        """Loads the adapter in ``folder`` in place of :attr:`adapter`."""

    @abstractmethod
    def close(self) -> None:
        """Ends what was started for it."""

    def loss(self, reason: str) -> HostGone:
        """The error that ends the run unless there are others."""
        return HostGone(f"{self.name}: {reason}")

    def failure(self, reason: str) -> EngineFailed:
        """The error that ends the run."""
        return EngineFailed(f"{self.name}: {reason}")
