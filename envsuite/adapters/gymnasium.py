"""Environments of Gymnasium, such as FrozenLake-v1, in text: their actions are the arguments of a tool."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from envsuite.adapters.base import AdaptedEnv, SeedOptions, classes
from envsuite.core import Action, Outcome, Tool, ToolCall, unwrap_episode
from envsuite.core.boundary import number
from envsuite.core.errors import UsageError
from envsuite.core.options import option
from envsuite.core.schemas import object_schema

HORIZON = 100
"""Steps of environments that have no limit of their own."""
_EXPERT = "expert of "
_COLOURED = re.compile(r"\x1b\[[0-9;]*m([^\x1b]*)\x1b\[0m")


@dataclass(frozen=True, kw_only=True)
class GymnasiumOptions(SeedOptions):
    """Options of an environment of Gymnasium."""

    actions: Sequence[str] = option((), "names of discrete actions, in the order of their numbers; else the numbers")
    goal: str | None = option(None, "the instruction; else the first lines of the environment's docstring")
    settings: Mapping[str, Any] | None = option(None, "further arguments of gymnasium.make, e.g. {is_slippery: false}")


class GymnasiumText(AdaptedEnv):
    """An environment whose actions JSON can write; observations are its rendering as text, else their values.

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
        self._names = [*self.options.actions]
        if isinstance(space, Discrete):
            self._names = self._names or [str(int(space.start) + place) for place in range(int(space.n))]
            if (names := len(set(self._names))) != space.n:
                raise UsageError(f"gymnasium/{self.name} has {space.n} actions; actions names {names} of them")
            schema = object_schema({"action": {"enum": self._names, "description": "The action."}})
        elif self._names:
            raise UsageError(f"actions names discrete ones; those of gymnasium/{self.name} are {space}")
        else:
            form = schema_of(space)
            schema = form if isinstance(space, Dict) else object_schema({"action": form})
            if not form:
                raise UsageError(f"gymnasium/{self.name} has actions of {space}, which JSON cannot write")
        module = type(self._env.unwrapped).__module__
        if (file := vars(sys.modules[module]).get("__file__")) and not module.startswith("gymnasium."):
            self._version = sha256(Path(file).read_bytes()).hexdigest()[:12]
        description = (inspect.getdoc(self._env.unwrapped) or self.name).partition("\n\n")[0]
        self._shared_goal = self.options.goal or " ".join(description.split())
        return (Tool("act", "Takes an action.", schema),)

    def _open(self, seed: int) -> tuple[str, str]:
        observation, _ = self._env.reset(seed=seed)
        self._total = 0.0
        return self._shared_goal, self._render_text(observation)

    def expert_call(self) -> ToolCall:
        """Returns the call of the action that the method ``expert`` of the environment's class returns."""
        own: Any = self._env.unwrapped
        space, best = self._env.action_space, own.expert()
        if isinstance(space, Discrete):
            return ToolCall("act", {"action": self._names[int(best) - int(space.start)]})
        arguments = written_of(space, best)
        return ToolCall("act", arguments if isinstance(space, Dict) else {"action": arguments})

    def _render_text(self, observation: Any) -> str:
        if self._env.render_mode == "ansi":
            return _COLOURED.sub(r"[\1]", str(self._env.render())).strip("\n")
        return text_of(observation)

    def _call(self, call: ToolCall) -> Outcome:
        space, arguments = self._env.action_space, call.arguments
        if isinstance(space, Discrete):
            action: Any = int(space.start) + self._names.index(arguments["action"])
        else:
            action = value_of(space, arguments if isinstance(space, Dict) else arguments["action"])
        observation, raw_reward, ends, _, _ = self._env.step(action)
        reward = number(raw_reward, f"the reward of {self.name}")
        self._total += reward
        success, score = bool(ends) and reward > 0, min(max(self._total, 0.0), 1.0)
        return Outcome(self._render_text(observation), reward, bool(ends), success=success, score=score)


