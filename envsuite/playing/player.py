"""Environments that are played where they are: the worker that holds one asks its player, too.

So an expert that looks into the state of a world needs no message, and a player that crashes or hangs is noticed as an
environment is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.core.env import Observation
from envsuite.core.errors import UsageError
from envsuite.core.players import Player
from envsuite.core.tools import Action
from envsuite.playing.dialog import NO_TOKENS, Dialog
from envsuite.playing.engine import ChatCompletion, ChatEngine, ChatRequest, Sampling
from envsuite.prompting import Answer, ParseResult
from envsuite.remote.making import make_player
from envsuite.vector import EnvFactory

RANDOM = "random"
"""Name of the player that draws its actions."""
GAVE_UP = "gave_up"
"""Metric of an episode that the player left, e.g. an expert that has found no way."""


class RandomPlayer:
    """Draws actions from the action space.

    Args:
        key: Everything that the draws follow from.
        env: The environment, whose action space is seeded.
    """

    def __init__(self, key: str, env: gymnasium.Env[Any, Action]) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
        env.action_space.seed(int.from_bytes(digest, "little"))

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns an action that fits a tool's schema."""
        return env.action_space.sample()


class PlayedEnv(gymnasium.Wrapper[Observation, Action, Observation, Action]):
    """Asks a player for the action of each step, whatever the one that it is given.

    Each episode has a new player. One that gives up ends the episode there, as truncated.

    Args:
        env: The environment.
        player: Name of the player.
    """

    def __init__(self, env: gymnasium.Env[Observation, Action], player: str) -> None:
        super().__init__(env)
        self._name = player
        self._player: Player | None = None
        self._seen: tuple[Observation, dict[str, Any]] | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts the episode of ``options["task_id"]``; ``seed`` is the player's."""
        task = (options or {}).get("task_id")
        self._seen = self.env.reset(options=dict(options or {}))
        if self._name == RANDOM:
            self._player = RandomPlayer(f"{task}/{seed}", self.env)
        else:
            assert self.env.spec is not None
            self._player = make_player(self.env.spec.id, self._name)
        return self._seen

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes the player's step."""
        assert self._player is not None and self._seen is not None
        try:
            player_action = self._player.act(self.env)
        except UsageError:
            observation, info = self._seen
            metrics = {**info["metrics"], GAVE_UP: 1.0}
            return observation, 0.0, False, True, {**info, "metrics": metrics}
        observation, reward, terminated, truncated, info = self.env.step(player_action)
        self._seen = observation, info
        return observation, float(reward), terminated, truncated, info


@dataclass(frozen=True)
class PlayedFactory(EnvFactory):
    """Makes an environment with its player, in any process."""

    player: str = RANDOM

    def make(self) -> gymnasium.Env[Observation, Action]:
        """Makes a new environment with its player."""
        return PlayedEnv(super().make(), self.player)


class PlayerEngine(ChatEngine):
    """Answers every request at once with an empty text, because the environments have their player.

    Args:
        slots: Most requests at a time.
    """

    name = "player"

    def __init__(self, slots: int) -> None:
        self.most = slots
        self._requests: list[ChatRequest] = []

    def submit(self, requests: Sequence[ChatRequest]) -> None:
        """Queue requests."""
        self._requests += requests

    def poll(self, timeout: float | None = None) -> list[ChatCompletion]:
        """Returns an answer to each request."""
        requests, self._requests = self._requests, []
        return [ChatCompletion(request.request_id, Answer(""), "stop") for request in requests]

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return len(self._requests)


class PlayerDialog(Dialog):
    """The dialog of an episode whose environment has its player: it says nothing."""

    def ask(self, observation: Observation) -> None:
        """The player sees the environment itself."""

    def request(self, number: int, sampling: Sampling, session: int, seed: int) -> ChatRequest:
        """Returns a request without messages."""
        return ChatRequest(number, (), None, sampling, session, seed)

    def read(self, completion: ChatCompletion) -> ParseResult:
        """Returns an action without calls, which the environment does not read."""
        return ParseResult((), None)

    def columns(self) -> dict[str, Any]:
        """Returns fields without text."""
        return {**NO_TOKENS, "finish_reason": "stop"}
