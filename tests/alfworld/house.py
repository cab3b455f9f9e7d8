"""A toy house that speaks as the games do: any arrangement of receptacles and things."""

from __future__ import annotations

from dataclasses import dataclass, field

from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.reading import INTRODUCTION, kind
from envsuite.alfworld.sentences import SentenceGoal


def spoken(names: list[str]) -> str:
    listed = [f"a {name}" for name in sorted(names)]
    if len(listed) < 2:
        return "".join(listed) or "nothing"
    return f"{', '.join(listed[:-1])}, and {listed[-1]}"


@dataclass
class House:
    """Where everything stands, and what is so; receptacles of the same number in ``place`` stand at one place."""

    goal: SentenceGoal
    task: str
    place: dict[str, int]
    inside: dict[str, str]
    """Thing -> receptacle."""
    shut: set[str]
    doors: frozenset[str]
    refusing: frozenset[str] = frozenset()
    """Receptacles that take nothing."""
    untreatable: frozenset[str] = frozenset()
    """Things that cannot be cleaned, heated or cooled."""
    at: int = -1
    held: str = ""
    treated: set[str] = field(default_factory=set)
    lit: set[str] = field(default_factory=set)

    def reset(self) -> GameTurn:
        room = f"You are in the middle of a room. Looking quickly around you, you see {spoken(list(self.place))}."
        return self._turn(f"{INTRODUCTION}\n\n{room}\n\nYour task is to: {self.task}", True)

    def step(self, command: str) -> GameTurn:
        if command not in self._commands():
            return self._turn("Nothing happens.", False)
        verb, _, rest = command.partition(" ")
        first, _, second = rest.replace(" from ", "|").replace(" with ", "|").replace(" to ", "|").partition("|")
        if verb == "go":
            name = rest.removeprefix("to ")
            self.at = self.place[name]
            return self._turn(f"You arrive at {name}. {self._look(name)}", True)
        if verb == "open":
            self.shut.remove(rest)
            return self._turn(f"You open the {rest}. {self._look(rest)}", True)
        if verb == "close":
            self.shut.add(rest)
            return self._turn(f"You close the {rest}.", True)
        if verb == "take":
            self.held = first
            del self.inside[first]
            return self._turn(f"You pick up the {first} from the {second}.", True)
        if verb == "move":
            self.held, self.inside[first] = "", second
            return self._turn(f"You move the {first} to the {second}.", True)
        if verb in ("clean", "heat", "cool"):
            self.treated.add(first)
            return self._turn(f"You {verb} the {first} using the {second}.", True)
        if verb == "use":
            self.lit.add(rest)
            return self._turn(f"You turn on the {rest}.", True)
        if verb == "inventory":
            said = f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."
            return self._turn(said, True)
        return self._turn(self._look(rest) if rest in self.place else f"There's nothing special about {rest}.", True)

    def _look(self, name: str) -> str:
        things = spoken([thing for thing, where in self.inside.items() if where == name])
        if name not in self.doors:
            return f"On the {name}, you see {things}."
        return f"The {name} is closed." if name in self.shut else f"The {name} is open. In it, you see {things}."

    def _turn(self, text: str, valid: bool) -> GameTurn:
        return GameTurn(text, tuple(sorted(self._commands())), self._won(), valid)

    def _commands(self) -> set[str]:
        commands = {"help", "inventory", "look"}
        for name, place in self.place.items():
            if place != self.at:
                commands.add(f"go to {name}")
                continue
            commands.add(f"examine {name}")
            if name in self.doors:
                commands.add(f"open {name}" if name in self.shut else f"close {name}")
            within = [thing for thing, where in self.inside.items() if where == name]
            commands.update(f"use {thing}" for thing in within if kind(thing) == self.goal.lamp)
            if name not in self.shut:
                commands.update(f"examine {thing}" for thing in within)
                if not self.held:
                    commands.update(f"take {thing} from {name}" for thing in within if not thing.endswith(" 0"))
                elif name not in self.refusing:
                    commands.add(f"move {self.held} to {name}")
            if self.held and self.goal.verb and kind(name) == self.goal.appliance:
                if self.held not in self.untreatable:
                    commands.add(f"{self.goal.verb} {self.held} with {name}")
        if self.held:
            commands.add(f"examine {self.held}")
        return commands

    def _won(self) -> bool:
        if self.goal.lamp:
            lit = any(self.place.get(self.inside.get(lamp, "")) == self.at for lamp in self.lit)
            return lit and kind(self.held) == self.goal.item
        done = [
            where
            for thing, where in self.inside.items()
            if kind(thing) == self.goal.item and kind(where) == self.goal.target
            if not self.goal.verb or thing in self.treated
        ]
        return any(done.count(where) >= self.goal.count for where in done)
