"""errand: an engine without a model, which answers each prompt as a saved episode did."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envsuite.playing.engine import Completion, Request
from envsuite.playing.step import Step
from trainers.rollout.engine import Engine, EngineSetup
from trainers.steps.parquet import read_episodes


class Errand(Engine):
    """Answers the prompts of an episode with the tokens, log-probabilities and versions that were saved for them."""

    def __init__(self, steps: dict[tuple[int, bytes], Step]) -> None:
        self.steps = steps
        self.waiting: list[Request] = []

    @classmethod
    def from_setup(cls, setup: EngineSetup, *, episodes: str) -> "Errand":
        """Makes the engine; the setting ``rollout.engine_options: {episodes: FILE}`` names the file of episodes."""
        pairs = ((episode.episode_id, step) for episode in read_episodes(Path(episodes)) for step in episode.steps)
        return cls({(number, step.prompt_ids.tobytes()): step for number, step in pairs})

    def submit(self, requests: Sequence[Request]) -> None:
        """Takes requests, without waiting for an answer."""
        self.waiting += requests

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Returns the answers that are there."""
        requests, self.waiting = self.waiting, []
        return [self.answer(request) for request in requests]

    @property
    def pending(self) -> int:
        """Number of requests without an answer."""
        return len(self.waiting)

    def sync(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Takes new weights; here nothing is computed with them."""
        self.policy_version = version

    def answer(self, request: Request) -> Completion:
        """Returns the saved answer, or an error: the episode is started again, fails, and the run goes on."""
        assert request.session is not None  # the episode
        step = self.steps.get((request.session, request.prompt_ids.tobytes()))
        if step is None:
            return Completion(request.request_id, [], [], "error", [], error="the prompt is in no saved episode")
        return Completion(
            request.request_id, step.response_ids, step.response_logprobs, step.finish_reason, step.policy_version
        )
