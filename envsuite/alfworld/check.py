"""Plays a walkthrough on the facts of a written game: whether it wins, found without an engine.

It reads the problem's text, and shares nothing with what wrote it but the names of things.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from envsuite.alfworld.problem import display_names

_ATOM = re.compile(r"\(([A-Za-z]+) ([^()]+)\)")
_KIND = re.compile(r"\((objectType|receptacleType) \?\w+ (\w+)\)")
_DONE = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}
_TOOLS = {
    "clean": ("cleanable", "SinkBasinType"),
    "heat": ("heatable", "MicrowaveType"),
    "cool": ("coolable", "FridgeType"),
}


class Facts:
    """What is true in a game, and the commands that change it."""

    def __init__(self, problem: str) -> None:
        start, self.goal = problem.split("(:init", 1)[1].split("(:goal", 1)
        self.true: set[tuple[str, ...]] = {(m[1], *m[2].split()) for m in _ATOM.finditer(start)}
        self.of: dict[str, dict[str, str]] = {
            name: {} for name in ("receptacleType", "receptacleAtLocation", "objectType")
        }
        for predicate, *arguments in self.true:
            if predicate in self.of:
                self.of[predicate][arguments[0]] = arguments[1]
        (self.spot,) = (fact[2] for fact in self.true if fact[0] == "atLocation")
        ids = display_names([*self.of["receptacleType"], *self.of["objectType"]])
        self.ids = {name: i for i, name in ids.items()}
        self.held: str | None = None

    def do(self, command: str) -> bool:
        """Do ``command``; whether it could be done."""
        match command.split():
            case ["go", "to", *r]:
                return self._go(self._named(r))
            case ["open", *r]:
                return self._open(self._named(r))
            case ["take", a, b, "from", *r]:
                return self._take(self._named([a, b]), self._named(r))
            case ["move", a, b, "to", *r]:
                return self._put(self._named([a, b]), self._named(r))
            case [("clean" | "heat" | "cool") as verb, a, b, "with", *r]:
                return self._treat(verb, self._named([a, b]), self._named(r))
            case ["use", *o]:
                return self._use(self._named(o))
        return False

    def _named(self, words: Sequence[str]) -> str:
        return self.ids.get(" ".join(words), "")

    def _here(self, receptacle: str) -> bool:
        return self.of["receptacleAtLocation"].get(receptacle) == self.spot

    def _within_reach(self, receptacle: str) -> bool:
        closed = ("openable", receptacle) in self.true and ("opened", receptacle) not in self.true
        return self._here(receptacle) and not closed

    def _go(self, receptacle: str) -> bool:
        spot = self.of["receptacleAtLocation"].get(receptacle)
        if spot is None or spot == self.spot:
            return False
        self.spot = spot
        return True

    def _open(self, receptacle: str) -> bool:
        if ("openable", receptacle) not in self.true or not self._here(receptacle) or self._within_reach(receptacle):
            return False
        self.true.add(("opened", receptacle))
        return True

    def _take(self, thing: str, receptacle: str) -> bool:
        fact = ("inReceptacle", thing, receptacle)
        if (
            self.held is not None
            or ("pickupable", thing) not in self.true
            or fact not in self.true
            or not self._within_reach(receptacle)
        ):
            return False
        self.true.remove(fact)
        self.held = thing
        return True

    def _put(self, thing: str, receptacle: str) -> bool:
        kinds = (self.of["receptacleType"].get(receptacle, ""), self.of["objectType"].get(thing, ""))
        if self.held != thing or not self._within_reach(receptacle) or ("canContain", *kinds) not in self.true:
            return False
        self.true.add(("inReceptacle", thing, receptacle))
        self.held = None
        return True

    def _treat(self, verb: str, thing: str, receptacle: str) -> bool:
        able, kind = _TOOLS[verb]
        if (
            self.held != thing
            or (able, thing) not in self.true
            or self.of["receptacleType"].get(receptacle) != kind
            or not self._here(receptacle)
        ):
            return False
        self.true.add((_DONE[verb], thing))
        return True

    def _use(self, lamp: str) -> bool:
        if ("toggleable", lamp) not in self.true or not any(self._here(r) for r in self._hosts(lamp)):
            return False
        self.true.add(("isToggled", lamp))
        return True

    def _hosts(self, thing: str) -> list[str]:
        return [fact[2] for fact in self.true if fact[0] == "inReceptacle" and fact[1] == thing]

    def won(self) -> bool:
        """Whether the goal is reached."""
        kinds = _KIND.findall(self.goal)
        things = [kind for predicate, kind in kinds if predicate == "objectType"]
        if "isToggled" in self.goal:
            lamp, thing = things
            lit = (o for o, kind in self.of["objectType"].items() if kind == lamp and ("isToggled", o) in self.true)
            if self.held is None or self.of["objectType"][self.held] != thing:
                return False
            return any(self._here(r) for o in lit for r in self._hosts(o))
        (target,) = {kind for predicate, kind in kinds if predicate == "receptacleType"}
        done = [predicate for predicate in _DONE.values() if predicate in self.goal]
        inside: dict[str, int] = defaultdict(int)
        for fact in self.true:
            if fact[0] == "inReceptacle" and self.of["receptacleType"][fact[2]] == target:
                right = self.of["objectType"][fact[1]] == things[0]
                inside[fact[2]] += right and all((predicate, fact[1]) in self.true for predicate in done)
        return max(inside.values(), default=0) >= len(things)


def wins(problem: str, commands: Sequence[str]) -> bool:
    """Whether ``commands`` reach the goal of ``problem``, each being possible, and not before the last."""
    facts = Facts(problem)
    for command in commands:
        if facts.won() or not facts.do(command):
            return False
    return facts.won()
