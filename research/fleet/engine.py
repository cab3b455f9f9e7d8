"""One engine: sequences that decode together, each an equal share of its iterations."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from trainers.planning.plan import EngineSpeed

CAUSES = ("environment", "longest episode", "update", "sync", "failure")
"""Causes for which an engine that generates nothing waits."""
EPSILON, INSTANT = 1e-4, 1e-9
"""Iterations, and seconds, that rounding may leave of what has ended."""


class Engine:
    """The state of an engine.

    Its clock counts iterations: a sequence that joins at ``c`` and has ``r`` tokens to write has ended at ``c + r``,
    whatever joins and leaves meanwhile, so sequences are kept in a heap by that number, and only the earliest needs an
    event. Prefills and whatever else the process does come first; the clock stands still meanwhile.

    Args:
        speed: Seconds of an iteration.
        slots: Episodes at a time.
    """

    def __init__(self, speed: EngineSpeed, slots: int) -> None:
        self.speed, self.slots = speed, slots
        self.clock = 0.0
        """Iterations so far."""
        self.time = 0.0
        """When the state was brought up to date."""
        self.stall = 0.0
        """Seconds of other work before the clock goes on."""
        self.context = 0.0
        """Tokens of keys and values of running sequences."""
        self.running: list[tuple[float, int]] = []
        """Sequences: clock at their end, episode."""
        self.waiting: deque[int] = deque()
        """Episodes that wait for a slot."""
        self.episodes = 0
        """Episodes in slots."""
        self.pauses: dict[str, int] = {}
        """Why it stands still, and how many reasons of that name there are."""
        self.expected = float("inf")
        """Time of the earliest event that is under way for it."""
        self.marks: list[float] = [0.0]
        """Clock at which each version of the weights came."""
        self.busy = 0.0
        """Seconds of generation, and of the rollout process's other work where that is the engine's own."""
        self.aside = 0.0
        """Seconds of the rollout process's other work."""
        self.sequences = 0.0
        """Running sequences, times seconds."""
        self.idle = dict.fromkeys(CAUSES, 0.0)
        """Seconds without generation by cause."""

    def advance(self, now: float, idle_cause: str) -> None:
        """Brings the state up to ``now``; ``idle_cause`` is why nothing runs, where nothing does."""
        passed = now - self.time
        if passed <= 0.0:
            return
        self.time = now
        if self.pauses:
            self.idle[next(iter(self.pauses))] += passed
            return
        worked = min(passed, self.stall)
        self.stall -= worked
        passed -= worked
        self.busy += worked
        count = len(self.running)
        if count and passed > 0.0:
            self.clock += passed / self.speed.iteration(count, self.context)
            self.busy += passed
            self.sequences += count * passed
        elif passed > 0.0:
            self.idle[idle_cause] += passed

    def join(self, episode: int, tokens: float, new: float, context: float) -> None:
        """Begins a response; the state is up to date.

        Args:
            episode: Whose.
            tokens: Tokens of the response.
            new: Tokens of the prompt that have to be computed.
            context: Tokens of keys and values that it reads, in the mean.
        """
        self.stall += self.speed.request + self.speed.prefill * new
        self.context += context
        heappush(self.running, (self.clock + tokens, episode))

    def interrupt(self, seconds: float) -> None:
        """Does other work of the same process first; the state is up to date."""
        self.stall += seconds
        self.aside += seconds

    def leave(self, context: float) -> None:
        """Frees what a sequence that has ended or was lost held of keys and values."""
        self.context = self.context - context if self.running else 0.0

    def ended(self) -> int | None:
        """Takes out a sequence that has written its last token, if there is one; the state is up to date."""
        if not self.running or self.stall > INSTANT or self.running[0][0] > self.clock + EPSILON:
            return None
        return heappop(self.running)[1]

    def next_end(self) -> float:
        """The time at which the next sequence ends, if nothing changes."""
        if not self.running or self.pauses:
            return float("inf")
        left = max(0.0, self.running[0][0] - self.clock)
        return self.time + self.stall + left * self.speed.iteration(len(self.running), self.context)

    def pause(self, cause: str) -> None:
        """Stands still for one reason more."""
        self.pauses[cause] = self.pauses.get(cause, 0) + 1

    def resume(self, cause: str) -> None:
        """Goes on, where that was the last reason."""
        self.pauses[cause] -= 1
        if not self.pauses[cause]:
            del self.pauses[cause]
