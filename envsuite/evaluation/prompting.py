"""The prompting baselines of the literature, for models behind endpoints: direct, ReAct, Reflexion, few-shot."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from envsuite.core.errors import UsageError, unknown
from envsuite.core.tools import Tool
from envsuite.playing.dialog import NO_TOKENS, ChatDialog
from envsuite.playing.engine import ChatCompletion, ChatRequest, Sampling
from envsuite.prompting import Chat, Codec, EndpointCodec, ParseResult, PromptSpec, make_codec, make_memory

Baseline = Literal["direct", "react", "reflexion", "few-shot"]
Form = Literal["native", "tags", "brackets"]
TRIALS = 3
"""Trials of Reflexion."""
EXAMPLES = 2
"""Demonstrations of few-shot prompting."""
ONE_AGENT = ("reflexion", "few-shot")
"""Baselines for environments of one agent: trials are the episode's, and demonstrations show the tools of all."""
_KEPT = 3
"""Reflections that a prompt shows, the latest ones (Shinn et al. 2023 keep one to three)."""
_EARLIER = "You have attempted this task before, without success. What you noted after each attempt:"
_REFLECT = (
    "This attempt is over, and the task is not solved. Note in one to three sentences what went wrong and what you "
    "will do differently when you attempt the same task again from its start. Write only these sentences."
)


@dataclass(frozen=True)
class Prompting:
    """How a model is prompted.

    ``direct`` asks for an action alone. ``react`` (Yao et al. 2023) asks for a thought before each action.
    ``reflexion`` (Shinn et al. 2023) is ReAct in several trials: after one that the environment does not call solved,
    the model notes what went wrong, and the prompts of later trials show these notes. ``few-shot`` is ``direct`` below
    demonstrations of the environment's expert, from the training split.

    Raises:
        UsageError: The settings contradict each other.
    """

    baseline: Baseline = "direct"
    tools: Form = "tags"
    """``native``: the endpoint's own tool calls; ``tags`` and ``brackets``: text, see :mod:`envsuite.prompting`."""
    memory: str = "full"
    examples: int = 0
    """Demonstrations in the prompt."""
    trials: int = 1
    temperature: float = 0.4
    top_p: float = 1.0
    max_tokens: int = 512
    """Most tokens of an answer."""

    def __post_init__(self) -> None:
        if self.baseline not in get_args(Baseline):
            raise unknown("baseline", self.baseline, get_args(Baseline))
        if self.tools not in get_args(Form):
            raise unknown("form of actions", self.tools, get_args(Form))
        if (self.baseline == "few-shot") != (self.examples > 0):
            raise UsageError(
                f"--baseline {self.baseline} with {self.examples} demonstrations; write few-shot:{EXAMPLES}"
            )
        if self.examples and self.tools == "native":
            raise UsageError(
                "--baseline few-shot shows demonstrations as text, and with --tools native calls are no text; take "
                "--tools tags or brackets"
            )
        if self.trials < 1 or (self.trials > 1) != (self.baseline == "reflexion"):
            raise UsageError(
                f"--trials {self.trials} with --baseline {self.baseline}; only reflexion has several trials"
            )
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            flags = f"--temperature {self.temperature:g}, --top-p {self.top_p:g}, --max-tokens {self.max_tokens}"
            raise UsageError(f"{flags}: they must be 0 or more, above 0 and at most 1, 1 or more")
        make_memory(self.memory)

    @property
    def label(self) -> str:
        """Returns the name in tables."""
        examples = f":{self.examples}" if self.examples else ""
        return f"{self.baseline}{examples}, {self.tools}"

    @property
    def thinks(self) -> bool:
        """Whether a thought is asked for before each action."""
        return self.baseline in ("react", "reflexion")

    def codec(self) -> Codec:
        """Returns the format of actions."""
        return EndpointCodec(self.thinks) if self.tools == "native" else make_codec(self.tools, think=self.thinks)

    def chat(self, tools: Sequence[Tool], max_calls: int, below: str = "") -> Chat:
        """Returns the writer of an episode's messages, with ``below`` under the instructions."""
        return Chat(PromptSpec(self.codec(), make_memory(self.memory), examples=below), tools, max_calls)

    def prompt_conditions(self) -> dict[str, Any]:
        """Returns what prompts follow from, as plain JSON."""
        return {
            "baseline": self.baseline,
            "codec": self.tools,
            "memory": str(make_memory(self.memory)),
            "examples": self.examples,
        }

    def sampling(self) -> dict[str, Any]:
        """Returns how tokens are drawn: arguments of :class:`~envsuite.playing.engine.Sampling`, and plain JSON."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}


class BaselineDialog(ChatDialog):
    """One episode's dialog with a model, over all of its trials.

    Args:
        prompting: How the model is prompted.
        tools: The tools of the environment.
        max_calls: Maximum number of calls in one step.
        examples: Demonstrations, as text.
        key: Identifies the episode: requests' seeds follow from it, the trial and the number of the request.
    """

    def __init__(
        self, prompting: Prompting, tools: Sequence[Tool], max_calls: int, examples: str = "", key: str = ""
    ) -> None:
        self.prompting = prompting
        self.trial = 1
        """Number of the current trial, from 1."""
        self.reflecting = False
        """Whether the next answer is a reflection."""
        self._tools, self._max_calls, self._examples, self._key = tools, max_calls, examples, key
        self._notes: list[str] = []
        self._asked = 0
        super().__init__(self._begin())

    def request(self, number: int, sampling: Sampling, session: int, seed: int) -> ChatRequest:
        """Returns the messages and the tools, or the messages that ask for a reflection."""
        self._asked += 1
        key = f"{self._key}/{self.trial}/{self._asked}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        request = super().request(number, sampling, session, seed)
        if self.reflecting:
            request = replace(request, messages=_append_text(request.messages, _REFLECT), tools=None)
        return request

    def read(self, completion: ChatCompletion) -> ParseResult | None:
        """Takes an answer; returns the action in it, or ``None`` where it was a reflection, and a new trial begins."""
        result = super().read(completion)
        if not self.reflecting:
            return result
        self._notes.append(" ".join(completion.answer.content.split()) or "(nothing)")
        self.reflecting, self._completion = False, None
        self.trial += 1
        self.chat = self._begin()
        return None

    def columns(self) -> dict[str, Any]:
        """Returns fields without text: results have none, and messages grow with each step."""
        assert self._completion is not None
        return {**NO_TOKENS, "finish_reason": self._completion.finish_reason}

    def tries_again(self, success: bool) -> bool:
        """Takes the end of a trial; returns whether there is another one, which a reflection comes before."""
        self.reflecting = not success and self.trial < self.prompting.trials
        return self.reflecting

    def _begin(self) -> Chat:
        notes = [f"{number}. {note}" for number, note in enumerate(self._notes, 1)][-_KEPT:]
        parts = (self._examples, "\n".join((_EARLIER, *notes)) if notes else "")
        below = "\n\n".join(part for part in parts if part)
        return self.prompting.chat(self._tools, self._max_calls, below)


def _append_text(messages: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns the messages with a text of the user at their end; no two messages of the user follow each other."""
    conversation = [dict(message) for message in messages]
    last = conversation[-1]
    if last["role"] != "user":
        conversation.append({"role": "user", "content": text})
    elif isinstance(last["content"], str):
        last["content"] += f"\n\n{text}"
    else:
        last["content"] = [*last["content"], {"type": "text", "text": text}]
    return conversation
