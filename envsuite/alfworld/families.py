"""The six families of tasks: the goal of each in words and in PDDL, and plans that reach it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from envsuite.alfworld.scenes import Item, Layout, Receptacle, Scene, SceneDifficulty, furnish
from envsuite.alfworld.vocabulary import (
    BATHROOM,
    BEDROOM,
    CLEANABLE,
    CONTAINS,
    COOLABLE,
    HEATABLE,
    KITCHEN,
    LAMP,
    LIVING_ROOM,
    Counts,
    RoomKind,
)
from envsuite.core.draws import Draw

WASHBOWLS = frozenset({"SinkBasin", "BathtubBasin"})
"""Receptacles in which objects are cleaned but not put."""


@dataclass(frozen=True)
class GoalFamily:
    """A family of tasks."""

    name: str
    rooms: tuple[tuple[RoomKind, int], ...]
    """Rooms of such tasks, with weights."""
    sentences: tuple[str, ...]
    hidden: int
    """Percentage of games in which all objects of the goal's type are in closed receptacles."""
    decoys: Counts
    """Number of further objects of the goal's type, with weights."""
    needs: int = 1
    """Number of objects that the goal needs."""
    kinds: frozenset[str] | None = None
    """Types of objects that fit the family; ``None`` stands for all that can be picked up."""
    verb: str = ""
    """Action that treats the object before it is put down; empty for none."""
    tool: str = ""
    """Type of the receptacle that the action needs."""
    able: str = ""
    """Static predicate of objects that can be treated so."""
    done: str = ""
    """Fluent that the action adds."""


FAMILIES = (
    GoalFamily(
        "pick_and_place_simple",
        ((BATHROOM, 30), (LIVING_ROOM, 26), (BEDROOM, 26), (KITCHEN, 18)),
        ("put a {thing} in {target}.", "put some {thing} on {target}."),
        hidden=3,
        decoys=((0, 36), (1, 26), (2, 23), (3, 15)),
    ),
    GoalFamily(
        "look_at_obj_in_light",
        ((BEDROOM, 90), (LIVING_ROOM, 10)),
        ("look at {thing} under the {target}.", "examine the {thing} with the {target}."),
        hidden=1,
        decoys=((0, 31), (1, 22), (2, 25), (3, 22)),
    ),
    GoalFamily(
        "pick_clean_then_place_in_recep",
        ((KITCHEN, 72), (BATHROOM, 28)),
        ("put a clean {thing} in {target}.", "clean some {thing} and put it in {target}."),
        hidden=5,
        decoys=((0, 28), (1, 31), (2, 17), (3, 24)),
        kinds=CLEANABLE,
        verb="clean",
        tool="SinkBasin",
        able="cleanable",
        done="isClean",
    ),
    GoalFamily(
        "pick_heat_then_place_in_recep",
        ((KITCHEN, 1),),
        ("put a hot {thing} in {target}.", "heat some {thing} and put it in {target}."),
        hidden=17,
        decoys=((0, 22), (1, 29), (2, 32), (3, 17)),
        kinds=HEATABLE,
        verb="heat",
        tool="Microwave",
        able="heatable",
        done="isHot",
    ),
    GoalFamily(
        "pick_cool_then_place_in_recep",
        ((KITCHEN, 1),),
        ("put a cool {thing} in {target}.", "cool some {thing} and put it in {target}."),
        hidden=8,
        decoys=((0, 58), (1, 25), (2, 11), (3, 6)),
        kinds=COOLABLE,
        verb="cool",
        tool="Fridge",
        able="coolable",
        done="isCool",
    ),
    GoalFamily(
        "pick_two_obj_and_place",
        ((BATHROOM, 33), (LIVING_ROOM, 30), (BEDROOM, 29), (KITCHEN, 8)),
        ("put two {thing} in {target}.", "find two {thing} and put them in {target}."),
        hidden=1,
        decoys=((0, 42), (1, 25), (2, 33)),
        needs=2,
    ),
)


@dataclass(frozen=True)
class FamilyGoal:
    """The goal of a game."""

    family: GoalFamily
    thing: str
    """Type of the object."""
    target: str
    """Type of the receptacle that it is put in, or of the lamp that it is examined under."""
    sentence: str

    @property
    def pddl(self) -> str:
        """The goal condition."""
        if self.target == LAMP:
            return (
                f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location)\n"
                f"    (and (objectType ?ot {LAMP}Type) (toggleable ?ot) (isToggled ?ot)\n"
                f"      (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))\n"
                f"  (exists (?o - object ?a - agent) (and (objectType ?o {self.thing}Type) (holds ?a ?o))))"
            )
        kinds = f"(objectType ?o {self.thing}Type) (receptacleType ?r {self.target}Type)"
        more = ""
        if self.family.needs == 2:
            more = (
                f"\n      (exists (?o2 - object) (and (not (= ?o ?o2))\n"
                f"        (objectType ?o2 {self.thing}Type) (inReceptacle ?o2 ?r)))"
            )
        elif self.family.verb:
            more = f" ({self.family.able} ?o) ({self.family.done} ?o)"
        return f"(exists (?r - receptacle) (exists (?o - object)\n    (and {kinds} (inReceptacle ?o ?r){more})))"


def _targets(family: GoalFamily, layout: Layout, kind: str) -> list[str]:
    """Returns the types of receptacles in the room that can be the target for an object of type ``kind``."""
    places = next(spec.places for spec in layout.room.things if spec.kind == kind)
    usual = {r.kind for r in layout.receptacles if r.kind in places}
    return [
        target
        for target in dict.fromkeys(r.kind for r in layout.receptacles)
        if kind in CONTAINS[target] and target not in WASHBOWLS | {family.tool} and (family.verb or usual - {target})
    ]


