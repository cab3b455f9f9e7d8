"""errand: an agent brings parcels from one place to another."""

from itertools import permutations
from typing import Literal, get_args

from envsuite import Environment

Place = Literal["bakery", "castle", "harbour", "library", "market", "mill"]
Parcel = Literal["bread", "clock", "fish", "lamp", "letter", "map", "piano", "rope"]
WAYS = [*permutations(get_args(Place), 2)]
TASKS = [{"parcel": parcel, "start": start, "end": end} for parcel in get_args(Parcel) for start, end in WAYS]

env = Environment(
    {"train": [task for number, task in enumerate(TASKS) if number % 3], "test": TASKS[::3]},
    goal=lambda task: f"Bring the {task['parcel']} from the {task['start']} to the {task['end']}.",
    steps=6,
)


@env.start
def start(task):
    """Return the state of a new episode, and the first text that the agent reads."""
    return {**task, "here": "market", "lies": task["start"]}, "You are at the market."


@env.tool
def go(world, place: Place):
    """Walk to a place."""
    world["here"] = place
    return f"You are at the {place}."


@env.tool
def take(world, parcel: Parcel):
    """Pick up a parcel."""
    if (parcel, world["here"]) != (world["parcel"], world["lies"]):
        raise ValueError(f"There is no {parcel} here.")
    world["lies"] = "hand"
    return f"You carry the {parcel}."


@env.tool
def put(world):
    """Put down what you carry."""
    if world["lies"] != "hand":
        raise ValueError("You carry nothing.")
    world["lies"] = world["here"]
    return f"The {world['parcel']} is at the {world['here']} now."


@env.reward
def reward(world):
    """Return None while the episode goes on, and a reward at its end; 1 is a success."""
    return 1.0 if world["lies"] == world["end"] else None


@env.expert
def expert(world):
    """Return the best call: the name of a tool, and its arguments."""
    if world["lies"] == "hand":
        return ("put", {}) if world["here"] == world["end"] else ("go", {"place": world["end"]})
    return ("take", {"parcel": world["parcel"]}) if world["here"] == world["lies"] else ("go", {"place": world["lies"]})
