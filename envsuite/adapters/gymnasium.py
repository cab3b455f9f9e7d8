"""Gymnasium's own environments with discrete actions, such as FrozenLake-v1, in text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from envsuite.adapters.base import AdaptedEnv, SeedOptions, classes
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.boundary import number
from envsuite.core.errors import UsageError
from envsuite.core.options import option

HORIZON = 100
"""Steps of environments that have no limit of their own."""
_COLOURED = re.compile(r"\x1b\[[0-9;]*m([^\x1b]*)\x1b\[0m")


@dataclass(frozen=True, kw_only=True)
class GymnasiumOptions(SeedOptions):
    """Options of an environment of Gymnasium."""

    actions: Sequence[str] = option((), "names of the actions, in the order of their numbers; else the numbers")
    goal: str | None = option(None, "the instruction; else the first lines of the environment's docstring")
    settings: Mapping[str, Any] | None = option(None, "further arguments of gymnasium.make, e.g. {is_slippery: false}")


class GymnasiumText(AdaptedEnv):
    """An environment whose actions are discrete; observations are its rendering as text, else their values.

    The reward is the environment's; an episode that ends with a positive one is a success.
    """

    package = "gymnasium"
    takes = GymnasiumOptions

    def _prepare(self) -> tuple[Tool, ...]:
        entry = gymnasium.spec(self.name).entry_point
        kind = load_env_creator(entry) if isinstance(entry, str) else entry
        render_modes = kind.metadata.get("render_modes", ()) if isinstance(kind, type) else ()
        mode = {"render_mode": "ansi"} if "ansi" in render_modes else {}
        self._env = gymnasium.make(
            self.name, max_episode_steps=-1, disable_env_checker=True, **mode, **(self.options.settings or {})
        )
        self._session.callback(self._env.close)
        space = self._env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise UsageError(f"gymnasium/{self.name} has actions of {space}; this takes Discrete ones only")
        count = int(space.n)
        self._names = [*self.options.actions] or [str(int(space.start) + place) for place in range(count)]
        if (names := len(set(self._names))) != count:
            raise UsageError(f"gymnasium/{self.name} has {count} actions; actions names {names} of them")
        form = {"enum": self._names, "description": "The action."}
        schema = {"type": "object", "properties": {"action": form}, "required": ["action"]}
        description = (inspect.getdoc(self._env.unwrapped) or self.name).partition("\n\n")[0]
        self._goal = self.options.goal or " ".join(description.split())
        return (Tool("act", "Takes an action.", {**schema, "additionalProperties": False}),)

    def _open(self, seed: int) -> tuple[str, str]:
        observation, _ = self._env.reset(seed=seed)
        self._total = 0.0
        return self._goal, self._render_text(observation)

    def _render_text(self, observation: Any) -> str:
        if self._env.render_mode != "ansi":
            return observation if isinstance(observation, str) else str(np.asarray(observation).tolist())
        return _COLOURED.sub(r"[\1]", str(self._env.render())).strip("\n")

    def _call(self, call: ToolCall) -> Outcome:
        space: Any = self._env.action_space
        action = int(space.start) + self._names.index(call.arguments["action"])
        observation, raw_reward, ends, _, _ = self._env.step(action)
        reward = number(raw_reward, f"the reward of {self.name}")
        self._total += reward
        success, score = bool(ends) and reward > 0, min(max(self._total, 0.0), 1.0)
        return Outcome(self._render_text(observation), reward, bool(ends), success=success, score=score)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("act", {"action": self._names[int(rng.integers(len(self._names)))]})


def names() -> list[str]:
    """Returns the environments that Gymnasium has, without those of envsuite."""
    own = (name for name, spec in gymnasium.registry.items() if spec.entry_point != "envsuite.remote.making:make")
    return [name for name in own if "/" not in name]


__getattr__ = classes(GymnasiumText, names)
