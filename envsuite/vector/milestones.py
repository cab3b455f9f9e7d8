"""Environments that say when an agent reaches a milestone of its task.

Milestones are what an expert knows of a task: they are for training, and nothing of them is in an observation.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from threading import Lock
from typing import Any, ClassVar, Literal, Protocol

import gymnasium

from envsuite.core import Action, Observation, ToolEnv
from envsuite.core.env import StepInfo
from envsuite.core.errors import UsageError
from envsuite.core.naming import spec_of
from envsuite.core.registration import ENVIRONMENTS
from envsuite.remote.making import make_player
from envsuite.vector import EnvFactory


class Milestones(Protocol):
    """Follows one episode; each milestone counts once, when it is reached for the first time.

    Args:
        env: The environment, after the reset that began the episode.

    Raises:
        UsageError: ``env`` is another environment, or is on a server although its state is needed.
    """

    from_observations: ClassVar[bool]
    """Whether observations are enough, so that the environment may be on a server."""

    def __init__(self, env: ToolEnv) -> None: ...

    @property
    def count(self) -> int:
        """Number of milestones of the task; 0 where the way to its solution is not known."""
        ...

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many further milestones the step reached that was just taken.

        Args:
            action: The action of the step.
            info: The info that the step returned.
        """
        ...


Kind = Literal["world", "expert"]
REACHED = "milestone"
"""Key of an info: whether the step reached a milestone."""
TOTAL, UNGUIDED = "milestones", "unguided"
"""Metrics of an info: milestones reached so far; 1 where the task has none, 0 where it has."""
MOST_STEPS = 500
"""Steps after which an expert without a limit of its own has failed."""


def milestones_of(env_id: str) -> type[Milestones]:
    """Returns the milestones of the environment's world.

    Raises:
        UnknownName: There is no such environment.
        UsageError: It has none.
    """
    if not (entry := spec_of(env_id).milestones):
        names = ", ".join(name for name, spec in ENVIRONMENTS.items() if spec.milestones)
        raise UsageError(f"{env_id} has no milestones of its world; environments that have: {names}")
    module, _, name = entry.partition(":")
    milestones: type[Milestones] = getattr(importlib.import_module(module), name)
    return milestones


class ActionMilestones:
    """Milestones that are actions in a fixed order; one step reaches one at most.

    Args:
        actions: The actions.
        similarity: ``None``: a valid action that is equal; else a valid one whose text has at least this ``difflib``
            ratio with it, which takes neighbours for each other (cabinet 1 and cabinet 11).
    """

    def __init__(self, actions: Sequence[Action], similarity: float | None = None) -> None:
        self._actions = actions
        self._similarity = similarity
        self._place = 0
        self.count = len(actions)

    def count_reached(self, action: Action, info: Mapping[str, Any]) -> int:
        """Returns 1 if ``action`` is the next one, else 0."""
        if self._place == self.count or not info["valid"]:
            return 0
        target = self._actions[self._place]
        alike = action == target
        if not alike and self._similarity is not None:
            alike = SequenceMatcher(None, action_text(action), action_text(target)).ratio() >= self._similarity
        self._place += alike
        return int(alike)


def action_text(action: Action) -> str:
    """Returns the values of an action's arguments as one text, or the names of tools without."""
    return "; ".join(" ".join(map(str, call.arguments.values())) or call.name for call in action)


class Guide:
    """Knows what an expert does in each task; plays a task once, in an environment of its own.

    Args:
        factory: Makes the environment.
    """

    def __init__(self, factory: EnvFactory) -> None:
        self._factory = factory
        self._env: gymnasium.Env[Observation, Action] | None = None
        self._known: dict[str, tuple[Action, ...]] = {}
        self._lock = Lock()

    def actions(self, task_id: str) -> tuple[Action, ...]:
        """Returns the expert's valid actions; none where it does not solve the task."""
        with self._lock:
            if task_id not in self._known:
                self._known[task_id] = self._play_task(task_id)
            return self._known[task_id]

    def _play_task(self, task_id: str) -> tuple[Action, ...]:
        if self._env is None:
            self._env = self._factory.make()
        expert = make_player(self._factory.env_id, "expert")
        _, info = self._env.reset(options={"task_id": task_id})
        actions: list[Action] = []
        for _ in range(MOST_STEPS):
            try:
                action = expert.act(self._env)
            except UsageError:
                break
            _, _, terminated, truncated, info = self._env.step(action)
            actions += [action] if info["valid"] else []
            if terminated or truncated:
                break
        return tuple(actions) if info["success"] else ()


_GUIDES: dict[str, Guide] = {}


def guide_of(factory: EnvFactory) -> Guide:
    """Returns the guide that all environments of this process share that are made alike."""
    key = json.dumps([factory.env_id, factory.kwargs], sort_keys=True, default=str)
    return _GUIDES.setdefault(key, Guide(factory))


class MilestoneEnv(gymnasium.Wrapper[Observation, Action, Observation, Action]):
    """Adds to each info whether the step reached a milestone, and to the metrics how many were reached.

    Args:
        env: The environment.
        of: ``"world"``: states of the world, as the environment defines them; ``"expert"``: the actions of its expert,
            in their order.
        guide: Knows the expert's actions (of ``"expert"``).
    """

    def __init__(self, env: gymnasium.Env[Observation, Action], of: Kind = "world", guide: Guide | None = None) -> None:
        super().__init__(env)
        assert env.spec is not None
        self._kind = milestones_of(env.spec.id) if of == "world" else None
        self._guide = guide
        self._milestones: Milestones | ActionMilestones = ActionMilestones(())
        self._reached = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode."""
        observation, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        self._reached = 0
        if self._kind is not None:
            inner = self.env.unwrapped
            assert isinstance(inner, ToolEnv)
            self._milestones = self._kind(inner)
        elif self._guide is not None:
            self._milestones = ActionMilestones(self._guide.actions(info["task_id"]))
        return observation, self._note_milestones(info, 0)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        count = self._milestones.count_reached(action, info) if info["valid"] else 0  # type: ignore[arg-type]
        return observation, float(reward), terminated, truncated, self._note_milestones(info, count)

    def _note_milestones(self, info: dict[str, Any], count: int) -> dict[str, Any]:
        self._reached += count
        metrics = {TOTAL: float(self._reached), UNGUIDED: float(self._milestones.count == 0)}
        return {**info, REACHED: count > 0, "metrics": {**info["metrics"], **metrics}}


@dataclass(frozen=True)
class MilestoneFactory(EnvFactory):
    """Makes an environment that says when a milestone is reached, in any process."""

    of: Kind = field(default="world", kw_only=True)
    """As in :class:`MilestoneEnv`."""

    def make(self) -> gymnasium.Env[Observation, Action]:
        """Makes a new environment."""
        guide = guide_of(EnvFactory(self.env_id, self.kwargs)) if self.of == "expert" else None
        return MilestoneEnv(super().make(), self.of, guide)

    def check(self) -> None:
        """Checks that the environment has milestones.

        Raises:
            UnknownName: It has no expert.
            UsageError: It has no milestones, or they are in the state of a world that is on a server.
        """
        remote = self.kwargs.get("url") is not None
        name = self.env_id.rpartition(":")[2]
        if self.of == "expert":
            make_player(name, "expert")
        elif not milestones_of(name).from_observations and remote:
            raise UsageError(f"the milestones of {name} are in the state of its world, which a server does not give")
        if self.of == "expert" and remote:
            raise UsageError(f"the expert of {name} plays here, and not on a server")
