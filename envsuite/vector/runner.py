"""Environments by slot, and calls on them that never raise: for this process and for workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from envsuite.core.boundary import number, reason
from envsuite.core.env import Observation, ToolEnv
from envsuite.core.tools import Action, Tool
from envsuite.vector.base import Description, EnvFactory, VectorEvent, VectorSnapshot, failure

log = logging.getLogger("envsuite.vector")


class CallRunner:
    """Holds the environments of some slots; each is made on first use and kept for later episodes.

    Args:
        factories: The environments.
        snapshots: Answer with a snapshot where the episode goes on.
    """

    def __init__(self, factories: Sequence[EnvFactory], snapshots: bool = False) -> None:
        self.factories = factories
        self.snapshots = snapshots
        self._envs: dict[tuple[int, int], gymnasium.Env[Observation, Action]] = {}
        self._current: dict[int, int] = {}

    def describe(self, env: int) -> Description | str:
        """Returns the description of environment ``env``, or why it cannot be made."""
        try:
            world = self._envs.setdefault((0, env), self.factories[env].make()).unwrapped
            if not isinstance(world, ToolEnv):
                return f"TypeError: {type(world).__name__} is not an envsuite.core.ToolEnv"
            if self.snapshots and not world.restorable:
                return f"UsageError: {type(world).__name__} cannot be snapshot"
            # Copied, as a tool that has validated something holds a validator, which cannot be pickled.
            tools = tuple(Tool(tool.name, tool.description, dict(tool.parameters)) for tool in world.tools)
            return Description(tools, world.max_calls, dict(world.agents))
        except Exception as error:  # a bug in one world must not end the worker of the others
            return reason(error)

    def reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> VectorEvent:
        """Starts an episode."""
        try:
            if (slot, env) not in self._envs:
                self._envs[slot, env] = self.factories[env].make()
            self._current[slot] = env
            options = None if task_id is None else {"task_id": task_id}
            observation, info = self._envs[slot, env].reset(seed=seed, options=options)
            return VectorEvent(slot, observation, 0.0, False, False, info, None, self._snapshot(slot, info))  # type: ignore[arg-type]
        except Exception as error:  # a bug in one world must not end the episodes of the others
            self.drop(slot, env)
            return failure(slot, reason(error))

    def restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> VectorEvent:
        """Starts an episode where ``snapshot`` was taken."""
        try:
            if (slot, env) not in self._envs:  # wrappers want a reset before the first step
                event = self.reset(slot, env, snapshot.info["task_id"], None)
                if event.error is not None:
                    return event
            self._current[slot] = env
            world: Any = self._envs[slot, env].unwrapped
            observation = world.restore(snapshot.world)
            limit: Any = _limit(self._envs[slot, env])
            if limit is not None:
                limit._elapsed_steps = snapshot.elapsed
            info: Any = dict(snapshot.info)
            return VectorEvent(slot, observation, 0.0, False, False, info, None, snapshot if self.snapshots else None)
        except Exception as error:  # as above
            self.drop(slot, env)
            return failure(slot, reason(error))

    def step(self, slot: int, action: Action) -> VectorEvent:
        """Takes a step."""
        env = self._current[slot]
        try:
            observation, reward, terminated, truncated, info = self._envs[slot, env].step(action)
            snapshot = None if terminated or truncated else self._snapshot(slot, info)
            return VectorEvent(slot, observation, number(reward, "reward"), terminated, truncated, info, None, snapshot)  # type: ignore[arg-type]
        except Exception as error:  # as above
            self.drop(slot, env)
            return failure(slot, reason(error))

    def _snapshot(self, slot: int, info: Any) -> VectorSnapshot | None:
        """Returns the state of the slot's episode, where snapshots are taken."""
        if not self.snapshots:
            return None
        env = self._envs[slot, self._current[slot]]
        world, limit = env.unwrapped, _limit(env)
        assert isinstance(world, ToolEnv)
        steps = 0 if limit is None else limit._elapsed_steps or 0
        return VectorSnapshot(world.snapshot(), dict(info), steps)  # type: ignore[arg-type]

    def close(self) -> None:
        """Closes every environment."""
        for slot, env in list(self._envs):
            self.drop(slot, env)

    def drop(self, slot: int, env: int) -> None:
        """Drops an environment whose state cannot be trusted any more."""
        world = self._envs.pop((slot, env), None)
        try:
            if world is not None:
                world.close()
        except Exception:  # it has failed before, or is not needed any more
            log.warning("closing %s failed", type(world).__name__, exc_info=True)


def _limit(env: gymnasium.Env[Observation, Action]) -> TimeLimit[Observation, Action] | None:
    """Returns the wrapper that counts the steps of an episode, if there is one."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None
