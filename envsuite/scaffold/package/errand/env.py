"""``Errand-v0``: an agent brings parcels from one place to another."""

from itertools import permutations
from typing import Any

import numpy as np

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv

PLACES = ("bakery", "castle", "harbour", "library", "market", "mill")
PARCELS = ("bread", "clock", "fish", "lamp", "letter", "map", "piano", "rope")
GO = Tool.of_string("go", "Walk to a place.", "place", "Where to.", PLACES)
TAKE = Tool.of_string("take", "Pick up a parcel.", "parcel", "Which one.", PARCELS)
PUT = Tool("put", "Put down what you carry.", {"type": "object", "properties": {}, "additionalProperties": False})
IDS = [f"{parcel}-{start}-{end}" for parcel in PARCELS for start, end in permutations(PLACES, 2)]
SPLITS = {"train": tuple(task for number, task in enumerate(IDS) if number % 3), "test": tuple(IDS[::3])}
TASKS = TaskSet("Errand-v0", "builtin", "1", SPLITS, dict.fromkeys(IDS, "parcel"))


class Errand(ToolEnv):
    """Reward 1 when the parcel is where it shall be, which ends the episode."""

    tools = (GO, TAKE, PUT)

    def __init__(self, **given: Any) -> None:
        options = self.takes.of(given)
        super().__init__(TASKS, options.split, options.render_mode)

    def _goal(self, task_id: str) -> str:
        parcel, start, end = task_id.split("-")
        return f"Bring the {parcel} from the {start} to the {end}."

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.parcel, self.lies, self.end = task_id.split("-")
        self.here = "market"
        return self._goal(task_id), Outcome("You are at the market.")

    def _call(self, call: ToolCall) -> Outcome:
        """Executes a call, which fits the schema of its tool."""
        if call.name == "go":
            self.here = call.arguments["place"]
            return Outcome(f"You are at the {self.here}.")
        if call.name == "take":
            parcel = call.arguments["parcel"]
            if (parcel, self.here) != (self.parcel, self.lies):
                return self._wrong(f"There is no {parcel} here.")
            self.lies = "hand"
            return Outcome(f"You carry the {parcel}.")
        if self.lies != "hand":
            return self._wrong("You carry nothing.")
        self.lies = self.here
        text, success = f"The {self.parcel} is at the {self.here} now.", self.here == self.end
        return Outcome(text, float(success), success, success=success, score=float(success))

    def _wrong(self, reason: str) -> Outcome:
        return Outcome(reason, error=reason)  # an invalid step, which changes nothing

    def _state_key(self) -> str:
        """Returns a key, equal for states that the agent cannot distinguish."""
        return f"{self.here} {self.lies}"

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        """Returns a random call, for the policy ``random``."""
        arguments = {"go": {"place": str(rng.choice(PLACES))}, "take": {"parcel": str(rng.choice(PARCELS))}, "put": {}}
        name = str(rng.choice([*arguments]))
        return ToolCall(name, arguments[name])

    def _save(self) -> tuple[str, str]:
        return self.here, self.lies

    def _resume(self, task_id: str, world: tuple[str, str]) -> None:
        self._begin(task_id)
        self.here, self.lies = world
