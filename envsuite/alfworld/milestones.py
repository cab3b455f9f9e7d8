"""Milestones of ALFWorld: the actions on objects that every solution has, in their only order."""

from __future__ import annotations

from typing import ClassVar

from envsuite.alfworld.reading import kind
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.alfworld.tasks import ENV_ID
from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action


class ALFWorldMilestones:
    """An object of the goal's type is taken, treated and put where it belongs; or taken, and the task solved by a lamp.

    Any object of the type will do. Of two objects, the second is another one than the first. What the search for them
    visits is no milestone: a policy that finds them sooner than the expert would miss it.
    """

    from_observations: ClassVar[bool] = True

    def __init__(self, env: ToolEnv) -> None:
        self._next: tuple[str, ...] = ()
        self._placed: set[str] = set()
        self._goal: SentenceGoal | None = None
        self.count = 0
        try:
            goal = SentenceGoal.parse(unwrap_env(env, ENV_ID).observation["task"])
        except UsageError:
            return
        once = ["take", *([goal.verb] if goal.verb else []), "use" if goal.lamp else "move"]
        self._goal = goal
        self._next = tuple(once * goal.count)
        self.count = len(self._next)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns 1 if the command is the next milestone, or solved the task; else 0."""
        if not self._next or not info["valid"] or self._goal is None:
            return 0
        verb, _, words = str(action[-1].arguments["command"]).strip().partition(" ")
        item, _, place = words.partition(" with " if verb in ("clean", "heat", "cool") else f" {_LINK.get(verb, '')} ")
        fits = verb == self._next[0] and kind(item) == self._goal.item and item not in self._placed
        if verb == "move":
            fits = fits and kind(place) == self._goal.target
            if fits:
                self._placed.add(item)
        if info["success"] or (fits and verb != "use"):
            self._next = self._next[1:]
            return 1
        return 0


_LINK = {"take": "from", "move": "to"}
