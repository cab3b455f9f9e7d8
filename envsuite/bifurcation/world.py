"""Walks past forks: at each, one door alone leads on; with the exact values of any policy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError

T = TypeVar("T")
Floats = NDArray[np.float64]
DOORS = ("red", "blue", "green", "black", "white")
PARTS = ("lamps", "walls", "tiles", "stairs")
"""The parts of a place that its text names, each with a word before it."""
COMMON = ("plain", "grey", "worn", "steep")
"""The words before the parts that have none of the place's own."""
LETTERS = ("ka", "lo", "ni", "su")
"""Words that names are spelled with, four each, where no word is a place's own."""
PLAINS = 16
"""Kinds of places that are no forks."""
NAMES = 4
"""Names of a place that is called another name at each visit."""
MISTAKES = ("final", "recoverable")
REWARDS = ("end", "each")
ALIASING = ("none", "alike", "different")


@dataclass(frozen=True)
class Kind:
    """The dials.

    Raises:
        UsageError: They contradict each other.
    """

    horizon: int = 10
    """Places of a walk, at each of which a door is taken."""
    decisions: int = 3
    """How many of them are forks."""
    doors: int = 3
    """Doors of a place."""
    forks: int = 16
    """Kinds of forks, each with a right door of its own, which walks are made of."""
    mistake: str = "final"
    """After a wrong door the walk goes on, but is lost (``final``); or it leads to a dead end, out of which each door
    leads back (``recoverable``)."""
    reward: str = "end"
    """1 at the end of a walk that is not lost (``end``), or a share for each fork when it is passed (``each``)."""
    aliasing: str = "none"
    """The text is the state (``none``); or it tells neither the number of the place nor that the walk is lost, so that
    different states look alike (``alike``); or places have :data:`NAMES` names, so that one state looks different."""
    own_words: int = 1
    """Words of a text that its kind of place alone has; with 0 its name is spelled with words that all share."""
    slip: float = 0.0
    """Probability that another door is taken than the one that was said."""
    map_seed: int = 0
    """Draws the right doors and the words."""

    def __post_init__(self) -> None:
        if self.decisions > min(self.horizon, self.forks):
            raise UsageError(
                f"decisions={self.decisions}: a walk has at most as many forks as places (horizon={self.horizon}), and "
                f"none of a kind (forks={self.forks}) twice"
            )
        if self.reward == "each" and not self.decisions:
            raise UsageError("reward='each' and decisions=0: no fork, no reward; take reward='end', or more decisions")

    @property
    def names(self) -> int:
        """Names of each place."""
        return NAMES if self.aliasing == "different" else 1

    @cached_property
    def right(self) -> tuple[int, ...]:
        """The right door of each kind of fork."""
        doors = [number % self.doors for number in range(self.forks)]  # each as often as the others
        return tuple(Draw(f"bifurcation doors {self.map_seed}").sample(doors, self.forks))

    @cached_property
    def words(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Words before the parts, by kind of place (forks come first) and name."""
        count = self.forks + PLAINS
        if not self.own_words:
            spellings = [*itertools.product(LETTERS, repeat=4)]
            names = Draw(f"bifurcation names {self.map_seed}").sample(spellings, count * self.names)
            views: list[tuple[str, ...]] = [(" ".join(name), *COMMON[1:]) for name in names]
        else:
            words = Draw(f"bifurcation words {self.map_seed}").sample(vocabulary(), count * self.names * len(PARTS))
            views = [(*own[: self.own_words], *COMMON[self.own_words :]) for own in _split_evenly(words, len(PARTS))]
        return tuple(_split_evenly(views, self.names))


def _split_evenly(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]


def vocabulary() -> list[str]:
    """Returns all words that a place may have for its own."""
    parts = ("bdgklmrs", "aeiou", "nptv", "aeiou")
    return ["".join(letters) for letters in itertools.product(*parts)]


class DoorState(NamedTuple):
    """Where a walk stands."""

    place: int
    """Number of the place, from 0 on."""
    astray: int = 0
    """1 where the walk is lost, or in a dead end."""


class Walk:
    """One task: the kinds of its places.

    Args:
        kind: The dials.
        key: Draws the places.
    """

    def __init__(self, kind: Kind, key: str) -> None:
        draw = Draw(f"bifurcation {kind.horizon} {kind.decisions} {kind.forks} {key}")
        at = {*draw.sample(range(kind.horizon), kind.decisions)}
        forks = iter(draw.sample(range(kind.forks), kind.decisions))
        self.kind = kind
        self.places = tuple(next(forks) if n in at else kind.forks + draw.below(PLAINS) for n in range(kind.horizon))
        """Kind of each place: forks are numbered from 0 to ``kind.forks - 1``."""

    def right(self, place: int) -> int | None:
        """Returns the right door of a place; ``None`` where it is no fork."""
        kind = self.places[place]
        return self.kind.right[kind] if kind < self.kind.forks else None

    def after(self, state: DoorState, door: int) -> tuple[DoorState, float]:
        """Returns where a door leads to that is taken, and the reward."""
        place, astray = state
        right = None if astray else self.right(place)
        final, reward = self.kind.mistake == "final", 0.0
        if right is not None and door != right:
            place, astray = (place + 1, 1) if final else (place, 1)
        elif astray and not final:
            astray = 0
        else:
            place += 1
            if right is not None and self.kind.reward == "each":
                reward = 1.0 / self.kind.decisions
        if place == self.kind.horizon and not astray and self.kind.reward == "end":
            reward = 1.0
        return DoorState(place, astray), reward

    def over(self, state: DoorState) -> bool:
        """Whether the walk has ended."""
        return state.place == self.kind.horizon

    def solved(self, state: DoorState) -> bool:
        """Whether it has come to its end, and is not lost."""
        return self.over(state) and not state.astray

    def text(self, state: DoorState, name: int = 0) -> str:
        """Returns the text of a state in which the walk is not over, with one of the place's names."""
        words = self.kind.words[self.places[state.place]][name]
        view = ", ".join(f"{word} {part}" for word, part in zip(words, PARTS, strict=True))
        if self.kind.aliasing == "alike":
            return f"{view}."
        prefix = "" if not state.astray else "Lost. " if self.kind.mistake == "final" else "Dead end. "
        return f"{prefix}Place {state.place + 1}: {view}."

    def values(self, policy: Floats, steps: int) -> tuple[Floats, Floats]:
        """Computes the values of a policy that sees the text alone, by dynamic programming backwards from the end.

        Args:
            policy: Probability of each door by place, whether it is astray, and name, of shape (places, 2, names,
                doors); what is left to 1 is the probability of an action that is none, which costs a step.
            steps: Most steps of an episode.

        Returns:
            Q, the expected return from a step on after a door was chosen, or (the last one) no door, of shape (steps,
            places, 2, names, doors + 1); and V, the same before the choice, of shape (steps, places, 2, names). Slips
            and names count as chance: their mean is taken, not what the history of one episode makes of them.

        Raises:
            UsageError: The policy has another shape.
        """
        kind = self.kind
        shape = (kind.horizon, 2, kind.names, kind.doors)
        if policy.shape != shape:
            raise UsageError(f"the policy has the shape {policy.shape}; that of this walk's places is {shape}")
        whole = np.concatenate([policy, 1.0 - policy.sum(-1, keepdims=True)], -1)
        q, v = np.zeros((steps, *shape[:3], kind.doors + 1)), np.zeros((steps, *shape[:3]))
        ahead, same = np.zeros((kind.horizon + 1, 2)), np.zeros(shape[:3])
        ways, rewards = self._ways
        for step in reversed(range(steps)):
            door_values = rewards + ahead[ways]
            slip_values = (door_values.sum(-1, keepdims=True) - door_values) / (kind.doors - 1)
            q[step, ..., :-1] = ((1.0 - kind.slip) * door_values + kind.slip * slip_values)[:, :, None]
            q[step, ..., -1] = same  # what is no door changes nothing, the name neither
            same = v[step] = (whole * q[step]).sum(-1)
            ahead[:-1] = same.mean(-1)  # each name is as likely as the others
        return q, v

    @cached_property
    def _ways(self) -> tuple[tuple[NDArray[np.int64], ...], Floats]:
        """Where each door of each state leads to, as indices of place and astray, and the rewards."""
        states = itertools.product(range(self.kind.horizon), range(2), range(self.kind.doors))
        transitions = [self.after(DoorState(place, astray), door) for place, astray, door in states]
        shape = (self.kind.horizon, 2, self.kind.doors)
        ways = tuple(np.reshape([state[part] for state, _ in transitions], shape) for part in range(2))
        return ways, np.reshape([reward for _, reward in transitions], shape)
