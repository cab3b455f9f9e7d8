"""Environments of several agents as PettingZoo has them. Needs pettingzoo (extra ``agents``).

    from envsuite.core.agents import aec_env, parallel_env

    env = aec_env("PaperSearchTeam-v0")
    env.reset(seed=0)
    for agent in env.agent_iter():
        observation, reward, termination, truncation, info = env.last()
        env.step(None if termination or truncation else env.action_space(agent).sample())

The same environment, made by ``gymnasium.make``, is played by the rollout manager and by servers: its info names the
agent whose turn is next.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from envsuite.core.env import Observation, ToolEnv
from envsuite.core.errors import UsageError, require_extra
from envsuite.core.spaces import ToolCalls
from envsuite.core.tools import Action, ToolCall

with require_extra("envsuite.core.agents needs PettingZoo", "agents"):
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

_DRAWS = 100
"""Draws of a random call until it is one of the agent's tools."""


def aec_env(env_id: str, **arguments: Any) -> TurnEnv:
    """Returns an environment of several agents, one acting after the other.

    Args:
        env_id: Its id, e.g. ``"PaperSearchTeam-v0"``.
        arguments: Those of ``gymnasium.make``, e.g. ``split`` or ``url``.

    Raises:
        UsageError: It is an environment of one agent.
        EnvsuiteError: As ``gymnasium.make``.
    """
    return TurnEnv(gymnasium.make(env_id, disable_env_checker=True, **arguments))


def parallel_env(env_id: str, **arguments: Any) -> ParallelEnv[str, Observation, Action]:
    """Returns the same environment for agents that are asked all at once; only the one whose turn it is is heard.

    Raises:
        UsageError, EnvsuiteError: As :func:`aec_env`.
    """
    return turn_based_aec_to_parallel(aec_env(env_id, **arguments))


class TurnEnv(AECEnv[str, Observation, Action]):  # type: ignore[misc]
    """A :class:`~envsuite.core.ToolEnv` of several agents as an AEC environment.

    Args:
        env: The environment, in any wrappers.

    Raises:
        UsageError: It is an environment of one agent.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        world = env.unwrapped
        if not isinstance(world, ToolEnv) or not world.agents:
            raise UsageError(f"{type(world).__name__} is an environment of one agent")
        super().__init__()
        self.env, self.world = env, world
        name = world.tasks.env_id
        self.metadata = {"name": name, "render_modes": ["ansi"], "is_parallelizable": True, "render_fps": 1}
        self.render_mode = world.render_mode
        self.possible_agents = list(world.agents)
        self.agents: list[str] = []
        self._spaces = {agent: self._space(agent) for agent in world.agents}
        self._seen: dict[str, Observation] = {}

    def _space(self, agent: str) -> ToolCalls:
        names = self.world.agents[agent]
        tools = [tool for tool in self.world.tools if tool.name in names]

        def propose(rng: np.random.Generator) -> ToolCall:
            for _ in range(_DRAWS):
                call = self.world._propose(rng)
                if call.name in names:
                    return call
            raise UsageError(f"{type(self.world).__name__} proposes no call of {agent}'s tools")

        return ToolCalls(tools, self.world.max_calls, propose)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Returns the space of an agent's observations, the same for all."""
        return self.world.observation_space

    def action_space(self, agent: str) -> ToolCalls:
        """Returns the space of the calls of an agent's tools."""
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode: as :meth:`ToolEnv.reset`; of the options, others than ``task_id`` are ignored."""
        task_options = {name: value for name, value in (options or {}).items() if name == "task_id"}
        observation, info = self.env.reset(seed=seed, options=task_options)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: dict(info) for agent in self.agents}
        self._seen = dict.fromkeys(self.agents, observation)
        self.agent_selection: str = info["agent"]

    def observe(self, agent: str) -> Observation:
        """Returns what an agent saw last: of the one whose turn it is, the world as it is now."""
        return self._seen[agent]

    def step(self, action: Action | None) -> None:
        """Takes a step of the agent whose turn it is: as :meth:`ToolEnv.step`.

        Args:
            action: Its action; ``None`` of an agent whose episode has ended.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        observation, _, terminated, truncated, info = self.env.step(action)
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict(info["rewards"])
        self.terminations = dict.fromkeys(self.agents, terminated)
        self.truncations = dict.fromkeys(self.agents, truncated)
        self.infos = {name: dict(info) for name in self.agents}
        self.agent_selection = info["agent"]
        self._seen[self.agent_selection] = observation
        self._accumulate_rewards()

    def render(self) -> str | None:
        """Returns task and text as :meth:`ToolEnv.render`."""
        return self.world.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()
