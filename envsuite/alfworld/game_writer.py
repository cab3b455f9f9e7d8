"""Writes a game's files as ALFWorld has them: PDDL domain and problem, grammar, and record of the task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files

from envsuite.alfworld.families import FamilyGoal
from envsuite.alfworld.names import spoken_names
from envsuite.alfworld.scenes import Scene
from envsuite.alfworld.vocabulary import CLEANABLE, CONTAINS, COOLABLE, FIXED, HEATABLE, LAMP, SLICEABLE, VESSELS

AGENT = "agent1"
NAMED_BY_DOMAIN = (("SinkBasinType", "MicrowaveType", "FridgeType"), ("KnifeType", "ButterKnifeType"))
"""Types of receptacles and of objects that the domain mentions, so that every problem must declare them."""


@lru_cache
def template(name: str) -> str:
    """Returns the text of ``domain.pddl`` or ``grammar.twl2``."""
    return (files("envsuite.alfworld") / "templates" / name).read_text(encoding="utf-8")


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Returns the names by which a game shows the objects and receptacles with these ids."""
    ids = list(ids)
    names = spoken_names(i.lower() for i in ids)  # engines fold ids to lower case before they number them
    return {i: names[i.lower()] for i in ids}


def scene_names(scene: Scene) -> dict[str, str]:
    """Returns the :func:`display_names` of everything in a room."""
    return display_names([r.id for r in scene.layout.receptacles] + [item.id for item in scene.items])


def problem_text(name: str, goal: FamilyGoal, scene: Scene) -> str:
    """Returns the PDDL problem of a game."""
    receptacles = scene.layout.receptacles
    kinds = dict.fromkeys(item.kind for item in scene.items)
    holders = dict.fromkeys(r.kind for r in receptacles)
    spots = dict.fromkeys([*(r.spot for r in receptacles), *(item.spot for item in scene.items), scene.start])
    objects = {
        "agent": [AGENT],
        "receptacle": [r.id for r in receptacles],
        "object": [item.id for item in scene.items],
        "location": spots,
        "rtype": dict.fromkeys([*(f"{kind}Type" for kind in holders), *NAMED_BY_DOMAIN[0]]),
        "otype": dict.fromkeys([*(f"{kind}Type" for kind in kinds), *NAMED_BY_DOMAIN[1]]),
    }
    declarations = "\n".join(f"    {i} - {type_}" for type_, ids in objects.items() for i in ids)
    facts = "\n".join(f"    ({fact})" for fact in _facts(scene, list(kinds), list(holders)))
    return (
        f"(define (problem {name})\n  (:domain alfred)\n"
        f"  (:objects\n{declarations})\n  (:init\n{facts})\n  (:goal {goal.pddl}))\n"
    )


def _facts(scene: Scene, kinds: list[str], holders: list[str]) -> Iterator[str]:
    for r in scene.layout.receptacles:
        yield f"receptacleType {r.id} {r.kind}Type"
        yield f"receptacleAtLocation {r.id} {r.spot}"
        if r.door:
            yield f"openable {r.id}"
    for holder in holders:
        for kind in kinds:
            if kind in CONTAINS[holder]:
                yield f"canContain {holder}Type {kind}Type"
    for item in scene.items:
        yield f"objectType {item.id} {item.kind}Type"
        yield f"objectAtLocation {item.id} {item.spot}"
        if item.host is not None:
            yield f"inReceptacle {item.id} {item.host.id}"
        for predicate in _properties(item.kind):
            yield f"{predicate} {item.id}"
    yield f"atLocation {AGENT} {scene.start}"


@lru_cache
def _properties(kind: str) -> tuple[str, ...]:
    has = {
        "pickupable": kind not in FIXED,
        "toggleable": kind in (LAMP, "FloorLamp"),
        "isReceptacleObject": kind in VESSELS,
        "cleanable": kind in CLEANABLE,
        "heatable": kind in HEATABLE,
        "coolable": kind in COOLABLE,
        "sliceable": kind in SLICEABLE,
    }
    return tuple(predicate for predicate, true in has.items() if true)


def game_file(goal: FamilyGoal, problem: str, walkthrough: list[str]) -> str:
    """Returns the content of ``game.tw-pddl``."""
    content = {
        "pddl_domain": template("domain.pddl"),
        "grammar": template("grammar.twl2").replace("THE TASK", goal.sentence),
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": walkthrough,
    }
    return json.dumps(content)


def record_file(name: str, goal: FamilyGoal, scene: Scene) -> str:
    """Returns the content of ``traj_data.json``."""
    plan = scene.layout.plan
    lamp = goal.target == LAMP
    sentence = goal.sentence[0].upper() + goal.sentence[1:]
    content = {
        "task_id": name,
        "task_type": goal.family.name,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.thing,
            "parent_target": "" if lamp else goal.target,
            "toggle_target": goal.target if lamp else "",
        },
        "scene": {"floor_plan": f"FloorPlan{plan}", "scene_num": plan},
        "turk_annotations": {"anns": [{"task_desc": sentence, "high_descs": []}]},
    }
    return json.dumps(content)


def folder_name(goal: FamilyGoal, scene: Scene) -> str:
    """Returns ALFRED's name for the folder of a task."""
    return f"{goal.family.name}-{goal.thing}-None-{goal.target}-{scene.layout.plan}"
