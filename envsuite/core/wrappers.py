"""Wrappers for people, notebooks and simple baselines."""

from __future__ import annotations

import gymnasium

from envsuite.core.env import Observation, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.spaces import AnyText
from envsuite.core.tools import Action, ToolCall


class TextActions(gymnasium.ActionWrapper[Observation, str, Action]):
    """Accepts actions as text: ``env.step("go to shelf 1")``.

    Args:
        env: An environment with one tool, which takes one string.

    Raises:
        UsageError: The environment has other tools.
    """

    def __init__(self, env: gymnasium.Env[Observation, Action]) -> None:
        super().__init__(env)
        world = env.unwrapped
        if not isinstance(world, ToolEnv):
            raise UsageError(f"TextActions wraps environments of envsuite, got {type(world).__name__}")
        tool = world.tools[0]
        properties = tool.parameters.get("properties", {})
        if len(world.tools) > 1 or [schema.get("type") for schema in properties.values()] != ["string"]:
            names = ", ".join(tool.name for tool in world.tools)
            raise UsageError(
                f"TextActions needs one tool with one string parameter; {type(world).__name__} has: {names}. "
                "Step it with ToolCall(name, arguments)"
            )
        self._tool = tool.name
        (self._parameter,) = properties
        self.action_space = AnyText()

    def action(self, action: str) -> Action:
        """Returns the call that ``action`` stands for."""
        return (ToolCall(self._tool, {self._parameter: action}),)
