"""Validates a plan for a generated game, without an engine.

It reads the text of the PDDL problem, and shares only the display names with the generator.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from envsuite.alfworld.game_writer import display_names

_ATOM = re.compile(r"\(([A-Za-z]+) ([^()]+)\)")
_TYPED = re.compile(r"\((objectType|receptacleType) \?\w+ (\w+)\)")
_ADDS = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
_PRECONDITIONS = {
    "clean": ("cleanable", "SinkBasinType"),
    "heat": ("heatable", "MicrowaveType"),
    "cool": ("coolable", "FridgeType"),
}


class PlanState:
    """A state of a game, and the transitions that commands make."""

    def __init__(self, problem: str) -> None:
        start, self.goal = problem.split("(:init", 1)[1].split("(:goal", 1)
        self.facts: set[tuple[str, ...]] = {(m[1], *m[2].split()) for m in _ATOM.finditer(start)}
        predicates = ("receptacleType", "receptacleAtLocation", "objectType")
        self.static: dict[str, dict[str, str]] = {predicate: {} for predicate in predicates}
        for predicate, *arguments in self.facts:
            if predicate in self.static:
                self.static[predicate][arguments[0]] = arguments[1]
        (self.location,) = (fact[2] for fact in self.facts if fact[0] == "atLocation")
        names = display_names([*self.static["receptacleType"], *self.static["objectType"]])
        self.id_of = {name: i for i, name in names.items()}
        self.held: str | None = None

    def apply(self, command: str) -> bool:
        """Applies the action of ``command``; returns whether it was applicable."""
        match command.split():
            case ["go", "to", *r]:
                return self._go(self._find_id(r))
            case ["open", *r]:
                return self._open(self._find_id(r))
            case ["take", a, b, "from", *r]:
                return self._take(self._find_id([a, b]), self._find_id(r))
            case ["move", a, b, "to", *r]:
                return self._put(self._find_id([a, b]), self._find_id(r))
            case [("clean" | "heat" | "cool") as verb, a, b, "with", *r]:
                return self._treat(verb, self._find_id([a, b]), self._find_id(r))
            case ["use", *o]:
                return self._use(self._find_id(o))
        return False

    def _find_id(self, words: Sequence[str]) -> str:
        return self.id_of.get(" ".join(words), "")

    def _here(self, receptacle: str) -> bool:
        return self.static["receptacleAtLocation"].get(receptacle) == self.location

    def _within_reach(self, receptacle: str) -> bool:
        is_closed = ("openable", receptacle) in self.facts and ("opened", receptacle) not in self.facts
        return self._here(receptacle) and not is_closed

    def _go(self, receptacle: str) -> bool:
        location = self.static["receptacleAtLocation"].get(receptacle)
        if location is None or location == self.location:
            return False
        self.location = location
        return True

    def _open(self, receptacle: str) -> bool:
        if ("openable", receptacle) not in self.facts or not self._here(receptacle) or self._within_reach(receptacle):
            return False
        self.facts.add(("opened", receptacle))
        return True

    def _take(self, item: str, receptacle: str) -> bool:
        fact = ("inReceptacle", item, receptacle)
        is_there = {("pickupable", item), fact} <= self.facts and self._within_reach(receptacle)
        if self.held is not None or not is_there:
            return False
        self.facts.remove(fact)
        self.held = item
        return True

    def _put(self, item: str, receptacle: str) -> bool:
        types = (self.static["receptacleType"].get(receptacle, ""), self.static["objectType"].get(item, ""))
        if self.held != item or not self._within_reach(receptacle) or ("canContain", *types) not in self.facts:
            return False
        self.facts.add(("inReceptacle", item, receptacle))
        self.held = None
        return True

    def _treat(self, verb: str, item: str, receptacle: str) -> bool:
        able, type_ = _PRECONDITIONS[verb]
        has_tool = self.static["receptacleType"].get(receptacle) == type_ and self._here(receptacle)
        if self.held != item or (able, item) not in self.facts or not has_tool:
            return False
        self.facts.add((_ADDS[verb], item))
        return True

    def _use(self, lamp: str) -> bool:
        if ("toggleable", lamp) not in self.facts or not any(self._here(r) for r in self._containers(lamp)):
            return False
        self.facts.add(("isToggled", lamp))
        return True

    def _containers(self, item: str) -> list[str]:
        return [fact[2] for fact in self.facts if fact[0] == "inReceptacle" and fact[1] == item]

    def won(self) -> bool:
        """Whether the goal is reached."""
        types, kinds = _TYPED.findall(self.goal), self.static["objectType"]
        items = [type_ for predicate, type_ in types if predicate == "objectType"]
        if "isToggled" in self.goal:
            lamp, item = items
            lit = (o for o, kind in kinds.items() if kind == lamp and ("isToggled", o) in self.facts)
            if self.held is None or kinds[self.held] != item:
                return False
            return any(self._here(r) for o in lit for r in self._containers(o))
        (target,) = {type_ for predicate, type_ in types if predicate == "receptacleType"}
        treatments = [predicate for predicate in _ADDS.values() if predicate in self.goal]
        count: dict[str, int] = defaultdict(int)
        for fact in self.facts:
            if fact[0] == "inReceptacle" and self.static["receptacleType"][fact[2]] == target:
                right = kinds[fact[1]] == items[0]
                count[fact[2]] += right and all((predicate, fact[1]) in self.facts for predicate in treatments)
        return max(count.values(), default=0) >= len(items)


def is_plan(problem: str, commands: Sequence[str]) -> bool:
    """Whether ``commands`` are a plan for ``problem``: each is applicable, and only the last reaches the goal."""
    state = PlanState(problem)
    for command in commands:
        if state.won() or not state.apply(command):
            return False
    return state.won()
