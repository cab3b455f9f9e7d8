"""What all tests of environments of other packages share."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core import ToolCall
from envsuite.core.naming import spec_of


def made(env_id: str, **options: Any) -> Any:
    return gymnasium.make(spec_of(env_id).id, disable_env_checker=True, **options)


def called(env: Any, tool: str, **arguments: Any) -> Any:
    """What a step of one call leads to."""
    return env.step([ToolCall(tool, arguments)])
