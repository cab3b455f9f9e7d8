"""A player that plans aloud, and errs as people do: what a small base model imitates."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envsuite.alfworld.reading import kind
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import Goal
from envsuite.core.errors import UsageError
from envsuite.core.players import played
from envsuite.core.tools import Action, Move, ToolCall

if TYPE_CHECKING:
    import gymnasium

LABELS = "ABCDEF"
"""What a plan calls the places that it names, of which there are at most so many."""


class Talker(Seeker):
    """A seeker that says what it will do, and does what it has said.

    Args:
        goal: What to do.
        rng: Draws when it is careless.
        careless: Probability that a plan names places at random, not those where the thing is likely.
    """

    def __init__(self, goal: Goal, rng: random.Random, careless: float = 0.0) -> None:
        super().__init__(goal)
        self.rng = rng
        self.careless = careless
        self.thought = ""
        """What is to be said with the next command."""
        self.careless_now = False
        """The plan that is to be said was made at random."""
        self._plan: list[str] = []
        self._looked_for: tuple[str, ...] = ()
        self._had = ""
        self._target = ""

    def observe(self, text: str, commands: Sequence[str]) -> None:
        """Take note of a turn; what was taken or put down is a reason to say what comes next."""
        super().observe(text, commands)
        had, self._had = self._had, self.held or ""
        if self._had and self._had != had and kind(self._had) == self.goal.item:
            self._intend(self._had)
        if had and not self._had:
            self._plan = []

    def act(self) -> str:
        """The next command; what was found, or where to look next, is said."""
        planned = self._plan
        command = super().act()
        if self.held != "":
            return command
        verb, _, rest = command.partition(" ")
        place = rest.removeprefix("to ")
        known = [thing for thing in self.inside.get(place, ()) if kind(thing) == self.goal.item]
        if verb == "take":
            self.thought = rest.partition(" from ")[0]
        elif verb == "go" and known:
            self.thought = f"take {min(known)} in {place}"
        elif verb == "go" and self._plan is planned and place in planned:
            self.thought = f"{self.goal.item} none. {LABELS[planned.index(place)]}"
        return command

    def _intend(self, thing: str) -> None:
        parts = []
        if self.goal.lamp:
            parts = [f"use {lamp} in {place}" for lamp, place in list(self.lamps.items())[:1]]
        else:
            if self.goal.verb and thing not in self.treated:
                ways = sorted(self.appliances(), key=lambda place: place not in self.here)
                parts = [f"{self.goal.verb} in {way}" for way in ways[:1]]
            self._target = next(iter(super().targets()), "")
            parts.append(f"put in {self._target}")
        if parts:
            self.thought = f"{thing}: {', '.join(parts)}"

    def targets(self) -> list[str]:
        """Receptacles where the object belongs, the one that was named first."""
        return sorted(super().targets(), key=lambda place: place != self._target)

    def order(self, places: Sequence[str], wanted: Mapping[str, float]) -> list[str]:
        """The order in which to search: as said, and when all that was said is done, as is said then."""
        left = [place for place in self._plan if place in places]
        if left and tuple(wanted) == self._looked_for:
            return left
        ordered = super().order(places, wanted)
        self.careless_now = self.careless > 0.0 and self.rng.random() < self.careless
        if self.careless_now:
            self.rng.shuffle(ordered)
        self._plan, self._looked_for = ordered[: len(LABELS)], tuple(wanted)
        if self._plan:
            places = ", ".join(f"{label} {place}" for label, place in zip(LABELS, self._plan, strict=False))
            self.thought = f"find {' and '.join(wanted)}: {places}"
        return self._plan


class Planner:
    """Says where it will look before it looks, what it has found, and what it will do with what it has taken.

    ``find cup: A fridge 1, B countertop 2, C cabinet 4`` is followed by just these visits, each but the first announced
    by ``cup none. B``, until ``cup 2`` is seen; ``cup 2: clean in sinkbasin 1, put in shelf 1`` by what is said there.
    So each decision is spelt out where it is made, and the next command stands in a thought or in what the game has
    just said. What it does by mistake, a careless plan included, is marked as a slip, and gone on from.

    Args:
        rash: Probability that the player does not plan in this episode and says nothing: it looks here and there, and
            puts what it finds where it belongs, one thing and as it is, though two or a clean one were asked for.
        careless: Probability that a plan names places at random.
        idle: Probability of a command that is of no use, at each step: a look around, at the hand, or at something.
        hasty: Probability of any command that the game offers, at each step.
        clumsy: Probability of a command that the game does not offer, at each step: one with a wrong number.
        dreamy: Probability of seeing what it looks for where it is not, at each step with empty hands.
    """

    def __init__(
        self,
        rash: float = 0.0,
        careless: float = 0.0,
        idle: float = 0.0,
        hasty: float = 0.0,
        clumsy: float = 0.0,
        dreamy: float = 0.0,
    ) -> None:
        chances = {"rash": rash, "careless": careless, "idle": idle, "hasty": hasty, "clumsy": clumsy, "dreamy": dreamy}
        for name, value in chances.items():
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name}={value} is no probability; give a number from 0 to 1")
        self.rash = rash
        self.careless = careless
        self.idle = idle
        self.hasty = hasty
        self.clumsy = clumsy
        self.dreamy = dreamy

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Each step of the episode that ``env``, here or on a server, is in; the caller steps ``env`` in between.

        It ends when the player has looked everywhere in vain.
        """
        world = played(env, "ALFWorld-v0")
        goal = Goal.parse(world.observation["task"])
        rash = self.rash > 0.0 and rng.random() < self.rash
        talker = Talker(replace(goal, verb="", count=1), rng, 1.0) if rash else Talker(goal, rng, self.careless)
        while True:
            observation = world.observation
            talker.observe(observation["text"], observation["commands"])
            slip = self._slip(observation["commands"], rng)
            if slip:
                yield Move("", (ToolCall("env_step", {"command": slip}),), slip=True)
                continue
            if dream := self._dream(talker, observation["commands"], rng):
                said = "" if rash else dream.split(" from ")[0][5:]
                yield Move(said, (ToolCall("env_step", {"command": dream}),), slip=True)
                continue
            try:
                command = talker.act()
            except UsageError:
                return
            thought, talker.thought = talker.thought, ""
            careless, talker.careless_now = talker.careless_now, False
            yield Move("" if rash else thought, (ToolCall("env_step", {"command": command}),), careless and not rash)

    def _slip(self, commands: Sequence[str], rng: random.Random) -> str:
        """A command that does not help; empty if the player does not slip."""
        if self.idle and rng.random() < self.idle:
            return rng.choice([c for c in commands if c in ("look", "inventory") or c.startswith("examine ")])
        if self.hasty and rng.random() < self.hasty:
            return rng.choice(commands)
        if self.clumsy and rng.random() < self.clumsy:
            meant = [command for command in commands if command[-1].isdigit()]
            wrong = f"{rng.choice(meant).rpartition(' ')[0]} {rng.randrange(1, 20)}"
            return wrong if wrong not in commands else ""
        return ""

    def _dream(self, talker: Talker, commands: Sequence[str], rng: random.Random) -> str:
        """A command that takes what is looked for from where it is not; empty if the player does not dream."""
        if not self.dreamy or talker.held != "" or not talker.here or rng.random() >= self.dreamy:
            return ""
        if any(command.startswith(f"take {talker.goal.item} ") for command in commands):
            return ""
        return f"take {talker.goal.item} {rng.randrange(1, 4)} from {rng.choice(sorted(talker.here))}"
