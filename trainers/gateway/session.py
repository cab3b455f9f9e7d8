"""One episode of an agent: its requests, their answers, and which answers have reached the agent."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from envsuite.core import Action
from envsuite.core.players import Player
from envsuite.core.tools import ToolCall
from envsuite.playing.engine import Completion
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode, Step, as_tokens
from trainers.gateway.credit import EnvStep, Place, actions_by_answer
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.sequences import RequestPrompt, Sequences, Writer
from trainers.steps.experts import cut

_NUMBERED = re.compile(r"call\d{5}")  # an id that the format gives where the model writes none
LARGEST_REWARD = 1000.0
"""Largest reward that may be given, above or below 0."""


@dataclass(frozen=True)
class Limits:
    """Limits of one episode."""

    requests: int = 200
    """Each choice of a request counts, and each count of tokens."""
    tokens: int | None = None
    """Sampled tokens of all answers; ``None`` for no limit."""
    seconds: float = 600.0
    """From the first to the last request."""


@dataclass(frozen=True)
class AnswerChoice:
    """One answer to a request."""

    message: Message
    completion: Completion
    """Tokens as they are recorded: up to the text that stopped them."""
    finish_reason: str
    """``"stop"``, ``"length"`` or ``"tool_calls"``."""
    problem: str = ""
    """Why a call in it is none."""
    stopped: str = ""
    """The text of ``stop`` that ended it."""


_BLANK = RequestPrompt(as_tokens([]), (), (), "")


@dataclass(eq=False)
class AnsweredRequest:
    """A request that was taken."""

    number: int
    ask: ParsedRequest
    prompt: RequestPrompt = _BLANK
    """Without tokens until it is rendered."""
    clients: list[Callable[[], bool]] = field(default_factory=list)
    """Those that wait for the answer; each says whether it is still there."""
    digest: bytes = b""
    """Equal for requests with the same body and name."""
    most: int = 0
    """Most tokens of each choice, reserved until it is answered."""
    done: Future[list[AnswerChoice]] = field(default_factory=Future)
    """Done when all choices are there; a :class:`~trainers.gateway.messages.Refused` where there are none."""
    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    delivered: bool = False
    """Whether a client has got the answer: only then is it a step."""
    sent: list[Callable[[], bool]] = field(default_factory=list)
    """Connections that it was sent through; each says whether it has arrived, as far as is known now."""
    root: int = -1
    """The first request of its conversation, this one or an earlier one."""
    state_key: str = ""
    """Identity of the environment's state when it came."""

    def is_quoted(self, messages: Sequence[Message]) -> bool:
        """Whether the messages contain an answer to this request."""
        keys = {choice.message.key for choice in self.choices.values()}
        return any(message.role == "assistant" and message.key in keys for message in messages)


class Playable(Protocol):
    """The environment of an episode, for an agent that plays it."""

    goal: str
    text: str
    tools: list[dict[str, Any]]

    def call(self, name: str, arguments: dict[str, Any], call_id: str = "") -> str:
        """Calls a tool; returns what it answers. ``call_id`` is the call's in the model's answer."""
        ...

    def advise(self, player: Player) -> Action | None:
        """The action that a player takes now; ``None`` when the episode is over."""
        ...


