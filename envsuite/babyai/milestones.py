"""Milestones of BabyAI: parts of the mission that are done, and objects carried that are to be put somewhere."""

from __future__ import annotations

from typing import Any, ClassVar

from minigrid.envs.babyai.core.verifier import PutNextInstr

from envsuite.babyai.env import BabyAI
from envsuite.babyai.tasks import ENV_ID
from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action


class BabyAIMilestones:
    """One for each part of the mission that is done, and one for each object to put next to another that is carried."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, BabyAI)
        parts = self._env.world.parts
        self._single = len(parts) == 1
        self._reached = self._now(False)
        self.count = len(parts) + sum(_description_to_move(part) is not None for part, *_ in parts) - len(self._reached)

    def _now(self, success: bool) -> set[tuple[str, int]]:
        world = self._env.world
        pickups = {
            ("carried", n)
            for n, (part, *_) in enumerate(world.parts)
            if _carries(_description_to_move(part), world.carrying)
        }
        parts = {0} if self._single and success else {*world.places_done()}
        return pickups | {("done", n) for n in parts}

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many more milestones have been reached."""
        more = self._now(info["success"]) - self._reached
        self._reached |= more
        return len(more)


def _carries(description: Any, carrying: Any) -> bool:
    return description is not None and any(candidate is carrying for candidate in description.obj_set)


def _description_to_move(part: Any) -> Any:
    """Returns the description of the object that an instruction wants to be put next to another, if it does."""
    return part.desc_move if isinstance(part, PutNextInstr) else None
