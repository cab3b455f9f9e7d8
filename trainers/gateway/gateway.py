"""The gateway: sessions by their keys, and the engine that answers them."""

from __future__ import annotations

import hmac
import itertools
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from envsuite.playing.engine import BaseEngine, ChatCompletion, Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.loop import step_seed
from trainers.gateway.listening import Listen
from trainers.gateway.messages import ParsedRequest, Refused
from trainers.gateway.sequences import Writer
from trainers.gateway.session import AnsweredRequest, Limits, Playable, Session
from trainers.gateway.teaching import chat_request, token_completion
from trainers.rollout.engine import Engine

_LOG = logging.getLogger(__name__)
_NUMBERS = itertools.count()
CONTEXT = 1 << 17
"""Most tokens of a prompt where the engine does not say."""
MODEL = "policy"
"""Name of the model that is trained."""


class Gateway:
    """Takes requests of any thread, and has the engine answer them in the thread that calls :meth:`pump`.

    Args:
        writer: Renders and reads.
        sampling: How tokens are drawn, whatever agents ask for.
        seed: Answers are a function of weights, prompt, this seed, episode and number of the request.
        masking: What becomes of requests that would mask the distribution: ``"refuse"``, or ``"ignore"``: they are
            answered as if they did not.
        most: Most requests under way; further ones are refused with 429.
        models: Further models by name: ``None`` is the one that is trained; another one has the address of its
            endpoint, up to ``/v1``, and a key for it stands in front: ``https://KEY@host/v1``.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        writer: Writer,
        sampling: Sampling,
        seed: int,
        *,
        masking: Literal["refuse", "ignore"] = "refuse",
        most: int = 1024,
        models: Mapping[str, str | None] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer, self.sampling, self.seed = writer, sampling, seed
        self.masking, self.most, self.clock = masking, most, clock
        self.names = (MODEL, *(name for name, address in models.items() if address is None))
        self.proxied = {name: address for name, address in models.items() if address is not None}
        self.operator = f"operator-{secrets.token_urlsafe(24)}"
        """Key with which sessions are made and rewards given; no agent has it."""
        self.context = CONTEXT
        """Most tokens of a prompt: longer requests are refused before they are rendered."""
        self.listen: Listen | None = None
        """Has it answer at a further socket, of a sandbox; set by who serves it (:mod:`trainers.gateway.listening`)."""
        self.counts: Counter[str] = Counter()
        """Requests by what became of them: ``requests``, ``repeated``, ``replaced``, ``unmasked``, ``forwarded``."""
        self.lock = threading.RLock()
        """Held while sessions change."""
        self._arrived = threading.Condition(self.lock)
        self._sessions: dict[str, Session] = {}
        self._waiting: list[Request] = []
        self._asked: dict[int, tuple[Session, AnsweredRequest, int]] = {}
        self._released: list[int] = []
        self._offered: deque[Session] = deque()
        self._told: set[str] = set()
        self._opened = itertools.count()

    def open(self, plan: EpisodePlan, limits: Limits | None = None, about: dict[str, str] | None = None) -> Session:
        """Begins a session; its :attr:`~trainers.gateway.session.Session.key` is the agent's."""
        with self.lock:
            key = f"agent-{secrets.token_urlsafe(24)}"
            session = Session(plan, key, self.writer, limits or Limits(), self.clock(), about)
            session.number = next(self._opened)
            self._sessions[key] = session
            return session

    def session(self, key: str) -> Session:
        """The session of an agent's key.

        Raises:
            Refused: It has none.
        """
        with self.lock:
            session = self._sessions.get(key)
        if session is None:
            text = "no session has this key; it comes with the episode, and ends with it"
            raise Refused(401, "invalid_api_key", text)
        return session

    def count(self, key: str, ask: ParsedRequest) -> int:
        """Number of tokens of a prompt, which is not asked; it counts as a request.

        Raises:
            Refused: It would not be served.
        """
        with self.lock:
            self._check_fields(ask)
            session = self._spend(key)
        return len(session.sequences.prompt(ask.messages, ask.tools).ids)

    def check_size(self, characters: int, tokens: int) -> None:
        """Refuses what no rendering brings into the context.

        Args:
            characters: Of all texts.
            tokens: Of what stands around them, at least.

        Raises:
            Refused: The context holds less.
        """
        if max(characters / self.writer.longest, tokens) > self.context:
            size = f"{characters:,} characters, and {tokens:,} tokens at least beside them, "
            raise Refused(400, "context_length_exceeded", f"{size}exceed the {self.context:,} tokens of the context")

    def forward(self, key: str) -> None:
        """Counts a request of an agent that another endpoint is to answer.

        Raises:
            Refused: The session has ended, or used what it may.
        """
        with self.lock:
            self._spend(key).forwarded += 1
            self.counts["forwarded"] += 1

    def _spend(self, key: str) -> Session:
        """Counts a request of an agent; returns the session of its key."""
        session = self.session(key)
        session.check(self.clock())
        session.spend()
        return session

    def environment(self, key: str) -> Playable | None:
        """The environment of an agent's key; ``None`` where its session has none.

        Raises:
            Refused: It has no session, or that has ended.
        """
        with self.lock:
            session = self.session(key)
            session.check(self.clock())
            return session.environment

    def is_operator(self, key: str) -> bool:
        """Whether a key is the operator's."""
        return hmac.compare_digest(key.encode(), self.operator.encode())

    def ask(
        self, key: str, ask: ParsedRequest, client: Callable[[], bool] = lambda: True
    ) -> tuple[Session, AnsweredRequest]:
        """Takes a request of an agent; :attr:`~trainers.gateway.session.AnsweredRequest.done` has the answer.

        Args:
            key: The agent's.
            ask: The request.
            client: Says whether the client is still there: else the same request may come again for the answer.

        Raises:
            Refused: It is not served.
        """
        with self.lock:
            session = self.session(key)
            self._check_fields(ask)
            request, new = session.take(ask, self.clock(), self.sampling.max_tokens, client)
            if not new:
                self.counts["repeated"] += 1
                return session, request
        try:
            if len(self._asked) + ask.count > self.most:
                raise Refused(429, "rate_limited", f"{self.most} requests are under way; try again later", 1.0)
            prompt = session.sequences.prompt(ask.messages, ask.tools)  # others are served meanwhile
        except Exception as error:
            with self.lock:
                session.refuse(request, error)
            raise
        with self.lock:
            if session.begin(request, prompt):
                self.counts["requests"] += 1
                for choice in range(ask.count):
                    self._submit(session, request, choice)
                self._arrived.notify_all()
            return session, request

    def _submit(self, session: Session, request: AnsweredRequest, choice: int) -> None:
        episode = session.plan.episode_id
        sampling = replace(self.sampling, max_tokens=request.most)
        if session.plan.greedy:
            sampling = replace(sampling, temperature=0.0)
        number, seed = next(_NUMBERS), step_seed(self.seed, episode, request.number + (choice << 32))
        self._asked[number] = session, request, choice
        self._waiting.append(Request(number, request.prompt.ids, sampling, episode, seed))

    def check_model(self, name: str, *extra: str) -> None:
        """Refuses a name that no model has.

        Raises:
            Refused: It is neither a name of the model that is trained nor one of ``extra``.
        """
        if name not in (*self.names, *extra):
            names = ", ".join((*self.names, *self.proxied))
            raise Refused(404, "model_not_found", f"there is no model {name[:80]!r}; there is {names}")

    def _check_fields(self, ask: ParsedRequest) -> None:
        self.check_model(ask.model)
        if ask.masking:
            what = ", ".join(ask.masking)
            if self.masking == "refuse":
                raise Refused(
                    400, "unsupported_parameter",
                    f"{what} would mask the distribution that is trained on; leave it out, or set "
                    "rollout.agent.masking to ignore, and the request is answered as if it were not there",
                )  # fmt: skip
            self.counts["unmasked"] += 1
            self.tell(f"{what}: ignored, since it would mask the distribution that is trained on")
        if ask.replaced:
            self.counts["replaced"] += 1
            self.tell(f"{', '.join(ask.replaced)} of an agent: replaced by the run's sampling settings")
        for name in ask.ignored:
            self.tell(f"{name[:40]!r} of an agent: ignored")

    def tell(self, text: str) -> None:
        """Logs a text once; of texts that agents make up, the first thousand."""
        if text not in self._told and len(self._told) < 1000:
            self._told.add(text)
            _LOG.warning("gateway: %s", text)

    def deliver(self, session: Session, request: AnsweredRequest) -> None:
        """Records that a client has got the answer."""
        with self.lock:
            session.deliver(request)

    def offer(self, session: Session) -> None:
        """Has a service elsewhere play the session: it asks for one with :meth:`next`."""
        with self.lock:
            self._offered.append(session)

    def next(self) -> Session | None:
        """The session that has been offered longest, and is offered no more; ``None`` where none is."""
        with self.lock:
            while self._offered:
                if (session := self._offered.popleft()).ended is None:
                    return session
        return None

    def reward(self, number: int, value: float) -> None:
        """Gives an episode its reward, beside what an environment gave; the last one counts.

        Raises:
            Refused: There is no such session, or the value is beyond the limit.
        """
        with self.lock:
            self.session_of(number).post(value)
            self._arrived.notify_all()

    def finish(self, number: int) -> None:
        """Ends the session of an agent that is done; its key is worth nothing any more.

        Raises:
            Refused: There is no such session.
        """
        with self.lock:
            self.session_of(number).end("the agent is done", truncated=False)
            self._arrived.notify_all()

    def session_of(self, number: int) -> Session:
        """The session of a number; episodes of training and of evaluation have the same ids.

        Raises:
            Refused: There is none.
        """
        with self.lock:
            for session in self._sessions.values():
                if session.number == number:
                    return session
        raise Refused(404, "no_session", f"there is no session {number}, or its episode is over")

    def end(self, session: Session) -> None:
        """Ends a session: its key is worth nothing any more, and its record is whole."""
        with self.lock:
            if session.ended is None:
                session.end("the episode is over", truncated=False)
            self._sessions.pop(session.key, None)
            self._released.append(session.plan.episode_id)
            self._arrived.notify_all()

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._asked)

    def pump(self, engine: BaseEngine[Any, Any], patience: float) -> None:
        """Gives requests to the engine, and its answers to the agents; waits at most ``patience`` seconds."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
            going = {session.plan.episode_id for session in self._sessions.values()}  # started again, for example
            episodes, self._released = [episode for episode in self._released if episode not in going], []
        if waiting and isinstance(engine, Engine):
            engine.submit(waiting)
        elif waiting:
            with self.lock:
                pairs = [(request, self._asked[request.request_id][1].ask) for request in waiting]
            engine.submit([chat_request(request, ask) for request, ask in pairs])
        for episode in episodes:
            engine.release(episode)
        if engine.pending:
            for completion in engine.poll(patience):
                with self.lock:
                    session, request, choice = self._asked.pop(completion.request_id, (None, None, 0))
                    if session is not None and request is not None:
                        if isinstance(completion, ChatCompletion):
                            completion = token_completion(completion, request.prompt, self.writer)
                        session.take_answer(request, choice, completion)
            return
        with self.lock:
            if not self._waiting:
                self._arrived.wait(patience)
