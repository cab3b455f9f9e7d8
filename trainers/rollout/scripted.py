"""The engine that needs no model: responses come from a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from envsuite.playing.engine import Completion, Request
from trainers.rollout.engine import Engine

if TYPE_CHECKING:
    from torch import Tensor


class ScriptedEngine(Engine):
    """Answers each request by calling a function: an expert, a random player, replayed text.

    Every log-probability is 0.0, since the answer is certain given its prompt. An answer
    longer than ``sampling.max_tokens`` is cut there, with finish reason ``"length"``; any other stops by itself.
    """

    def __init__(self, answer: Callable[[Request], Sequence[int]]) -> None:
        """Let ``answer`` map a request to the token ids of its response, the stop token included."""
        self.answer = answer
        self._waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self._waiting.extend(requests)

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Answer everything that is queued, in the order of submission."""
        requests, self._waiting = self._waiting, []
        return [self._complete(request) for request in requests]

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return len(self._waiting)

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Answers are marked with ``version`` from now on."""
        self.policy_version = version

    def _complete(self, request: Request) -> Completion:
        ids = self.answer(request)
        response = ids[: request.sampling.max_tokens]
        reason = "stop" if len(response) == len(ids) else "length"
        versions = np.full(len(response), self.policy_version, np.int64)
        return Completion(
            request.request_id, np.array(response, np.int32), np.zeros(len(response), np.float32), reason, versions
        )
