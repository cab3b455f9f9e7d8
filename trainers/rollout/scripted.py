"""The engine that needs no model: responses come from a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainers.rollout.engine import ENGINES, Completion, Engine, Request


@ENGINES.register("scripted")
class ScriptedEngine(Engine):
    """Answers each request with what a function says: an expert, a random player, replayed text.

    Every log-probability is 0.0, since the answer is certain given its prompt. What is longer than
    ``sampling.max_tokens`` is cut there, with finish reason ``"length"``; everything else stops by itself.
    """

    def __init__(self, answer: Callable[[Request], Sequence[int]]) -> None:
        """Let ``answer`` map a request to the token ids of its response, the stop token included."""
        self.answer = answer
        self.policy_version = 0
        self._waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self._waiting.extend(requests)

    def poll(self) -> list[Completion]:
        """Answer everything that is queued, in the order of submission."""
        requests, self._waiting = self._waiting, []
        return [self._complete(request) for request in requests]

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return len(self._waiting)

    def _complete(self, request: Request) -> Completion:
        ids = tuple(self.answer(request))
        kept = ids[: request.sampling.max_tokens]
        reason = "stop" if len(kept) == len(ids) else "length"
        return Completion(request.request_id, kept, (0.0,) * len(kept), reason, self.policy_version)
