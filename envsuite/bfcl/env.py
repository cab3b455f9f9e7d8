"""``BFCL-v0``: a user asks an agent for something, turn by turn, and typed functions of services act on their state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from envsuite.bfcl.package import conversations, service_tools
from envsuite.bfcl.tasks import ENV_ID, load_tasks, number_of
from envsuite.bfcl.world import STEPS, Dialogue
from envsuite.core.env import Outcome, StepInfo, ToolEnv
from envsuite.core.functions import draw_value
from envsuite.core.options import EnvOptions, option
from envsuite.core.players import require_episode
from envsuite.core.tools import REPLY, Action, Tool, ToolCall

TASK = (
    "A user asks you for something, in several turns. Do what the user asks with the tools, as far as they and what "
    "you were told allow it, then reply: that ends your turn, and the next request follows."
)
OVER = "The user has no further request."
TOO_LONG = f"The conversation has ended: a turn has at most {STEPS} steps with calls."
REWARDS = ("end", "turn")


@dataclass(frozen=True, kw_only=True)
class BFCLOptions(EnvOptions):
    """The options of ``BFCL-v0``."""

    env_id: ClassVar[str] = ENV_ID
    source: str = option("builtin", '"builtin": the conversations of the package bfcl-eval', enum=("builtin",))
    reward: str = option(
        "end", '"end": 1 at the end if all turns pass; "turn": a share for each until one fails',
        enum=REWARDS,
    )  # fmt: skip


@cache
def _tools() -> tuple[Tool, ...]:
    return (*(tool for tools in service_tools().values() for tool in tools), REPLY)


class BFCL(ToolEnv):
    """Conversations of a scripted user with an agent; reward 1 if the original's checker passes all turns.

    An agent's turn ends by a reply, which is a text without a call. Functions that a conversation holds back come in
    its middle: each observation names the tools of its time.

    Args:
        given: Values of :class:`BFCLOptions`.

    Raises:
        MissingExtra: The package bfcl-eval is not installed.
    """

    max_calls = 10
    tools_change = True
    takes = BFCLOptions

    def __init__(self, **given: Any) -> None:
        options = BFCLOptions.of(given)
        self.tools = _tools()
        super().__init__(load_tasks().select(options.tasks), options.split, options.render_mode)
        self._share = options.reward == "turn"
        self._dialogue: Dialogue | None = None

    @property
    def dialogue(self) -> Dialogue:
        """The conversation of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._dialogue, ENV_ID)

    def _goal(self, task_id: str) -> str:
        return TASK

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the benchmark's id, the scenario's number, and SHA-256 of what the user says and of the answers."""
        conversation = conversations()[task_id]
        texts = {"requests": repr(conversation.requests), "answers": repr([*filter(None, conversation.answers)])}
        digests = {f"{name}_sha256": hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        return {"id": f"multi_turn_{task_id}", "number": number_of(task_id), **digests}

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._dialogue = Dialogue(conversations()[task_id])
        return TASK, Outcome(self._request())

    def _request(self) -> str:
        conversation, turn = self.dialogue.conversation, len(self.dialogue.turns) - 1
        return f"User: {conversation.requests[turn]}"

    def _offer(self) -> tuple[str, ...]:
        return (*self.dialogue.offer(), REPLY.name)

    def _execute(self, action: Action) -> Outcome:
        if any(call.name == REPLY.name for call in action[:-1]):
            problem = f"{REPLY.name} ends your turn, so it comes last"
            return self._outcome(f"Invalid action: {problem}.", error=problem)
        if action[-1].name != REPLY.name or len(action) > 1:
            self.dialogue.steps += 1
            if self.dialogue.over:
                return self._outcome(TOO_LONG)
        return super()._execute(action)

    def _call(self, call: ToolCall) -> Outcome:
        dialogue = self.dialogue
        if call.name != REPLY.name:
            return self._outcome(dialogue.call(call))
        before = dialogue.passed
        dialogue.reply()
        share = (dialogue.passed - before) / len(dialogue.conversation.requests)
        reward = share if self._share else float(dialogue.solved)
        return self._outcome(OVER if dialogue.over else self._request(), reward)

    def _outcome(self, text: str, reward: float = 0.0, error: str | None = None) -> Outcome:
        return Outcome(text, reward, self.dialogue.over, error, success=self.dialogue.solved)

    def _info(self, outcome: Outcome) -> StepInfo:
        info, dialogue = super()._info(outcome), self.dialogue
        info["score"] = dialogue.passed / len(dialogue.conversation.requests)
        return info

    def _state_key(self) -> str:
        return f"{len(self.dialogue.turns)}-{self.dialogue.services.key()}"

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        functions = [tool for tool in self.offered if tool != REPLY]
        tool = functions[int(rng.integers(len(functions)))]
        forms = {name: tool.parameters["properties"][name] for name in tool.parameters["required"]}
        forms |= {name: {**form, "type": "integer"} for name, form in forms.items() if isinstance(form["type"], list)}
        return ToolCall(tool.name, {name: draw_value(form, rng) for name, form in forms.items()})

    def _save(self) -> dict[str, Any]:
        turns = [[[call.name, dict(call.arguments)] for call in calls] for calls in self.dialogue.turns]
        return {"turns": turns, "steps": self.dialogue.steps}

    def _resume(self, task_id: str, world: dict[str, Any]) -> None:
        dialogue = Dialogue(conversations()[task_id])
        for number, calls in enumerate(world["turns"]):
            if number:
                dialogue.reply()
            for name, arguments in calls:
                dialogue.call(ToolCall(name, arguments))
        dialogue.steps = world["steps"]
        self._dialogue = dialogue
