"""Sessions: what is known of one when it begins, when it ends, and afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from envsuite.playing.step import Episode, Step
from trainers.settings import Fraction, Text

SHARED = ("env_id", "task_id", "task_type", "split", "task")
"""Fields of :class:`SessionAbout` that an episode has, too."""


@dataclass(frozen=True)
class SessionAbout:
    """A session when it begins."""

    source: str = ""
    """Who plays: a run, a gateway, a person."""
    env_id: str = ""
    task_id: str = ""
    task_type: str = ""
    split: str = ""
    task: str = ""
    """The instruction."""
    group_id: str | None = None
    """Sessions of one source with equal ids are a group, as episodes of one task from one initial state are; without
    one, the session is a group of its own."""
    tags: list[Text] = field(default_factory=list)


@dataclass(frozen=True)
class SessionEnding:
    """How a session ended; the fields are those of :class:`~envsuite.playing.step.Episode`."""

    terminated: bool = True
    truncated: bool = False
    success: bool = False
    score: Fraction = 0.0
    error: str | None = None
    greedy: bool = False
    context_truncated: bool = False
    unanswered: bool = False
    last_observation: str = ""


@dataclass(frozen=True)
class Ruling:
    """How a session is judged from outside, during it or later."""

    reward: float
    """Reward beyond that of its steps."""
    success: bool | None = None
    score: Fraction | None = None


@dataclass(frozen=True)
class PooledSession:
    """A session as it is looked up: an episode without its steps."""

    number: int
    """Place in the order in which sessions began, from 1; never given twice. It is the episode's id."""
    session: str
    """The name by which it was opened."""
    about: SessionAbout
    """As it was opened; the tags of today are in :attr:`tags`."""
    tags: tuple[str, ...]
    """Its tags, those that were given later included."""
    group_id: int
    """Number of the first session of its group."""
    ended: int | None
    """Place in the order in which sessions ended, from 1; ``None`` before."""
    ending: SessionEnding
    """As it was given; :attr:`success` and :attr:`score` are those of today."""
    success: bool
    """Whether it solved its task."""
    score: float
    """The task's graded result, 0 to 1."""
    reward: float
    """Reward beyond that of its steps."""
    earned: float
    """Sum of the rewards of its steps."""
    steps: int
    """Number of its steps."""
    bare: int
    """Number of its steps that have no tokens."""
    oldest: int | None
    """Version of the oldest weights that sampled a token of it; ``None`` where it has no token."""
    newest: int | None
    """The same of the newest weights."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> PooledSession:
        """Makes it from a row of the database."""
        values = {column.name: row[column.name] for column in fields(cls)}
        values |= {"success": bool(row["success"]), "score": row["score"] or 0.0, "tags": (*json.loads(row["tags"]),)}
        ending = SessionEnding(**json.loads(row["ending"] or "{}"))
        return cls(**{**values, "about": SessionAbout(**json.loads(row["about"])), "ending": ending})

    def episode(self, steps: Sequence[Step]) -> Episode:
        """Returns the episode with its ``steps``; the last one earns :attr:`reward`, too."""
        values = {name: vars(self.about)[name] for name in SHARED}
        values |= {**asdict(self.ending), "success": self.success, "score": self.score}
        if steps and self.reward:
            last, rewards = steps[-1], dict(steps[-1].info.get("rewards", {}))
            if last.agent in rewards:
                rewards[last.agent] += self.reward
                last = replace(last, info={**last.info, "rewards": rewards})
            steps = [*steps[:-1], replace(last, reward=last.reward + self.reward)]
        return Episode(episode_id=self.number, group_id=self.group_id, steps=(*steps,), **values)