def parts_of(space: Space[Any]) -> list[Space[Any]] | None:
    """Returns the space of each place of a tuple or vector; nothing for another space."""
    match space:
        case Tuple():
            return [*space.spaces]
        case MultiDiscrete(nvec=nvec, start=start) if nvec.ndim == 1:
            return [Discrete(int(count), start=int(first)) for count, first in zip(nvec, start, strict=True)]
        case MultiBinary(shape=(count,)):
            return [Discrete(2)] * count
        case Box(shape=(_,), low=low, high=high):
            return [Box(*ends, (), space.dtype.type) for ends in zip(low, high, strict=True)]
    return None


def schema_of(space: Space[Any]) -> dict[str, Any]:
    """Returns the JSON Schema of the actions of a space; nothing where JSON cannot write them."""
    if isinstance(space, Dict):
        forms = {str(key): schema_of(part) for key, part in space.items()}
        return object_schema(forms) if all(forms.values()) else {}
    if isinstance(space, Discrete):
        first = int(space.start)
        return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
    if isinstance(space, Box) and space.shape == () and space.is_bounded():
        return {"type": "number", "minimum": float(space.low), "maximum": float(space.high)}
    if (parts := parts_of(space)) is None or not all(items := [schema_of(part) for part in parts]):
        return {}
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def value_of(space: Space[Any], written: Any) -> Any:
    """Returns the action of a space that fits its schema."""
    if isinstance(space, Dict):
        return {key: value_of(part, written[str(key)]) for key, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(value_of(part, value) for part, value in zip(space.spaces, written, strict=True))
    return np.asarray(written, space.dtype)[()]


def written_of(space: Space[Any], action: Any) -> Any:
    """Returns an action of a space as JSON, for which :func:`value_of` returns the action."""
    if isinstance(space, Dict):
        return {str(key): written_of(part, action[key]) for key, part in space.items()}
    if isinstance(space, Tuple):
        return [written_of(part, value) for part, value in zip(space.spaces, action, strict=True)]
    return np.asarray(action).tolist()


def text_of(observation: Any) -> str:
    """Returns an observation as text: one line for each key of a dictionary, numbers as short as they are exact."""
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {text_of(value)}" for key, value in observation.items())
    if isinstance(observation, tuple):
        return f"[{', '.join(map(text_of, observation))}]"
    if isinstance(observation, str):
        return observation
    return np.array2string(np.asarray(observation), separator=", ", threshold=sys.maxsize, floatmode="unique")


@dataclass(frozen=True)
class GymnasiumExpert:
    """Takes the actions that the method ``expert`` of an environment's class returns."""

    env_id: str

    def act(self, env: gymnasium.Env[Any, Any]) -> Action:
        """Returns the next action in the running episode of ``env``."""
        return (unwrap_episode(env, self.env_id, GymnasiumText).expert_call(),)


def players(name: str) -> dict[str, str]:
    """Returns the player ``expert`` of an environment whose class has a method of that name."""
    entry = gymnasium.spec(name).entry_point
    try:
        kind = load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, gymnasium.error.Error):
        return {}  # it cannot be made; who makes it is told why
    return {"expert": f"{__name__}:{_EXPERT}{name}"} if "expert" in dir(kind) else {}


def names() -> list[str]:
    """Returns the environments that Gymnasium has, without those of envsuite."""
    own = (name for name, spec in gymnasium.registry.items() if spec.entry_point != "envsuite.remote.making:make")
    return [name for name in own if "/" not in name]


_class_of = classes(GymnasiumText, names, lambda name: name in gymnasium.registry)


def __getattr__(name: str) -> Any:
    """Returns the class of an environment, or what makes its expert."""
    if name.startswith(_EXPERT):
        return partial(GymnasiumExpert, f"gymnasium/{name.removeprefix(_EXPERT)}")
    return _class_of(name)
