"""Episodes of the players."""

from __future__ import annotations

from typing import Any

from envsuite.webshop.expert import WebShopExpert, WebShopLexical
from envsuite.webshop.tasks import HORIZON


def play(env: Any, player: WebShopExpert | WebShopLexical, task_id: str) -> float:
    """The reward of an episode, all of whose actions are valid."""
    env.reset(options={"task_id": task_id})
    for _ in range(HORIZON):
        _, reward, terminated, _, info = env.step(player.act(env))
        assert info["valid"], info["error"]
        if terminated:
            return float(reward)
    return 0.0
