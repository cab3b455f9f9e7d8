"""Episodes of the built-in sources as they were played once, to notice when an environment answers otherwise.

``python tests/recorded.py`` records them anew, after a change that is meant to change what an environment says.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import orjson

from envsuite.alfworld.player import ALFWorldPlanner as Searcher
from envsuite.core import Move, ToolCall, ToolEnv
from envsuite.textcraft.player import CraftPlanner as Crafter
from envsuite.webshop.player import Shopper as Customer

FILE = Path(__file__).with_suffix(".json")
ALFWORLD = {"source": "generated", "split": "train", "games": 24}
PLAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "TextCraft-v0": ({"split": "train"}, Crafter(rash=0.3, careless=0.3, hasty=0.3)),
    "ALFWorld-v0": (ALFWORLD, Searcher(careless=0.2, idle=0.2, hasty=0.2, clumsy=0.2, dreamy=0.2)),
    "WebShop-v0": ({"source": "builtin", "split": "train"}, Customer(rash=0.3, hasty=0.3, dreamy=0.6)),
}
STEPS, SEEDS, OF_A_TYPE = 24, 40, 3


def digest(value: object) -> str:
    """Twelve characters that differ where ``value`` does."""
    return hashlib.sha256(orjson.dumps(value)).hexdigest()[:12]


def told(answer: tuple[Any, ...]) -> list[Any]:
    """What is recorded of a step's answer."""
    observation, reward, terminated, _, info = answer
    return [digest([observation["text"], observation["commands"]]), round(reward, 9), info["valid"], terminated]


def played(env: ToolEnv, task: str, calls: Iterable[ToolCall]) -> dict[str, Any]:
    """What an episode shows and earns; ``calls`` may look at what the environment says."""
    observation, info = env.reset(options={"task_id": task})
    steps: list[list[Any]] = []
    for call in calls:
        answer = env.step((call,))
        steps.append([call.name, dict(call.arguments), *told(answer)])
        info = answer[4]
        if answer[2]:
            break
    asked = digest([observation["task"], observation["text"], observation["commands"]])
    return {"task": task, "type": info["task_type"], "asked": asked, "score": round(info["score"], 9), "steps": steps}


def _made(env_id: str, **arguments: Any) -> ToolEnv:
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def replayed(env_id: str, episodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The recorded calls, made again."""
    env = _made(env_id, **PLAYS[env_id][0])
    for episode in episodes:
        yield played(env, episode["task"], [ToolCall(name, arguments) for name, arguments, *_ in episode["steps"]])
    env.close()


def erring(moves: Iterable[Move]) -> Iterator[ToolCall]:
    """The calls of a player; before some, one whose argument ends in a letter too many."""
    for number, move in enumerate(islice(moves, STEPS)):
        call = move.action[0]
        if number % 4 == 2:
            yield ToolCall(call.name, {name: f"{value}x" for name, value in call.arguments.items()})
        yield call


def recorded(env_id: str) -> list[dict[str, Any]]:
    """Episodes of a player that errs, some of each type of task."""
    arguments, player = PLAYS[env_id]
    env, found = _made(env_id, **arguments), list[dict[str, Any]]()
    for seed in range(SEEDS):
        task = env.reset(seed=seed)[1]
        if sum(episode["type"] == task["task_type"] for episode in found) < OF_A_TYPE:
            found.append(played(env, task["task_id"], erring(player.turns(env, random.Random(seed)))))
    env.close()
    return found


if __name__ == "__main__":
    lines = [
        f'"{env_id}": [\n' + ",\n".join(orjson.dumps(episode).decode() for episode in recorded(env_id)) + "\n]"
        for env_id in PLAYS
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