class Session:
    """The requests of one episode. Not thread-safe: the gateway holds its lock.

    Args:
        plan: The episode.
        key: The agent's key.
        writer: Renders and reads.
        limits: What it may use.
        now: Seconds, monotonic.
        about: Fields of the record besides: ``env_id``, ``task``, ``task_type``, ``split``.
    """

    def __init__(
        self,
        plan: EpisodePlan,
        key: str,
        writer: Writer,
        limits: Limits,
        now: float,
        about: dict[str, str] | None = None,
    ) -> None:
        self.plan, self.key, self.limits, self.about = plan, key, limits, about or {}
        self.until = now + limits.seconds
        self.sequences = Sequences(writer)
        self.writer = writer
        self.asked: list[AnsweredRequest] = []
        self.number = 0
        """The operator's name for the session; the gateway numbers its sessions."""
        self.name = _hash(key)[:12]
        """Differs from that of every other session; ids of answers have it."""
        self.request_count = 0
        """Requests that were taken, with those that :meth:`refuse` took back."""
        self.used = 0
        """Requests that count against the limit."""
        self.tokens = 0
        """Sampled tokens of all answers, delivered or not."""
        self.reserved = 0
        """Tokens reserved for answers under way."""
        self.reward: float | None = None
        """The reward that was posted; ``None`` before."""
        self.state_key = ""
        """Identity of the state that an environment is in."""
        self.outcome: dict[str, Any] = {}
        """Info of the environment's last answer."""
        self.ended: str | None = None
        """Why it takes no further requests; ``None`` while it does."""
        self.environment: Playable | None = None
        """The environment that the agent plays; ``None`` where it has none."""
        self.actions: list[EnvStep] = []
        """Steps of the environment."""
        self.limited = False
        """Whether a limit of its own ended it."""
        self.truncated = False
        """Whether a limit, or the horizon of the environment, ended it."""
        self.forwarded = 0
        """Requests that another endpoint has answered."""
        self._calls = 0
        self._roots: dict[int, int] = {}

    def take(
        self, ask: ParsedRequest, now: float, most: int = 1 << 20, client: Callable[[], bool] = lambda: True
    ) -> tuple[AnsweredRequest, bool]:
        """Takes a request; unless it is a repeated one, :meth:`begin` or :meth:`refuse` follows.

        Args:
            ask: The request.
            now: Seconds, monotonic.
            most: Most tokens of an answer.
            client: Says whether the client is still there.

        Returns:
            It, and whether it is a new one: not where a client repeats a request whose answer has reached nobody.

        Raises:
            Refused: The session is over, or its limits are reached.
        """
        self.check(now)
        self.settle(lambda request: request.is_quoted(ask.messages))
        digest = hashlib.blake2b(b"\0".join([ask.body, ask.name.encode()])).digest()
        same = [request for request in self.asked if request.digest == digest]
        if (original := self._original(ask, same)) is not None:
            original.clients.append(client)
            return original, False
        if ask.parent and re.fullmatch(rf"[a-z]+[-_]{self.name}[-_]\d+", ask.parent) is None:
            raise Refused(400, "invalid_value", "is no id of an answer of this episode", param="metadata.parent")
        most = self._most_tokens(ask, most)
        self.spend(ask.count)
        self.reserved += most * ask.count
        number, self.request_count = self.request_count, self.request_count + 1
        request = AnsweredRequest(number, replace(ask, body=b""), clients=[client], digest=digest, most=most)
        request.state_key = self.state_key
        self.asked.append(request)
        return request, True

    def _original(self, ask: ParsedRequest, same: Sequence[AnsweredRequest]) -> AnsweredRequest | None:
        """The request that a client repeats: it says so, or the client that has sent it is gone."""
        sound = [request for request in same if not request.done.done() or request.done.exception() is None]
        if ask.name:
            return sound[-1] if sound else None
        unread = [request for request in sound if not request.delivered]
        orphans = [request for request in unread if not any(present() for present in request.clients)]
        return next(iter(orphans or [request for request in unread if ask.repeats and not request.sent]), None)

    def _most_tokens(self, ask: ParsedRequest, most: int) -> int:
        """Most tokens of each choice."""
        most = most if ask.max_tokens is None else min(most, ask.max_tokens)
        if self.limits.tokens is not None:
            most = min(most, (self.limits.tokens - self.tokens - self.reserved) // ask.count)
        if most < 1 and self.reserved:
            raise Refused(429, "rate_limited", "answers under way may use all tokens that are left; try again", 1.0)
        if most < 1:
            self.end("the session has used its tokens")
            raise Refused(403, "session_limit", f"the session may sample {self.limits.tokens} tokens; end the episode")
        return most

    def begin(self, request: AnsweredRequest, prompt: RequestPrompt) -> bool:
        """Gives a request its prompt; returns whether the engine is to be asked."""
        request.prompt = prompt
        request.root = self._roots[request.number] = self._root(request, prompt)
        return not request.done.done()

    def refuse(self, request: AnsweredRequest, error: Exception) -> None:
        """Takes back a request, which the engine is not asked."""
        self.asked.remove(request)
        self.used -= request.ask.count
        self.reserved -= request.most * request.ask.count
        if not request.done.done():
            request.done.set_exception(error)

    def _root(self, request: AnsweredRequest, prompt: RequestPrompt) -> int:
        """The first request of a conversation: they go on from one another, or share more than system messages."""
        before, branch = prompt.parent, prompt.left
        if branch is not None and any(message.role != "system" for message in request.ask.messages[: branch[1]]):
            before = branch[0]
        return request.number if before is None else self._roots[before]

    def check(self, now: float) -> None:
        """Refuses what comes after the end.

        Raises:
            Refused: The session has ended.
        """
        if self.ended is None and now > self.until:
            self.end(f"it lasted longer than its {self.limits.seconds:g} s")
        if self.ended is not None:
            raise Refused(401, "session_ended", f"this key's session has ended: {self.ended}")

    def spend(self, count: int = 1) -> None:
        """Counts a request; refuses one beyond the limits.

        Args:
            count: Number of answers that it asks for.

        Raises:
            Refused: The session has used what it may.
        """
        if self.used + count > self.limits.requests:
            self.end("the session has made its last request")
            text = f"the session may make {self.limits.requests} requests (each choice counts as one)"
            raise Refused(403, "session_limit", text)
        self.used += count

    def post(self, reward: float) -> None:
        """Takes the reward that somebody gives, beside what an environment gave; the last one counts.

        Raises:
            Refused: It is beyond :data:`LARGEST_REWARD`.
        """
        if not abs(reward) <= LARGEST_REWARD:  # nor is nan
            limits = f"no finite number from {-LARGEST_REWARD:g} to {LARGEST_REWARD:g}"
            raise Refused(400, "invalid_reward", f"the reward is {reward}, which is {limits}")
        self.reward = reward

    def end(self, why: str, truncated: bool = True) -> None:
        """Takes no request any more; those on their way are answered with an error."""
        self.settle()
        self.ended, self.limited = why, self.limited or truncated
        self.truncated = self.truncated or truncated
        for request in self.asked:
            if not request.done.done():
                request.done.set_exception(Refused(401, "session_ended", f"this key's session has ended: {why}"))

    def take_answer(self, request: AnsweredRequest, number: int, completion: Completion) -> None:
        """Takes the engine's answer."""
        self.tokens += completion.count
        self.reserved -= request.most
        if request.done.done():
            return
        if completion.error is not None:
            error = Refused(503, "engine_failed", completion.error, 1.0)
            if completion.finish_reason == "context":
                error = Refused(400, "context_length_exceeded", completion.error)
            request.done.set_exception(error)
            return
        request.choices[number] = self._choice(request, completion)
        if len(request.choices) == request.ask.count:
            request.done.set_result([request.choices[i] for i in range(request.ask.count)])

    def _choice(self, request: AnsweredRequest, completion: Completion) -> AnswerChoice:
        ask, used, cut_text, stop_text = request.ask, completion, "", ""
        if ask.stop and (place := _stop_place(self.writer, completion.token_ids.tolist(), ask.stop)) is not None:
            count, cut_text, stop_text = place
            used = replace(
                completion, token_ids=completion.token_ids[:count], logprobs=completion.logprobs[:count],
                policy_version=completion.policy_version[:count], finish_reason="stop",
                experts=cut(completion.experts, 0, len(request.prompt.ids) + count - 1),
            )  # fmt: skip
        message, problem = self.writer.read(used.token_ids.tolist(), ask.tools, cut_text)
        message = replace(message, calls=tuple((call, self._unique(call_id)) for call, call_id in message.calls))
        reason = "tool_calls" if message.calls else used.finish_reason
        return AnswerChoice(message, used, reason, problem, stop_text)

    def _unique(self, call_id: str) -> str:
        """The id of a call: the model's own, or one that no other call of the session has."""
        if not _NUMBERED.fullmatch(call_id):
            return call_id
        self._calls += 1
        return f"call{self._calls % 100_000:05}"

    def deliver(self, request: AnsweredRequest) -> None:
        """Records that a client has got the answer: requests may go on from it, and it becomes a step."""
        if request.delivered or not request.done.done() or request.done.exception() is not None:
            return
        request.delivered = True
        request.clients.clear()
        for choice in request.done.result():
            self.sequences.record_answer(request.number, request.prompt, choice.message, choice.completion.token_ids)

    def settle(self, which: Callable[[AnsweredRequest], bool] = lambda request: True) -> None:
        """Marks answers as delivered that were sent and have arrived."""
        for request in self.asked:
            if request.sent and not request.delivered and which(request) and any(check() for check in request.sent):
                self.deliver(request)

    def observe(self, action: EnvStep) -> None:
        """Records a step of the environment."""
        self.settle()
        self.outcome, self.state_key = dict(action.info), str(action.info.get("state_key", ""))
        requests = frozenset(request for request in self.asked if request.delivered or request.sent)
        self.actions.append(replace(action, asked=requests, requests=self.request_count))

    @property
    def steps(self) -> int:
        """Number of answers that have arrived."""
        return sum(request.delivered for request in self.asked)

    @property
    def lost_tokens(self) -> int:
        """Sampled tokens that reached nobody."""
        requests = [request for request in self.asked if not request.delivered]
        return sum(choice.completion.count for request in requests for choice in request.choices.values())

    def episode(self, error: str | None = None) -> Episode:
        """The record: one step for each answer that was delivered, in the order in which requests came.

        The posted reward is that of the last step, beside what the environment gave.

        Args:
            error: Why the episode failed; it is counted and left out.
        """
        self.settle()
        answers = [request for request in self.asked if request.delivered]
        actions = actions_by_answer(self.actions, answers) if answers and self.actions else {}
        places = [(request, i) for request in answers for i in range(len(request.choices))]
        steps = [self._step(t, *place, actions.get((place[0].number, place[1]), ())) for t, place in enumerate(places)]
        has_outcome, reward = "success" in self.outcome, self.reward
        if error is None and not steps:
            failures = [str(request.done.exception()) for request in self.asked if request.done.done()]
            why = f" ({failures[-1]})" if failures else ""
            error = f"AgentSilent: the agent got no answer of the model, so there is nothing to train on{why}"
        has_outcome = has_outcome and (bool(self.actions) or reward is None)
        if error is None and reward is None and not has_outcome:
            why = f"was cut ({self.ended}), and no reward came" if self.limited else "has ended without a reward"
            error = f"NoReward: the episode {why}; it is counted and left out"
        if reward is not None and steps:
            t = _rewarded_step(places, actions)
            steps[t] = replace(steps[t], reward=steps[t].reward + reward)
        sound, total = error is None, sum(step.reward for step in steps)
        score = float(self.outcome["score"]) if has_outcome else min(1.0, max(0.0, total))
        return Episode(
            episode_id=self.plan.episode_id,
            group_id=self.plan.group_id,
            env_id=self.about.get("env_id", "agent"),
            task_id=self.plan.task_id,
            task_type=self.about.get("task_type", ""),
            split=self.about.get("split", ""),
            task=self.about.get("task", ""),
            steps=tuple(steps),
            terminated=sound and not self.truncated,
            truncated=sound and self.truncated,
            success=sound and (bool(self.outcome["success"]) if has_outcome else total >= 1.0),
            score=score if sound else 0.0,
            greedy=self.plan.greedy,
            error=error,
            unanswered=error is not None and error.startswith("NoReward"),
        )

    def _step(self, t: int, request: AnsweredRequest, index: int, actions: Sequence[EnvStep]) -> Step:
        choice, prompt, ask = request.choices[index], request.prompt, request.ask
        completion, calls = choice.completion, tuple(call for call, _ in choice.message.calls)
        own = "\0".join([*(message.text for message in ask.messages if message.role == "system"), ask.observation])
        place = {"request": request.number, "parent": prompt.parent, "left": prompt.left}
        about = {**place, "vocabulary": self.writer.vocabulary}
        return Step(
            t=t,
            prompt_ids=prompt.ids,
            response_ids=completion.token_ids,
            response_logprobs=completion.logprobs,
            policy_version=completion.policy_version,
            finish_reason=completion.finish_reason,
            observation=ask.observation,
            state_key=ask.state_key or (request.state_key if actions else "") or _hash(own),
            action=calls or (ToolCall("say", {"text": choice.message.text}),),
            parse_error=choice.problem or None,
            valid=all(bool(action.info.get("valid", True)) for action in actions) if actions else not choice.problem,
            reward=float(sum(action.reward for action in actions)),
            info={**(actions[-1].info if actions else {}), "gateway": about},
            experts=completion.experts,
        )


def _rewarded_step(places: Sequence[tuple[AnsweredRequest, int]], actions: Mapping[Place, Sequence[EnvStep]]) -> int:
    """The step that gets the posted reward: the last answer of the conversations that have acted, if there are some.

    Of several choices it is the one that acted, else the first one.
    """
    roots = {request.root for request, index in places if (request.number, index) in actions}
    steps = [(request.number, (request.number, i) in actions, -i, t) for t, (request, i) in enumerate(places)
             if not roots or request.root in roots]  # fmt: skip
    return max(steps)[-1]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _stop_place(writer: Writer, ids: Sequence[int], stop: Sequence[str]) -> tuple[int, str, str] | None:
    """Where a text of ``stop`` ends an answer.

    Returns:
        Number of tokens up to its end, the text of these from its begin on, and the text of ``stop``; ``None`` where
        the answer has none of them.
    """

    def text(count: int) -> str:
        return str(writer.tokenizer.decode(list(ids[:count]), skip_special_tokens=True))

    def first(content: str) -> tuple[int, str] | None:
        return min(((at, word) for word in stop if (at := content.find(word)) >= 0), default=None)

    if first(text(len(ids))) is None:
        return None
    fewest = bisect_left(range(len(ids)), True, key=lambda count: first(text(count)) is not None)
    content = text(fewest)
    at, word = first(content) or (len(content), "")
    return fewest, content[at:], word
