"""The interface of milestones: what lies on the way to the solution of a task, seen in the state of a world."""

from __future__ import annotations

from typing import ClassVar, Protocol

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.tools import Action


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

    def reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many further milestones the step reached that was just taken.

        Args:
            action: The action of the step.
            info: The info that the step returned.
        """
        ...
