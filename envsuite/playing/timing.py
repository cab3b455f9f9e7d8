"""Wall time of a rollout by cause, and counts of what it had to give up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal

Part = Literal["engine", "env", "codec"]


@dataclass
class Timing:
    """Wall time of a rollout, split by what it went on with, in seconds, and counts of what was given up.

    At each moment one part counts, for as much of the time as slots have an episode. The rest of it, for slots that no
    plan is left to start in, is :attr:`longest_episode`. So the four sum to the wall time.
    """

    engine: float = 0.0
    """The engine generated tokens; whoever trains waited for them."""
    env: float = 0.0
    """The engine had nothing to do: all running episodes waited for their environments."""
    codec: float = 0.0
    """The engine had nothing to do while prompts were written and answers parsed."""
    longest_episode: float = 0.0
    """Slots were empty because no plan was left to start: the others waited for the longest episodes."""
    repeated: int = 0
    """Episodes that were started again because environment or engine had failed."""
    dropped_tokens: int = 0
    """Response tokens of episodes that were started again or failed, and of answers that came too late."""

    def __add__(self, other: Timing) -> Timing:
        """Adds two rollouts."""
        return Timing(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def seconds(self) -> float:
        """Wall time of the rollout."""
        return self.engine + self.env + self.codec + self.longest_episode


class Stopwatch:
    """Books wall time into a :class:`Timing`, from :meth:`start` to the last :meth:`book`; outside parts as ``codec``.

    Args:
        timing: Where the time is booked.
        share: Returns the share of the slots that have an episode, 0 to 1; :meth:`book` before it changes.
        clock: Seconds, monotonic.
    """

    def __init__(self, timing: Timing, share: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self.timing = timing
        self._share = share
        self._clock = clock
        self._part: Part = "codec"
        self._last = 0.0

    def start(self) -> None:
        """Begins, or goes on after a pause: the time since the last :meth:`book` is not booked."""
        self._last = self._clock()

    def book(self) -> None:
        """Books the time until now."""
        now, timing = self._clock(), self.timing
        seconds, share = now - self._last, self._share()
        setattr(timing, self._part, getattr(timing, self._part) + seconds * share)
        timing.longest_episode += seconds * (1.0 - share)
        self._last = now

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Books the time of the block on ``part``; of nested blocks, the innermost counts."""
        self.book()
        before, self._part = self._part, part
        try:
            yield
        finally:
            self.book()
            self._part = before
