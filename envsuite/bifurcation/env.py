"""``Bifurcation-v0``: walks past forks, as an environment of tool calls."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

from envsuite.bifurcation.world import ALIASING, DOORS, MISTAKES, REWARDS, DoorState, Kind, Walk
from envsuite.core.caches import made_once
from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.options import SEED, EnvOptions, option
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import Tool, ToolCall

ENV_ID = "Bifurcation-v0"
COUNTS = {"train": 400, "validation": 100, "test": 200}
"""Walks of each split."""
ARRIVED, LOST = "You have arrived.", "The walk ends here, astray."


@dataclass(frozen=True, kw_only=True)
class BifurcationOptions(EnvOptions):
    """The options of ``Bifurcation-v0``: the dials of :class:`~envsuite.bifurcation.world.Kind`."""

    env_id: ClassVar[str] = ENV_ID
    horizon: int = option(10, "places of a walk, at each of which a door is taken", minimum=1, maximum=40)
    decisions: int = option(3, "how many of them are forks, where one door alone leads on", minimum=0, maximum=6)
    doors: int = option(3, "doors of a place", minimum=2, maximum=len(DOORS))
    forks: int = option(16, "kinds of forks, each with a right door of its own", minimum=6, maximum=32)
    mistake: str = option(
        "final",
        '"final": a wrong door loses the walk, which goes on; "recoverable": it leads to a dead end, and every door '
        "there leads back",
        enum=MISTAKES,
    )
    reward: str = option(
        "end", '"end": 1 at the end of a walk that is not lost; "each": a share for each fork, at once', enum=REWARDS
    )
    aliasing: str = option(
        "none",
        '"none": the text is the state; "alike": it tells neither the number of the place nor that the walk is lost; '
        '"different": a place has another name at each visit',
        enum=ALIASING,
    )
    own_words: int = option(
        1, "words that a kind of place alone has; 0 spells its name with words that all share", minimum=0, maximum=4
    )
    slip: float = option(0.0, "probability that another door is taken than the chosen one", minimum=0.0, maximum=0.9)
    map_seed: int = option(0, "draws right doors and words; with the source generated, the walks too", **SEED)
    source: str = option(
        "builtin",
        '"builtin": the walks are the same for every map_seed; "generated": each map_seed has walks of its own, and '
        "their ids name it",
        enum=("builtin", "generated"),
    )


@made_once(8)
def task_set(kind: Kind, source: str) -> TaskSet:
    """Returns the walks of all splits; each follows from its id and the numbers of places, forks, and their kinds."""
    seed = f"{kind.map_seed}/" if source == "generated" else ""
    splits = {split: tuple(f"{seed}{split}-{n}" for n in range(count)) for split, count in COUNTS.items()}
    types = {task_id: f"decisions-{kind.decisions}" for ids in splits.values() for task_id in ids}
    version = blake2b(repr(kind).encode(), digest_size=6).hexdigest()
    return TaskSet(ENV_ID, source, version, splits, types)


class Bifurcation(ToolEnv):
    """Walks past forks: take the right door at each.

    The right door of a kind of fork is the same in every walk. All that is random in an episode follows from the task
    and the doors that were chosen, so that an agent that sees the text alone cannot tell it from chance.

    Args:
        given: Values of :class:`BifurcationOptions`.
    """

    takes = BifurcationOptions

    def __init__(self, **given: Any) -> None:
        options = BifurcationOptions.of(given)
        self.kind = Kind(**{field.name: getattr(options, field.name) for field in fields(Kind)})
        self.commands = DOORS[: self.kind.doors]
        self.tools = (Tool.of_string("take", "Go through a door.", "command", "Which one.", self.commands),)
        super().__init__(task_set(self.kind, options.source).select(options.tasks), options.split, options.render_mode)
        self._history = b""

    def _goal(self, task_id: str) -> str:
        return self._task()

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the kinds of the walk's places; forks are those below the option ``forks``."""
        return {"places": [*Walk(self.kind, task_id).places]}

    @property
    def chance(self) -> int:
        """A random number that follows from what has happened in the episode."""
        return int.from_bytes(self._history[:8], "little")

    @property
    def name(self) -> int:
        """Number of the name of the place."""
        return self.chance % self.kind.names

    def _task(self) -> str:
        return (
            f"Walk past {self.kind.horizon} places. Take a door at each: {', '.join(self.commands)}. At "
            f"{self.kind.decisions} of them one door alone leads on, always the same one for places of its kind."
        )

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.walk, self.state, self.passed = Walk(self.kind, task_id), DoorState(0), 0
        self._history = b""
        self._remember(task_id.encode())
        return self._task(), self._outcome(0.0)

    def _remember(self, more: bytes) -> None:
        """Draws what is random next from all that has happened."""
        self._history = blake2b(self._history + more, digest_size=16).digest()

    def _call(self, call: ToolCall) -> Outcome:
        door = self.commands.index(call.arguments["command"])
        self._remember(bytes([door]))
        number = int.from_bytes(self._history[8:], "little")
        if number % 10**6 < self.kind.slip * 10**6:
            door = (door + 1 + number // 10**6 % (len(self.commands) - 1)) % len(self.commands)
        right = None if self.state.astray else self.walk.right(self.state.place)
        self.passed += right == door
        self.state, reward = self.walk.after(self.state, door)
        return self._outcome(reward)

    def _outcome(self, reward: float) -> Outcome:
        over, success = self.walk.over(self.state), self.walk.solved(self.state)
        return Outcome(
            (ARRIVED if success else LOST) if over else "",
            reward,
            done=over,
            commands=() if over else self.commands,
            success=success,
            metrics={"place": float(self.state.place), "astray": float(self.state.astray)},
        )

    def _info(self, outcome: Outcome) -> StepInfo:
        info = super()._info(outcome)
        info["score"] = 1.0 if self.walk.solved(self.state) else self.passed / max(1, self.kind.decisions)
        return info

    def _observe(self, outcome: Outcome) -> Observation:
        """Writes the place last, on a line of its own, after what is wrong with an action."""
        place = "" if self.walk.over(self.state) else self.walk.text(self.state, self.name)
        return super()._observe(replace(outcome, text="\n".join(filter(None, (outcome.text, place)))))

    def _state_key(self) -> str:
        return "" if self.walk.over(self.state) else self.walk.text(self.state, self.name)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("take", {"command": self.commands[int(rng.integers(len(self.commands)))]})

    def _save(self) -> list[Any]:
        return [*self.state, self.passed, self._history.hex()]

    def _resume(self, task_id: str, world: list[Any]) -> None:
        self.walk = Walk(self.kind, task_id)
        *state, self.passed, history = world
        self.state, self._history = DoorState(*state), bytes.fromhex(history)
