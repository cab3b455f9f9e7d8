"""Answers of a teacher behind the gateway: what a model learns from that calls no tool yet, in the agent's own prompts.

The teacher is the model of an endpoint, or the environment's expert. What it says is written as the policy would write
it, token by token, and recorded as the policy's answers are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import orjson

from envsuite.core.errors import EnvsuiteError
from envsuite.core.players import Player
from envsuite.core.tools import REPLY, ToolCall
from envsuite.playing.engine import ChatCompletion, ChatEngine, ChatRequest, Completion, Request
from envsuite.prompting import make_codec
from envsuite.prompting.chat import Answer, RawCall
from envsuite.prompting.codecs.base import reply_text
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.openai_api import json_of, message_of
from trainers.gateway.sequences import RequestPrompt, Writer
from trainers.gateway.session import Playable

TAUGHT = -1
"""In place of a version of the weights, that of tokens which a teacher has given; their log-probabilities are 0."""
_OVER = "The episode is over."
TYPED = make_codec("tags", think=False)
"""How commands stand in a text."""


def chat_request(request: Request, ask: ParsedRequest) -> ChatRequest:
    """A request as engines for messages take it."""
    tools = [tool.as_openai() for tool in ask.tools] or None
    messages = [message_of(message) for message in ask.messages]
    return ChatRequest(request.request_id, messages, tools, request.sampling, request.session, request.seed)


def token_completion(completion: ChatCompletion, prompt: RequestPrompt, writer: Writer) -> Completion:
    """A teacher's answer in the policy's tokens; one with an error where the policy could not have written it."""
    error, ids = completion.error, list[int]()
    if error is None:
        try:
            ids = writer.write(prompt, _message(completion.answer))
        except Refused as refused:
            error = str(refused)
    reason = completion.finish_reason if error is None or completion.error is not None else "error"
    return Completion(completion.request_id, ids, [0.0] * len(ids), reason, TAUGHT, error)  # type: ignore[arg-type]


def _message(answer: Answer) -> Message:
    try:
        calls = [(call, orjson.loads(call.arguments or "{}")) for call in answer.calls]
    except orjson.JSONDecodeError as error:
        raise Refused(502, "teacher_failed", f"the teacher's call has no JSON for arguments: {error}") from error
    for call, arguments in calls:
        if not isinstance(arguments, dict):
            raise Refused(502, "teacher_failed", f"the teacher's call has no object for arguments: {call.arguments}")
    tool_calls = tuple((ToolCall(call.name, arguments), call.id) for call, arguments in calls)
    return Message("assistant", answer.content, tool_calls, answer.thought)


class ExpertEngine(ChatEngine):
    """Answers as the expert of the environment that an agent plays.

    It calls the environment's tool, or where the agent has not given the model that tool, writes the command as the
    codec ``tags`` does.

    Args:
        slots: Most requests at a time.
    """

    name = "expert"

    def __init__(self, slots: int) -> None:
        self.most = slots
        self._games: dict[int | None, tuple[Playable, Player]] = {}
        self._done: deque[ChatCompletion] = deque()

    @classmethod
    def from_setup(cls, slots: int) -> ExpertEngine:
        """The engine; it has no settings."""
        return cls(slots)

    def join(self, session: int, game: Playable, expert: Player) -> None:
        """Has ``expert`` answer the requests of a session, whose agent plays ``game``."""
        self._games[session] = game, expert

    def submit(self, requests: Sequence[ChatRequest]) -> None:
        """Answers requests."""
        self._done += [self._answer(request) for request in requests]

    def _answer(self, request: ChatRequest) -> ChatCompletion:
        if request.session not in self._games:
            return ChatCompletion(request.request_id, Answer(""), "error", _OVER)
        game, expert = self._games[request.session]
        try:
            action = game.advise(expert)
        except EnvsuiteError as error:  # it knows no move from here
            return ChatCompletion(request.request_id, Answer(""), "error", f"the expert: {error}")
        if action is None:
            return ChatCompletion(request.request_id, Answer(_OVER), "stop")
        names = {tool["function"]["name"] for tool in request.tools or ()}
        if names.issuperset(call.name for call in action):
            calls = tuple(RawCall(call.name, json_of(call)) for call in action)
            return ChatCompletion(request.request_id, Answer("", calls), "stop")
        if (reply := reply_text(action, (REPLY,))) is not None:
            return ChatCompletion(request.request_id, Answer(reply), "stop")
        return ChatCompletion(request.request_id, Answer(TYPED.write(action)), "stop")

    def poll(self, timeout: float | None = None) -> list[ChatCompletion]:
        """Returns all answers."""
        answers, self._done = [*self._done], deque()
        return answers

    @property
    def pending(self) -> int:
        """Number of answers that wait."""
        return len(self._done)

    def release(self, session: int) -> None:
        """Forgets the game of a session."""
        self._games.pop(session, None)
