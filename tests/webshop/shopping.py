"""Episodes of the players."""

from __future__ import annotations

from typing import Any

from teaching import Acting, played

from envsuite.webshop.expert import WebShopExpert, WebShopLexical
from envsuite.webshop.tasks import HORIZON


def play(env: Any, player: WebShopExpert | WebShopLexical, task_id: str) -> float:
    """The reward of an episode, all of whose actions are valid."""
    turns = played(env, task_id, Acting(player), HORIZON)
    assert all(turn.info["valid"] for turn in turns)
    return turns[-1].reward
