"""PettingZoo's games of agents that take turns, such as classic.tictactoe_v3, in text.

A name is that of a module of PettingZoo, else of any module with ``env()``, as PettingZoo's have: ``mpe2.simple_v3``.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Text

from envsuite.adapters.base import AdaptedEnv, SeedOptions, classes, import_extra, propose_call
from envsuite.core import Action, Observation, Outcome, Tool, ToolCall
from envsuite.core.env import StepInfo
from envsuite.core.errors import MissingExtra, UsageError
from envsuite.core.options import option

HORIZON = 200
_FAMILIES = ("atari", "butterfly", "classic", "sisl")
_MARKS = ".12"


@dataclass(frozen=True, kw_only=True)
class PettingZooOptions(SeedOptions):
    """Options of a game of PettingZoo."""

    goal: str | None = option(None, "the instruction of all agents; else the name of the game")
    settings: Mapping[str, Any] | None = option(None, "arguments of the game's env(), e.g. {max_cycles: 10}")


class PettingZoo(AdaptedEnv):
    """A game whose agents take turns, with one space of actions for all: discrete ones, or texts.

    Observations are the game's rendering as text, else a board of ``1`` for the agent's own pieces and ``2`` for the
    other's, else values. Actions that its mask allows are admissible commands; others change nothing. Success and score
    are those of the first agent: it ends with more than 0 in all.
    """

    package = "pettingzoo"
    takes = PettingZooOptions

    def _prepare(self) -> tuple[Tool, ...]:
        family, settings = self.name.partition(".")[0], {**(self.options.settings or {})}
        own = (f"pettingzoo.{self.name}", f"'pettingzoo[{family}]'")
        module = import_extra(*(own if family in _FAMILIES else (self.name, family)))
        try:
            self._env = module.env(**settings)
            if "ansi" in self._env.metadata.get("render_modes", ()):
                self._env = module.env(**{"render_mode": "ansi", **settings})
        except ImportError as error:
            raise MissingExtra(f"pettingzoo/{self.name}: {error}") from error
        except (TypeError, ValueError, AssertionError) as error:
            raise UsageError(f"pettingzoo/{self.name} cannot be made with {settings}: {error}") from error
        self._session.callback(self._env.close)
        self.agents = dict.fromkeys(self._env.possible_agents, ("act",))
        self._space, *other_spaces = map(self._env.action_space, self.agents)
        alike, form = all(self._space == space for space in other_spaces), dict[str, Any]()
        if alike and isinstance(self._space, Discrete):
            first = int(self._space.start)
            form = {"type": "integer", "minimum": first, "maximum": first + int(self._space.n) - 1}
        elif alike and isinstance(self._space, Text):
            form = {"type": "string", "minLength": self._space.min_length, "maxLength": self._space.max_length}
        if not form:
            raise UsageError(f"pettingzoo/{self.name} has actions of {self._space}; this takes one Discrete or Text")
        schema = {"type": "object", "properties": {"action": form}, "required": ["action"]}
        return (Tool("act", "Takes an action.", {**schema, "additionalProperties": False}),)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._env.reset(seed=int(task_id.removeprefix("seed-")))
        self._totals, self._rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        return self.options.goal or f"Play {self.name}, each in turn.", self._turn_outcome()

    def _turn_outcome(self) -> Outcome:
        """Returns what the agent sees whose turn is next."""
        self._agent = self._env.agent_selection
        observation, mask = self._env.observe(self._agent), self._env.infos[self._agent].get("action_mask")
        if isinstance(observation, dict):
            observation, mask = observation.get("observation", observation), observation.get("action_mask", mask)
        first = int(self._space.start) if isinstance(self._space, Discrete) else 0
        self._allowed = [] if mask is None else [first + int(place) for place in np.flatnonzero(mask)]
        text = str(self._env.render()) if self._env.render_mode == "ansi" else _text_of(observation)
        return Outcome(f"You are {self._agent}.\n{text}", commands=tuple(map(str, self._allowed)))

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Takes the step of the agent whose turn it is; the reward is that of all agents together."""
        self._rewards = dict.fromkeys(self.agents, 0.0)
        return super().step(action)

    def _call(self, call: ToolCall) -> Outcome:
        action = call.arguments["action"]
        if action not in (self._allowed or self._space):
            problem = f"the action {action!r} is not possible now"
            return Outcome(f"{problem}.", error=problem, commands=tuple(map(str, self._allowed)))
        self._env.step(action)
        for agent, reward in self._env.rewards.items():
            self._rewards[agent] += float(reward)
            self._totals[agent] += float(reward)
        alive = [agent for agent in self._env.agents if not self._over(agent)]
        while alive and self._over(self._env.agent_selection):
            self._env.step(None)
        self._cut = not alive and not any(self._env.terminations.values())
        total, first = sum(self._rewards.values()), next(iter(self._totals.values()))
        score = min(max(first, 0.0), 1.0)
        return replace(self._turn_outcome(), reward=total, done=not alive, success=not alive and first > 0, score=score)

    def _over(self, agent: str) -> bool:
        return bool(self._env.terminations[agent] or self._env.truncations[agent])

    def _info(self, outcome: Outcome) -> StepInfo:
        return {**super()._info(outcome), "agent": self._agent, "rewards": dict(self._rewards)}

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        if self._allowed:
            return ToolCall("act", {"action": self._allowed[int(rng.integers(len(self._allowed)))]})
        return propose_call(self.tools, rng)


def _text_of(observation: Any) -> str:
    """Returns an observation as text: one of a board with a plane for each side as its squares."""
    array = np.asarray(observation)
    if isinstance(observation, str) or array.ndim != 3 or array.shape[-1] >= len(_MARKS) or array.sum(-1).max() > 1:
        return observation if isinstance(observation, str) else str(array.tolist())
    squares = (array * np.arange(1, array.shape[-1] + 1)).sum(-1)
    return "\n".join("".join(_MARKS[int(mark)] for mark in row) for row in squares)


def names() -> list[str]:
    """Returns the games of PettingZoo itself."""
    folder = import_extra("pettingzoo", PettingZoo.package).__path__[0]
    games = [f"{family}.{game.name}" for family in _FAMILIES for game in pkgutil.iter_modules([f"{folder}/{family}"])]
    return [name for name in games if re.search(r"_v\d+$", name)]


def _is_module(name: str) -> bool:
    first = name.partition(".")[0]
    return first not in _FAMILIES and find_spec(first) is not None


__getattr__ = classes(PettingZoo, names, _is_module)
