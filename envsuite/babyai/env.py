"""``BabyAI-v0``: missions in worlds of rooms, as an environment of tool calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from envsuite.babyai import text
from envsuite.babyai.tasks import BUILTIN, ENV_ID, parse_task_id
from envsuite.babyai.world import COMMANDS, LEVELS, VERSION, BabyAIWorld
from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.errors import unknown
from envsuite.core.options import EnvOptions, option
from envsuite.core.players import require_episode
from envsuite.core.tasks import MOST_NUMBERED, number_tasks
from envsuite.core.tools import Action, Tool, ToolCall

VIEWS = {"agent": text.describe_view, "full": text.full}


@dataclass(frozen=True, kw_only=True)
class BabyAIOptions(EnvOptions):
    """The options of ``BabyAI-v0``."""

    env_id: ClassVar[str] = ENV_ID
    level: str = option("GoToLocal", "name of a level of BabyAI: minigrid's BabyAI-NAME-v0", maxLength=100)
    view: str = option(
        "agent", '"agent": what is in its field of view; "full": everything, with positions', enum=tuple(VIEWS)
    )
    source: str = option(
        "builtin", '"builtin" (seeds 0 to 1299), or "generated" (seeds that follow from world_seed)',
        enum=("builtin", "generated"),
    )  # fmt: skip
    world_seed: int = option(0, "seed of the generated worlds", minimum=0, maximum=2**63 - 1)
    worlds: int = option(
        1000, "number of generated worlds", minimum=1, maximum=MOST_NUMBERED, clients={"maximum": 100_000}
    )


class BabyAI(ToolEnv):
    """Missions in worlds of rooms, doors, keys, balls and boxes; reward 1 when the mission is done, which ends it.

    An episode is truncated after as many steps as minigrid gives its world.

    Args:
        given: Values of :class:`BabyAIOptions`.
    """

    tools = (Tool.of_string("act", text.TOOL, "command", text.COMMAND, COMMANDS),)
    takes = BabyAIOptions

    def __init__(self, **given: Any) -> None:
        options = BabyAIOptions.of(given)
        if options.level not in LEVELS:
            raise unknown(f"level of {ENV_ID}", options.level, LEVELS)
        generated = (options.world_seed, options.worlds) if options.source == "generated" else None
        task_set = number_tasks(ENV_ID, VERSION, options.level, BUILTIN, generated)
        self._show = VIEWS[options.view]
        super().__init__(task_set.select(options.tasks), options.split, options.render_mode)
        self._world: BabyAIWorld | None = None
        self._steps = 0
        self._shown = ""

    @property
    def world(self) -> BabyAIWorld:
        """The world of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._world, ENV_ID)

    def _goal(self, task_id: str) -> str:
        return text.task(BabyAIWorld(*parse_task_id(task_id)).mission)

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns level and seed, which determine minigrid's world, and a SHA-256 of mission and world in words."""
        level, seed = parse_task_id(task_id)
        world = BabyAIWorld(level, seed)
        description = f"{world.mission}\n{text.full(world)}".encode()
        return {"level": level, "seed": seed, "world_sha256": hashlib.sha256(description).hexdigest()}

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._world, self._steps = BabyAIWorld(*parse_task_id(task_id)), 0
        return text.task(self._world.mission), Outcome("", commands=self._world.possible())

    def _call(self, call: ToolCall) -> Outcome:
        world = self.world
        error = world.do(call.arguments["command"])
        won = world.reward > 0
        return Outcome(
            text=error or (text.DONE if won else text.FAILED if world.over else ""),
            reward=float(won),
            done=world.over,
            error=error,
            commands=() if world.over else world.possible(),
            success=won,
            score=float(won),
        )

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Takes a step as :meth:`ToolEnv.step`; from the last one that minigrid gives the world on it is truncated."""
        observation, reward, terminated, _, info = super().step(action)
        self._steps += 1
        return observation, reward, terminated, not terminated and self._steps >= self.world.max_steps, info

    def _observe(self, outcome: Outcome) -> Observation:
        """Writes the view after what the step said."""
        self._shown = self._show(self.world)
        content = "\n".join(filter(None, (outcome.text, self._shown)))
        self._last = Observation(task=self._instruction, text=content, commands=outcome.commands)
        return self._last

    def _state_key(self) -> str:
        return self._shown

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("act", {"command": COMMANDS[int(rng.integers(len(COMMANDS)))]})

    def _save(self) -> dict[str, Any]:
        return {"played": [*self.world.played], "steps": self._steps}

    def _resume(self, task_id: str, world: dict[str, Any]) -> None:
        new_world = BabyAIWorld(*parse_task_id(task_id))
        new_world.replay(world["played"])
        self._world, self._steps = new_world, world["steps"]