def draw_game(
    draw: Draw, family: GoalFamily, choice: Sequence[Layout], difficulty: SceneDifficulty
) -> tuple[FamilyGoal, Scene]:
    """Draws a goal of ``family`` and a furnished room in which it is reachable, but not reached yet.

    Args:
        draw: Source of randomness.
        family: Family of the goal.
        choice: Layouts to choose from; some with a lamp, and some of every kind of room.
        difficulty: Difficulty of the game.
    """
    fit = [layout for layout in choice if family.name != "look_at_obj_in_light" or layout.lamp is not None]
    rooms = [(room, weight) for room, weight in family.rooms if any(layout.room is room for layout in fit)]
    while True:
        room = draw.choose_weighted(rooms)
        layout = draw.choose([layout for layout in fit if layout.room is room])
        kind = draw.choose([k for k, places in layout.usual.items() if places and k in (family.kinds or layout.usual)])
        targets = [LAMP] if family.name == "look_at_obj_in_light" else _targets(family, layout, kind)
        if targets:
            break
    target = draw.choose(targets)
    sentence = draw.choose(family.sentences).format(thing=kind.lower(), target=target.lower())
    free = [r for r in layout.receptacles if kind in CONTAINS[r.kind] and (family.verb or r.kind != target)]
    places = next(spec.places for spec in layout.room.things if spec.kind == kind)
    usual = [r for r in free if r.kind in places]
    decoys = draw.choose_weighted(family.decoys) if difficulty.decoys is None else difficulty.decoys
    if draw.chance(family.hidden if difficulty.hidden is None else difficulty.hidden):
        choices = [[r for r in free if r.door] or usual] * (family.needs + decoys)
    else:
        choices = [[r for r in usual if not r.door] or usual] * family.needs + [usual] * decoys
    return FamilyGoal(family, kind, target, sentence), furnish(draw, layout, difficulty.things, kind, choices)


class PlanBuilder:
    """Builds a plan, as commands, with full knowledge of the scene."""

    def __init__(self, scene: Scene, names: dict[str, str]) -> None:
        self.names = names
        self.spot = scene.start
        self.opened: set[str] = set()
        self.commands: list[str] = []

    def _add(self, command: str, *ids: str) -> None:
        self.commands.append(command.format(*(self.names[i] for i in ids)))

    def go(self, receptacle: Receptacle, reach: bool = True) -> None:
        """Goes to a receptacle and, where the plan must ``reach`` into it, opens it."""
        if self.spot != receptacle.spot:
            self._add("go to {}", receptacle.id)
            self.spot = receptacle.spot
        if reach and receptacle.door and receptacle.id not in self.opened:
            self._add("open {}", receptacle.id)
            self.opened.add(receptacle.id)

    def take(self, item: Item, host: Receptacle) -> None:
        """Takes an object from its receptacle."""
        self.go(host)
        self._add("take {} from {}", item.id, host.id)

    def put(self, item: Item, target: Receptacle) -> None:
        """Puts an object in a receptacle."""
        self.go(target)
        self._add("move {} to {}", item.id, target.id)

    def use(self, lamp: Item, host: Receptacle) -> None:
        """Switches a lamp on."""
        self.go(host, reach=False)
        self._add("use {}", lamp.id)

    def treat(self, verb: str, item: Item, tool: Receptacle) -> None:
        """Cleans, heats or cools an object."""
        self.go(tool, reach=False)
        self._add(verb + " {} with {}", item.id, tool.id)


def walkthrough(goal: FamilyGoal, scene: Scene, names: dict[str, str]) -> list[str]:
    """Returns the commands of the shortest plan that carries one object after the other without a detour."""
    return min(_plans(goal, scene, names), key=lambda plan: len(plan.commands)).commands


def _plans(goal: FamilyGoal, scene: Scene, names: dict[str, str]) -> Iterator[PlanBuilder]:
    candidates = [(item, item.host) for item in scene.items if item.kind == goal.thing and item.host is not None]
    if goal.target == LAMP:
        lamps = [(item, item.host) for item in scene.items if item.kind == LAMP and item.host is not None]
        for item, host in candidates:
            for lamp, stand in lamps:
                plan = PlanBuilder(scene, names)
                plan.take(item, host)
                plan.use(lamp, stand)
                yield plan
        return
    spots = {host.spot for _, host in candidates}
    tools: list[Receptacle | None] = [r for r in scene.layout.receptacles if r.kind == goal.family.tool] or [None]
    spots.update(tool.spot for tool in tools if tool is not None)
    for target in _worth_trying(scene.layout.receptacles, goal.target, spots):
        for tool in tools:
            for combination in permutations(candidates, goal.family.needs):
                plan = PlanBuilder(scene, names)
                for item, host in combination:
                    plan.take(item, host)
                    if tool is not None:
                        plan.treat(goal.family.verb, item, tool)
                    plan.put(item, target)
                yield plan


def _worth_trying(receptacles: Iterable[Receptacle], kind: str, spots: set[str]) -> list[Receptacle]:
    """Returns receptacles of type ``kind``, one of each set whose members give plans of equal length."""
    different: dict[tuple[bool, str | None], Receptacle] = {}
    for r in receptacles:
        if r.kind == kind:
            different.setdefault((r.door, r.spot if r.spot in spots else None), r)
    return list(different.values())
