"""Episodes that a person plays: steps, undo, hints, other tasks, and what is saved; without any terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envsuite.core.draws import Draw
from envsuite.core.env import Observation, StepInfo, ToolEnv
from envsuite.core.errors import UnknownName, UsageError, WorkerLost
from envsuite.core.players import Player
from envsuite.core.tools import Action
from envsuite.evaluation.demonstrations.demonstration import Demonstration, DemonstrationStep
from envsuite.evaluation.demonstrations.file import add_demonstration
from envsuite.evaluation.demonstrations.playing import take_step
from envsuite.play.profiles import profile_of
from envsuite.remote.making import make_player


class PlaySession:
    """Tasks of one environment in a row, each with its steps, which can be taken back.

    Args:
        env: The environment, without a limit of steps.
        split: The split whose tasks are played.
        kind: Only tasks of this type.
        horizon: Most steps of an episode; ``None`` for no limit.
        seed: Seed of random tasks.
        env_options: Arguments with which the environment was made, besides split and url.
        save: File to which solved episodes are added.

    Raises:
        UnknownTask: The split or type does not exist.
        UsageError: There are no such tasks.
    """

    def __init__(
        self,
        env: ToolEnv,
        split: str,
        kind: str | None = None,
        horizon: int | None = None,
        seed: int = 0,
        env_options: Mapping[str, Any] | None = None,
        save: Path | None = None,
    ) -> None:
        self.env = env
        self.env_id = env.tasks.env_id
        self.profile = profile_of(self.env_id, env.tools)
        self.split = split
        self.horizon = horizon
        self.save_path = save
        self._options = dict(env_options or {})
        self._draw = Draw(f"play {seed}")
        self.choose_type(kind)
        self.task_id = self.tasks[0]
        self.seen: set[str] = set()
        """Tasks that were begun."""
        self.solved: set[str] = set()
        self.saved: set[str] = set()
        self.lost: str | None = None
        """Why the environment was lost; the episode's steps are there."""

    def choose_type(self, kind: str | None) -> None:
        """Chooses the tasks among which to go on: those of a type, or all of the split.

        Raises:
            UnknownTask: There is no such type.
            UsageError: The split has no task of it.
        """
        tasks = self.env.tasks if kind is None else self.env.tasks.select([kind])
        if not (task_ids := tasks.ids(self.split)):
            of = f" of type {kind!r}" if kind is not None else ""
            raise UsageError(f"split {self.split!r} of {self.env_id} has no task{of}; choose another with --split")
        self.tasks: Sequence[str] = task_ids

    # -- the episode -----------------------------------------------------------------------------------------------

    def start(self, task_id: str | None = None) -> None:
        """Starts an episode of a task, or the present one's anew.

        Raises:
            UnknownTask: There is no such task; the present episode goes on.
            WorkerLost: The environment is lost.
        """
        try:
            first, info = self.env.reset(options={"task_id": task_id or self.task_id})
        except WorkerLost as error:
            self.lost = str(error)
            raise
        self.first, self.info = first, info
        self.task_id = info["task_id"]
        self.steps: list[DemonstrationStep] = []
        self._before: list[tuple[object, StepInfo]] = []
        self._expert: Player | None = None
        self._doubts: str | None = None
        self.lost = None
        self.seen.add(self.task_id)

    @property
    def observation(self) -> Observation:
        """The present observation."""
        return self.steps[-1].observation if self.steps else self.first

    @property
    def over(self) -> bool:
        """Whether the episode has ended: by itself, or at the limit of steps."""
        return bool(self.steps) and (self.env.done or self.steps_left == 0) and self.lost is None

    @property
    def steps_left(self) -> int | None:
        """Number of steps that are left; ``None`` without a limit."""
        return None if self.horizon is None else max(0, self.horizon - len(self.steps))

    @property
    def reward(self) -> float:
        """Sum of the rewards."""
        return float(sum(step.reward for step in self.steps))

    def act(self, action: Action) -> DemonstrationStep:
        """Takes a step; one that solves the task is saved, where a file was named.

        Raises:
            UsageError: The episode is over.
            WorkerLost: The environment is lost. The episode stays as it was, and the next step tries to go on.
            DataError: The episode cannot be saved.
        """
        if self.over:
            raise UsageError("The episode is over: take the step back, restart it, or go to another task.")
        self._recover()
        try:
            self._watch()
            before = self._snapshot()
            step, info = take_step(self.env, action)
        except WorkerLost as error:
            self.lost = str(error)
            raise
        self._before.append((before, self.info))
        self.steps.append(step)
        self.info = info
        if info["success"]:
            self.solved.add(self.task_id)
            if self.save_path is not None:
                self.save(self.save_path)
        return step

    def undo(self) -> None:
        """Takes the last step back.

        Raises:
            UsageError: There is none, or the environment does not come back to where it was.
            WorkerLost: The environment is lost.
        """
        if not self.steps:
            raise UsageError("There is nothing to take back.")
        token, info = self._before[-1]
        try:
            if token is None or self.lost is not None:
                self._replay(self.steps[:-1])
            else:
                self.env.restore(token)
                self._expert = None
        except WorkerLost as error:
            self.lost = str(error)
            raise
        self.steps.pop()
        self._before.pop()
        self.info = info

    def hint(self) -> Action:
        """Returns the expert's next action.

        Raises:
            UsageError: There is no expert, or it does not know: why is in the message.
            WorkerLost: The environment is lost.
        """
        if self.over:
            raise UsageError("The episode is over.")
        self._recover()
        action = self._ask()
        if action is None:
            raise UsageError(f"There is no hint: {self._doubts}")
        return action

    def _ask(self) -> Action | None:
        """Asks the expert; returns ``None`` where it has no answer, with the reason in ``_doubts``."""
        try:
            if self._expert is None:
                self._expert = make_player(self.env_id, "expert")
            return self._expert.act(self.env)
        except (UnknownName, UsageError) as error:
            self._doubts = str(error)
            return None

    def _watch(self) -> None:
        """Lets the expert see the present observation, if it has to see them all."""
        if self.profile.attentive:
            self._ask()

    def _snapshot(self) -> object:
        """Returns a snapshot; ``None`` where actions are played again instead, as the expert has to see them, too."""
        if self.profile.attentive:
            return None
        try:
            return self.env.snapshot()
        except UsageError:
            return None

    def _recover(self) -> None:
        """Brings an environment that was lost back to the present step."""
        if self.lost is not None:
            self._replay(self.steps)

    def _replay(self, steps: Sequence[DemonstrationStep]) -> None:
        """Plays the episode's first steps anew.

        Raises:
            UsageError: They lead elsewhere.
        """
        self._expert = None
        observation, _ = self.env.reset(options={"task_id": self.task_id})
        for step in steps:
            self._watch()
            observation = self.env.step(step.action)[0]
        original = steps[-1].observation if steps else self.first
        if dict(observation) != dict(original):
            self.lost = "It takes another course than before; restart the episode."
            raise UsageError(f"The environment cannot go back to this step. {self.lost}")
        self.lost = None

    # -- other tasks -----------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        """Goes to a task further on in the split's order, or back.

        Raises:
            WorkerLost: The environment is lost.
        """
        place = self.tasks.index(self.task_id) if self.task_id in self.tasks else -1
        self.start(self.tasks[(place + by) % len(self.tasks)])

    def random(self) -> None:
        """Goes to a random task.

        Raises:
            WorkerLost: The environment is lost.
        """
        self.start(self._draw.choose(self.tasks))

    # -- saving ----------------------------------------------------------------------------------------------------

    def demonstration(self) -> Demonstration:
        """Returns the episode so far.

        Raises:
            UsageError: It shows images.
        """
        return Demonstration.of(self.env, self.first, self.steps, self.info, env_options=self._options, player="person")

    def save(self, path: Path) -> int:
        """Adds the episode to a file of demonstrations, where it replaces an earlier one of its task by a person.

        Returns:
            The number of demonstrations in the file.

        Raises:
            UsageError: Nothing was played.
            DataError: The file cannot be read or written.
        """
        if not self.steps:
            raise UsageError("There is nothing to save: no step was taken.")
        count = add_demonstration(path, self.demonstration())
        self.saved.add(self.task_id)
        return count
