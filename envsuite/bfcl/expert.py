"""An expert that makes the calls of the benchmark's answer sequence."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.bfcl.env import BFCL
from envsuite.bfcl.tasks import ENV_ID
from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_episode
from envsuite.core.tools import REPLY, Action, ToolCall

DONE = "Done."
"""What it replies where it has made the calls of a turn."""
CANNOT = "I cannot do that with what I have; please tell me more."
"""What it replies where a function or an argument is missing."""


class BFCLExpert:
    """Makes the calls of each turn's answer, as many in a step as there may be, and replies."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a BFCL in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, has no running episode, or one that has left the answers.
        """
        inner = unwrap_episode(env, ENV_ID, BFCL)
        turns, answers = inner.dialogue.turns, inner.dialogue.conversation.answers
        calls, answer = turns[-1], answers[len(turns) - 1]
        if inner.dialogue.failed or tuple(calls) != answer[: len(calls)]:
            raise UsageError(
                f"this episode of {ENV_ID} has left the answer sequence, and the expert knows no other way"
            )
        step = answer[len(calls) : len(calls) + inner.max_calls]
        return step or (ToolCall(REPLY.name, {"text": DONE if answer else CANNOT}),)
