"""Ways of typing and showing that make single environments easier for people to play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envsuite.core.registration import ENVIRONMENTS, Profile
from envsuite.core.tools import Tool


def profile_of(env_id: str, tools: Sequence[Tool]) -> Profile:
    """Returns the profile of an environment; without an own one, the only tool takes lines if it has one argument."""
    own = ENVIRONMENTS[env_id].profile if env_id in ENVIRONMENTS else Profile()
    if own.plain or own.commands or len(tools) > 1 or only_argument(tools[0]) is None:
        return own
    return replace(own, plain=tools[0].name, commands=tools[0].name)


def only_argument(tool: Tool) -> str | None:
    """Returns the name of the tool's argument if it has only one."""
    names = list(tool.parameters.get("properties", {}))
    return names[0] if len(names) == 1 else None
