"""A small house to play in: a domain, a grammar and problems of its own, in the form of ALFWorld's games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

DOMAIN = """
(define (domain house) ; comments end with the line
 (:requirements :adl :typing)
 (:types room thing box cat - animal dog - animal animal)
 (:constants Rex - dog)
 (:predicates
   (in ?x - animal ?r - room) (door ?a ?b - room) (lies ?t - thing ?r - room) (inside ?t - thing ?b - box)
   (stands ?b - box ?r - room) (lid ?b - box) (open ?b - box) (has ?x - animal ?t - thing) (busy ?x - animal)
   (lamp ?t - thing) (lit ?t - thing) (seen ?r - room) (kept ?t - thing))
 (:functions (total-cost) - number)
 (:action go
   :parameters (?x - animal ?from - room ?to - room)
   :precondition (and (in ?x ?from) (or (door ?from ?to) (door ?to ?from)))
   :effect (and (not (in ?x ?from)) (in ?x ?to) (increase (total-cost) 1)))
 (:action stay
   :parameters (?x - animal ?r - room)
   :precondition (in ?x ?r)
   :effect (in ?x ?r))
 (:action unlock
   :parameters (?x - animal ?b - box)
   :precondition (and (lid ?b) (not (open ?b)) (exists (?r - room) (and (in ?x ?r) (stands ?b ?r))))
   :effect (open ?b))
 (:action lift
   :parameters (?x - animal ?t - thing ?b - box ?r - room)
   :precondition (and (inside ?t ?b) (stands ?b ?r) (in ?x ?r) (not (busy ?x)) (or (not (lid ?b)) (open ?b)))
   :effect (and (not (inside ?t ?b)) (has ?x ?t) (busy ?x)))
 (:action drop
   :parameters (?x - animal ?t - thing ?b - box ?r - room)
   :precondition (and (has ?x ?t) (stands ?b ?r) (in ?x ?r) (or (not (lid ?b)) (open ?b)) (not (kept ?t)))
   :effect (and (inside ?t ?b) (not (has ?x ?t)) (not (busy ?x))))
 (:action press
   :parameters (?x - animal ?t - thing)
   :precondition (and (lamp ?t) (has ?x ?t))
   :effect (and (when (lit ?t) (not (lit ?t))) (when (not (lit ?t)) (lit ?t))))
 (:action look
   :parameters (?x - dog ?r - room)
   :precondition (in ?x ?r)
   :effect (seen ?r))
 (:action count
   :parameters (?x - animal)
   :precondition ()
   :effect (busy ?x))
)
"""

GRAMMAR = '''
# a comment
grammar :: """
  {
    "intro": [{"rhs": "Hello.\\n\\n#look#\\n\\n#task#"}],
    "who": [{"rhs": "[{x.id | in(x:animal, r:room)}]"}],
    "task": [{"rhs": "Your task is to: light a lamp."}],
    "look": [
      {"condition": "in(x:dog, r:room)",
       "rhs": "In [{r.name | in(x:dog, r:room)}]: [{#boxed(b)# | in(x:dog, r:room) & stands(b:box, r:room)}]."},
      {"rhs": "Nowhere."}
    ],
    "boxed(b)": [{"rhs": "{b.indefinite} {b.name}#state#"}],
    "state": [
      {"condition": "open(b:box) & lid(b:box)", "rhs": "/open"},
      {"condition": "lid(b:box)", "rhs": "/shut"},
      {"rhs": ""}
    ],
    "content": [{"rhs": "[{t.indefinite + ' ' + t.name | inside(t:thing, b:box)}]"}],
    "gone": [
      {"condition": "not_inside(t:thing, b:box)", "rhs": " Once: [{t.name | not_inside(t:thing, b:box)}]."},
      {"rhs": ""}
    ],
    "light": [
      {"condition": "lit(t:thing)", "rhs": "shines"},
      {"condition": "not_lit(t:thing)", "rhs": "said dark"},
      {"rhs": "untouched"}
    ],
    "list_empty": [{"rhs": "nothing"}],
    "list_separator": [{"rhs": ", "}],
    "list_last_separator": [{"rhs": ", and "}]
  }
""";
action go { template :: "go to {to}"; feedback :: "You are in {to.definite} {to.name or to.id}."; }
action stay { template :: "stay"; feedback :: "Here: #who#."; }
action unlock { template :: "open {b}"; feedback :: "Open: #content#"; }
action lift { template :: "take {t} from {b}"; feedback :: "Taken. Left: #content##gone#"; }
action drop { template :: "put {t} into {b}"; feedback :: "Put. Now: #content##gone#"; }
action press { template :: "press {t}"; feedback :: "It #light#."; }
action look { template :: "look"; feedback :: "#look#"; }
action count { template :: "count"; feedback :: "{x.id}: [{r.name | door(r:room, r2:room)}]"; }
'''

OBJECTS = """hall_bar_1 kitchen_bar_1 attic_bar_1 - room
  chest_bar_1 chest_bar_2 shelf_bar_1 - box lamp_bar_1 lamp_bar_2 cup_bar_1 - thing"""
INIT = """(in Rex hall_bar_1) (door hall_bar_1 kitchen_bar_1) (door kitchen_bar_1 attic_bar_1) (lamp lamp_bar_1)
  (lamp lamp_bar_2) (stands chest_bar_1 hall_bar_1) (stands shelf_bar_1 kitchen_bar_1)
  (stands chest_bar_2 kitchen_bar_1) (lid chest_bar_1) (lid chest_bar_2) (inside cup_bar_1 shelf_bar_1)
  (inside lamp_bar_1 chest_bar_1)
  (inside lamp_bar_2 shelf_bar_1) (= (total-cost) 0)"""
GOAL = "(exists (?t - thing ?b - box) (and (lit ?t) (inside ?t ?b)))"


def problem(objects: str = OBJECTS, init: str = INIT, goal: str = GOAL) -> str:
    """A problem in the house."""
    return f"(define (problem p) (:domain house) (:objects {objects}) (:init {init}) (:goal {goal}))"


def game(**changes: Any) -> dict[str, Any]:
    """The content of a game file."""
    return {"pddl_domain": DOMAIN, "grammar": GRAMMAR, "pddl_problem": problem(), "solvable": True} | changes


def write(folder: Path, **changes: Any) -> Path:
    """A game file in ``folder``."""
    path = folder / "game.tw-pddl"
    path.write_bytes(orjson.dumps(game(**changes)))
    return path
