"""A player that states its plans and makes human-like mistakes: demonstrations for a small base model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from envsuite.alfworld.reading import kind
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall

LABELS = "ABCDEF"
"""Labels of the places in a plan, which names at most so many."""


class Talker(Seeker):
    """A seeker that states its plans and follows them.

    Args:
        goal: The goal of the game.
        rng: Source of randomness.
        careless: Probability that a plan names places at random instead of the most probable ones.
    """

    def __init__(self, goal: SentenceGoal, rng: random.Random, careless: float = 0.0) -> None:
        super().__init__(goal)
        self.rng = rng
        self.careless = careless
        self.thought = ""
        """The thought to state with the next command."""
        self.careless_now = False
        """Whether the plan in that thought was drawn at random."""
        self._plan: list[str] = []
        self._looked_for: tuple[str, ...] = ()
        self._had = ""
        self._target = ""

    def observe(self, text: str, commands: Sequence[str]) -> None:
        """Updates its knowledge by a turn; an object taken or put down calls for a new thought."""
        super().observe(text, commands)
        had, self._had = self._had, self.held or ""
        if self._had and self._had != had and kind(self._had) == self.goal.item:
            self._intend(self._had)
        if had and not self._had:
            self._plan = []

    def act(self) -> str:
        """Returns the next command, with a thought where something was found or a search begins."""
        plan = self._plan
        command = super().act()
        if self.held != "":
            return command
        verb, _, argument = command.partition(" ")
        place = argument.removeprefix("to ")
        items = [item for item in self.inside.get(place, ()) if kind(item) == self.goal.item]
        if verb == "take":
            self.thought = argument.partition(" from ")[0]
        elif verb == "go" and items:
            self.thought = f"take {min(items)} in {place}"
        elif verb == "go" and self._plan is plan and place in plan:
            self.thought = f"{self.goal.item} none. {LABELS[plan.index(place)]}"
        return command

    def _intend(self, item: str) -> None:
        parts = []
        if self.goal.lamp:
            parts = [f"use {lamp} in {place}" for lamp, place in list(self.lamps.items())[:1]]
        else:
            if self.goal.verb and item not in self.treated:
                ways = sorted(self.appliances(), key=lambda place: place not in self.here)
                parts = [f"{self.goal.verb} in {way}" for way in ways[:1]]
            self._target = next(iter(super().targets()), "")
            parts.append(f"put in {self._target}")
        if parts:
            self.thought = f"{item}: {', '.join(parts)}"

    def targets(self) -> list[str]:
        """Returns the target receptacles, the one that was stated first."""
        return sorted(super().targets(), key=lambda place: place != self._target)

    def order(self, places: Sequence[str], weights: Mapping[str, float]) -> list[str]:
        """Returns the order of the search: as stated; at the end of a plan, states the next one."""
        places_left = [place for place in self._plan if place in places]
        if places_left and tuple(weights) == self._looked_for:
            return places_left
        order = super().order(places, weights)
        self.careless_now = self.careless > 0.0 and self.rng.random() < self.careless
        if self.careless_now:
            self.rng.shuffle(order)
        self._plan, self._looked_for = order[: len(LABELS)], tuple(weights)
        if self._plan:
            places = ", ".join(f"{label} {place}" for label, place in zip(LABELS, self._plan, strict=False))
            self.thought = f"find {' and '.join(weights)}: {places}"
        return self._plan


@dataclass(frozen=True)
class ALFWorldPlanner(FallibleTeacher):
    """A player that states where it will search, what it has found and what it will do with it.

    ``find cup: A fridge 1, B countertop 2, C cabinet 4`` is followed by exactly these visits, each but the first
    announced by ``cup none. B``, until ``cup 2`` is seen; ``cup 2: clean in sinkbasin 1, put in shelf 1`` by the steps
    stated. So each decision is stated where it is made, and the next command can be derived from a thought or from the
    latest text of the game. Mistakes, a careless plan included, are marked as slips; the player continues after them.
    """

    rash: float = 0.0
    """Probability that the player states no plans in an episode: it searches at random, and puts the first object that
    it finds in the target, untreated and only one, whatever the goal demands."""
    careless: float = 0.0
    """Probability that a plan names places at random."""
    idle: float = 0.0
    """Probability, at each step, of a command without use: ``look``, ``inventory`` or ``examine``."""
    hasty: float = 0.0
    """Probability, at each step, of a random admissible command."""
    clumsy: float = 0.0
    """Probability, at each step, of a command that is not admissible: one with a wrong number."""
    dreamy: float = 0.0
    """Probability, at each step with empty hands, of taking the object from where it is not."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``, here or on a server; the caller steps ``env`` in between.

        Ends when the player has searched everything in vain.
        """
        world = unwrap_env(env, "ALFWorld-v0")
        goal = SentenceGoal.parse(world.observation["task"])
        rash = self.rash > 0.0 and rng.random() < self.rash
        talker = Talker(replace(goal, verb="", count=1), rng, 1.0) if rash else Talker(goal, rng, self.careless)
        while True:
            observation = world.observation
            talker.observe(observation["text"], observation["commands"])
            if slip := self._slip(observation["commands"], rng):
                yield Move("", (ToolCall("env_step", {"command": slip}),), slip=True)
                continue
            if dream := self._dream(talker, observation["commands"], rng):
                words = "" if rash else dream.split(" from ")[0][5:]
                yield Move(words, (ToolCall("env_step", {"command": dream}),), slip=True)
                continue
            try:
                command = talker.act()
            except UsageError:
                return
            thought, talker.thought = talker.thought, ""
            careless, talker.careless_now = talker.careless_now, False
            yield Move("" if rash else thought, (ToolCall("env_step", {"command": command}),), careless and not rash)

    def _slip(self, commands: Sequence[str], rng: random.Random) -> str:
        """Returns a command that does not help; empty if the player makes no mistake."""
        if self.idle and rng.random() < self.idle:
            return rng.choice([c for c in commands if c in ("look", "inventory") or c.startswith("examine ")])
        if self.hasty and rng.random() < self.hasty:
            return rng.choice(commands)
        if self.clumsy and rng.random() < self.clumsy:
            numbered_commands = [command for command in commands if command[-1].isdigit()]
            wrong = f"{rng.choice(numbered_commands).rpartition(' ')[0]} {rng.randrange(1, 20)}"
            return wrong if wrong not in commands else ""
        return ""

    def _dream(self, talker: Talker, commands: Sequence[str], rng: random.Random) -> str:
        """Returns a command that takes the object from where it is not; empty for no such mistake."""
        if not self.dreamy or talker.held != "" or not talker.here or rng.random() >= self.dreamy:
            return ""
        if any(command.startswith(f"take {talker.goal.item} ") for command in commands):
            return ""
        return f"take {talker.goal.item} {rng.randrange(1, 4)} from {rng.choice(sorted(talker.here))}"
