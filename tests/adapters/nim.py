"""A game of PettingZoo: two agents take one to three sticks by turns; the last one wins, after three turns nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Text
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector


class Nim(AECEnv[str, Any, Any]):  # type: ignore[misc]
    metadata = {"name": "nim", "render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self, words: bool = False, patience: int = 3) -> None:
        super().__init__()
        self.possible_agents = ["first", "second"]
        self.words, self.patience = words, patience

    def action_space(self, agent: str) -> Any:
        return Text(max_length=3, charset="I") if self.words else Discrete(3, start=1)

    def observation_space(self, agent: str) -> Any:
        return Text(20)

    def observe(self, agent: str) -> str:
        return f"sticks {self.left}"

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.left, self.turns, self.agents = 4 + (seed or 0) % 4, 0, self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self._selector = AgentSelector(self.agents)
        self.agent_selection = self._selector.next()
        self._tell()

    def _tell(self) -> None:
        mask = np.arange(1, 4) <= self.left
        self.infos = {agent: {} if self.words else {"action_mask": mask} for agent in self.possible_agents}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.left -= min(len(action) if self.words else int(action), self.left)
        self.turns += 1
        won = self.left == 0
        self.rewards = {agent: float(won) if agent == self.agent_selection else -float(won) for agent in self.agents}
        self.terminations = dict.fromkeys(self.agents, won)
        self.truncations = dict.fromkeys(self.agents, not won and self.turns >= self.patience)
        self._tell()
        self.agent_selection = self._selector.next()


env = Nim
