"""Which answer of the model an action came from: the action's reward and validity are those of this answer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from envsuite.core.tools import ToolCall

if TYPE_CHECKING:
    from trainers.gateway.session import AnsweredRequest

_RECENT = 256  # answers before an action that it may have come from
Place = tuple[int, int]
"""An answer: number of its request, and index of the choice."""


@dataclass(frozen=True, eq=False)
class EnvStep:
    """A step of an environment."""

    calls: tuple[ToolCall, ...]
    """Empty where none could be read."""
    command: str
    """The text that the agent typed; empty where it called tools."""
    call_id: str
    """Id of the call in the model's answer; empty where the agent does not give it."""
    before: str
    """Observation before the step."""
    after: str
    """Observation after the step."""
    reward: float
    info: Mapping[str, Any]
    asked: frozenset[AnsweredRequest] = frozenset()
    """Requests whose answers had been sent before the step; the session fills it in."""
    requests: int = 0
    """Number of requests that had come before the step."""

    @cached_property
    def words(self) -> list[str]:
        """Texts that an answer contains if the action was read from it."""
        values = [value for call in self.calls for value in call.arguments.values()]
        parts = values or [call.name for call in self.calls] or [self.command]
        texts = [_normalise(part if isinstance(part, str) else orjson.dumps(part).decode()) for part in parts]
        return [text for text in texts if text]

    @cached_property
    def observations(self) -> tuple[str, str]:
        """The observations before and after, without what formatting changes."""
        return _normalise(self.before), _normalise(self.after)


class _Answer:
    def __init__(self, request: AnsweredRequest, index: int) -> None:
        self.request, self.place, self.message = request, (request.number, index), request.choices[index].message
        calls = [orjson.dumps([call.name, dict(call.arguments)]).decode() for call, _ in self.message.calls]
        self.text = _normalise("\n".join([self.message.text, *calls]))
        self.question = _normalise(request.ask.observation)
        self.actions: list[EnvStep] = []

    def evidence(self, action: EnvStep, replies: Sequence[tuple[int, str]]) -> tuple[bool, ...]:
        """Signs that an action came from this answer, the strongest first."""
        calls = [call for call, _ in self.message.calls]
        for call in (call for earlier in self.actions for call in earlier.calls if call in calls):
            calls.remove(call)
        words, (before, after) = action.words, action.observations
        quotes = min((_count(word, self.text) for word in words), default=0)
        return (
            bool(action.call_id) and any(call_id == action.call_id for _, call_id in self.message.calls),
            bool(action.calls) and all(call in calls for call in action.calls),
            not self.request.ask.parent,
            bool(after) and any(number >= action.requests and after in reply for number, reply in replies),
            quotes > sum(earlier.words == words for earlier in self.actions),
            bool(before) and before in self.question,
            quotes > 0,
        )


def actions_by_answer(actions: Sequence[EnvStep], requests: Sequence[AnsweredRequest]) -> dict[Place, list[EnvStep]]:
    """The actions of each answer that acted.

    An action is that of the answer which has its call by id; else which has an equal call; else to which the agent has
    replied with the new observation; else which has the action's text. Of several, it is that of an answer to the
    observation before, and not of one that was asked about another of them; then that of the latest request and its
    first choice. An action before any answer is the first one's.

    Args:
        actions: In their order.
        requests: Requests whose answers were delivered, in their order; at least one.
    """
    answers = [_Answer(request, index) for request in requests for index in range(len(request.choices))]
    replies, roots = defaultdict[bytes, list[tuple[int, str]]](list), set[int]()
    for answer in answers:
        quotes = [message.key for message in answer.request.ask.messages if message.role == "assistant"]
        replies[quotes[-1] if quotes else b""].append((answer.request.number, answer.question))
    numbers = [answer.request.number for answer in answers]
    for action in actions:
        end = bisect_left(numbers, action.requests)
        recent = answers[max(0, end - _RECENT) : end]
        candidates = [answer for answer in recent if answer.request in action.asked] or answers[:1]
        signs = [answer.evidence(action, replies.get(answer.message.key, ())) for answer in candidates]
        most = max(signs)
        best = [answer for answer, sign in zip(candidates, signs, strict=True) if sign == most]
        texts = [answer.text for answer in best if answer.text]
        actors = [answer for answer in best if not any(_count(text, answer.question) for text in texts)]
        best_answer = max(
            actors or best,
            key=lambda answer: (
                answer.request.root in roots, answer.request.number, bool(answer.actions), -answer.place[1]
            ),
        )  # fmt: skip
        best_answer.actions.append(action)
        roots.add(best_answer.request.root)
    return {answer.place: answer.actions for answer in answers if answer.actions}


def _count(word: str, text: str) -> int:
    """How often a text has words."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text)) if word in text else 0


def _normalise(text: str) -> str:
    """A text without what formatting changes."""
    return " ".join(text.casefold().split())
