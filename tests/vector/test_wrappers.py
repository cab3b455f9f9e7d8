import gymnasium
import pytest
from vector_worlds import COMMAND, Rough

from envsuite.core import Tool, ToolCall, UsageError
from envsuite.core.wrappers import TextActions


def test_a_typed_command_is_the_call_of_the_one_tool(where):
    typed, called = TextActions(gymnasium.make("TextCraft-v0", **where)), gymnasium.make("TextCraft-v0", **where)
    assert typed.reset(seed=1) == called.reset(seed=1)
    for command in ("inventory", "get 2 oak logs", "dance", ""):
        assert typed.step(command) == called.step((ToolCall("env_step", {"command": command}),))
    assert typed.action_space.contains("anything")


def test_an_environment_of_other_tools_is_refused_with_their_names():
    class Two(Rough):
        tools = (Tool("do", "", COMMAND), Tool("undo", "", COMMAND))

    with pytest.raises(UsageError, match="Two has: do, undo"):
        TextActions(Two())
    with pytest.raises(UsageError, match="CartPoleEnv"):
        TextActions(gymnasium.make("CartPole-v1"))
