"""The environments that exist, and their registration with Gymnasium."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium


@dataclass(frozen=True)
class EnvSpec:
    """One environment id: where its class is, and its horizon."""

    id: str
    entry_point: str
    max_episode_steps: int
    extra: str
    """Name of the pip extra that it needs."""
    inline: bool = False
    """A step costs less than a message to another process: a server plays it in the process that answers HTTP."""


ENVIRONMENTS = (
    EnvSpec("ALFWorld-v0", "envsuite.alfworld.env:ALFWorld", max_episode_steps=50, extra="alfworld"),
    EnvSpec("TextCraft-v0", "envsuite.textcraft.env:TextCraft", max_episode_steps=50, extra="textcraft", inline=True),
    EnvSpec("WebShop-v0", "envsuite.webshop.env:WebShop", max_episode_steps=15, extra="webshop"),
)


def register_envs() -> None:
    """Register every id with Gymnasium; does nothing for ids that are registered already."""
    for spec in ENVIRONMENTS:
        if spec.id not in gymnasium.registry:
            gymnasium.register(
                spec.id,
                entry_point="envsuite.making:make",
                max_episode_steps=spec.max_episode_steps,
                kwargs={"env_id": spec.id},
            )
