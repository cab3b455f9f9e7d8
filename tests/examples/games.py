"""A short game of every environment of one agent, for the tests of the examples."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

import gymnasium

from envsuite.core import Action, Observation, StepInfo
from envsuite.core.registration import builtin
from envsuite.remote.making import make_player

_SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "ALFWorld-v0": ("pick_and_place_simple-Book-None-Dresser-302/trial_T36694698_000126_808787", {}),
    "Bifurcation-v0": ("train-0", {"horizon": 3, "decisions": 2}),
    "PaperSearch-v0": ("300-0/train#4", {"papers": 300, "shown": 2, "snippet": 0}),
    "PythonMath-v0": ("arithmetic-1/train#28", {}),
    "SearchQA-v0": ("0/inference-2/train#6", {"passage_length": 60}),
    "Sokoban-v0": ("boxes-1/train#30", {}),
    "TextCraft-v0": ("end_stone_brick_slab", {}),
    "WebShop-v0": ("TT74HB32GH/human-0", {}),
}
"""Id -> a task that its expert solves in a few steps, and arguments that keep observations short."""
IDS = [spec.id for spec in builtin() if spec.id not in ("PaperSearchTeam-v0", "BFCL-v0")]
"""Without the one whose agents have a conversation each, and the one whose tools change, which TRL does not take."""


class Turn(NamedTuple):
    """An action of the expert, and what followed."""

    action: Action
    observation: Observation
    reward: float
    info: StepInfo


def arguments(env_id: str) -> dict[str, Any]:
    """Arguments of ``gymnasium.make`` with which ``env_id`` has one task, that of :func:`game`."""
    task, given = _SMALL[env_id]
    return {"tasks": [task], **given}


def game(env_id: str, one_call: bool = False) -> tuple[Observation, list[Turn]]:
    """The first observation and the turns of the expert's game; with ``one_call`` of the first call of each action."""
    with closing(gymnasium.make(env_id, **arguments(env_id))) as env:
        player, turns, over = make_player(env_id, "expert"), [], False
        first, _ = env.reset(options={"task_id": _SMALL[env_id][0]})
        while not over:
            action = player.act(env)[: 1 if one_call else None]
            observation, reward, terminated, truncated, info = env.step(action)
            turns.append(Turn(action, observation, float(reward), info))
            over = terminated or truncated
        assert turns[-1].info["success"], f"{env_id}: the expert fails; take another task"
        return first, turns
