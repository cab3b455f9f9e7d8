"""Episodes that agents with a loop of their own play: what starts them, what they are given, how they end."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import orjson

from envsuite.core import Action, Observation, ToolEnv
from envsuite.core.boundary import boundary, number, reason
from envsuite.core.errors import UsageError
from envsuite.core.functions import function_in
from envsuite.core.players import Player
from envsuite.core.tools import Tool, ToolCall, UnparsedAction
from envsuite.playing.engine import BaseEngine, Sampling
from envsuite.playing.episode import Branches, EpisodeCost, EpisodePlan
from envsuite.playing.ledger import Ledger
from envsuite.playing.loop import Keeper
from envsuite.playing.manager import Watcher
from envsuite.playing.step import Episode
from envsuite.playing.timing import Timing
from envsuite.remote.making import make_player
from envsuite.vector import EnvFactory, Wait
from trainers.gateway.credit import EnvStep
from trainers.gateway.gateway import CONTEXT, MODEL, Gateway
from trainers.gateway.messages import Refused
from trainers.gateway.session import Limits, Session
from trainers.gateway.teaching import TYPED, ExpertEngine
from trainers.rollout.config import AgentConfig
from trainers.settings import config_errors
from trainers.settings.shipped import located

_LOG = logging.getLogger(__name__)
REWARD_WAIT = 60.0
"""Seconds after the end of an episode of a service in which its reward may come; without one it is left out."""
_LOOK = 0.1  # seconds between two looks at progress
_PATIENCE = 0.05  # seconds of waiting for engine or agents, after which it is looked who is overdue
World = gymnasium.Env[Observation, Action]


class AgentEpisode:
    """The environment of an episode, which the agent plays while it asks the model.

    Rewards and validity belong to the answers that its calls came from (:mod:`trainers.gateway.credit`).

    Args:
        env: The environment.
        task_id: The task.
        gateway: Holds the session.
    """

    def __init__(self, env: World, task_id: str, gateway: Gateway) -> None:
        self._env, self._gateway = env, gateway
        world = env.unwrapped
        assert isinstance(world, ToolEnv)
        self._session: Session | None = None
        self._stepping = threading.Lock()
        observation, self._info = env.reset(options={"task_id": task_id})
        self.goal: str = observation["task"]
        """The instruction."""
        self.text: str = observation["text"]
        """The last observation."""
        self.done = False
        """Whether the episode is over: it takes no further call."""
        self.failure: str | None = None
        """Why the environment failed in a call; ``None`` while it works."""
        self.about = {name: str(self._info.get(name, "")) for name in ("task_type", "split")}
        """Type and split of the task."""
        self.offered: tuple[Tool, ...] = world.offered
        """The tools that can be called now."""
        self.tools: list[dict[str, Any]] = [tool.as_openai() for tool in self.offered]
        """The same as OpenAI's function schemas."""

    def join_session(self, session: Session) -> None:
        """Records the steps from here on in a session."""
        self._session = session
        session.environment = self
        session.state_key = str(self._info.get("state_key", ""))
        session.about["task"] = self.goal
        session.outcome = dict(self._info)

    def call(self, name: str, arguments: dict[str, Any], call_id: str = "") -> str:
        """Calls a tool; returns what it answers, also where the call is invalid.

        Args:
            name: The tool.
            arguments: Its arguments.
            call_id: Id of the call in the model's answer: the reward is this answer's.

        Raises:
            UsageError: The episode is over.
        """
        return self.step([ToolCall(name, arguments)], call_id=call_id)

    def type(self, command: str) -> str:
        """Types a command, as the codec ``tags`` reads it; returns what the environment answers."""
        move = TYPED.parse(f"<action>{command}</action>", self.offered, 1)
        return self.step(UnparsedAction(move.error or "") if move.action is None else move.action, command)

    def step(self, action: Sequence[ToolCall], command: str = "", call_id: str = "") -> str:
        """As :meth:`call`, with several calls of one step, and the text that they were read from."""
        with self._stepping:
            if self.done or self._session is None:
                raise UsageError("the episode is over; return from the agent")
            try:
                observation, reward, terminated, truncated, info = self._env.step(action)
            except Exception as error:  # of an environment: no fault of the agent, whatever it does with it
                self.done, self.failure = True, f"the environment failed: {reason(error)}"
                with self._gateway.lock:
                    self._session.end(self.failure)
                raise
            before, self.text, self.done = self.text, observation["text"], terminated or truncated
            if "tools" in observation:
                self.offered = self._env.unwrapped.offered  # type: ignore[attr-defined]
                self.tools = [tool.as_openai() for tool in self.offered]
            env_step = EnvStep(tuple(action), command, call_id, before, self.text, float(reward), dict(info))
            with self._gateway.lock:
                self._session.observe(env_step)
                self._session.truncated = truncated and not terminated
            return self.text

    def advise(self, player: Player) -> Action | None:
        """The action that a player takes now; ``None`` when the episode is over.

        Raises:
            UsageError: The player knows none.
        """
        with self._stepping:
            return None if self.done else player.act(self._env)

    def leave(self) -> bool:
        """Refuses further calls; returns whether none is under way: then another episode may have the environment."""
        self.done = True
        if free := self._stepping.acquire(blocking=False):
            self._stepping.release()
        return free


@dataclass(frozen=True)
class AgentTask:
    """A task, as an agent is given it."""

    id: str
    text: str
    """The instruction."""


@dataclass(frozen=True)
class Client:
    """The address of the model, and the environment where there is one, as an agent is given them."""

    gateway: Gateway = field(repr=False)
    base_url: str
    """For OpenAI's clients; those of Anthropic take it without ``/v1``."""
    api_key: str = field(repr=False)
    env: AgentEpisode | None
    model: str = MODEL

    def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), **more: Any
    ) -> dict[str, Any]:
        """Asks the model, without a client's library; returns its message as OpenAI's interface has it.

        Args:
            messages: The conversation.
            tools: Tools as OpenAI's function schemas.
            more: Further fields of the request: ``max_tokens``, ``stop``, …

        Raises:
            Refused: The request is not served.
        """
        from trainers.gateway.openai_api import answer, read
        from trainers.gateway.reading import read_json

        request = {"model": self.model, "messages": messages, "tools": list(tools) or None, **more}
        session, asking = self.gateway.ask(self.api_key, read(read_json(orjson.dumps(request))))
        choices = asking.done.result()
        self.gateway.deliver(session, asking)
        message: dict[str, Any] = answer(session, asking, choices, asking.ask.shown)["choices"][0]["message"]
        return message


@dataclass(frozen=True)
class AgentOutcome:
    """How an agent ended."""

    reward: float | None = None
    """The number that it returned, or a test found; ``None``: the environment's rewards, or those that are posted."""
    error: str | None = None


@dataclass
class AgentJob:
    """One episode for an agent."""

    task: AgentTask
    client: Client
    session: Session
    ended: Future[AgentOutcome] = field(default_factory=Future)
    """Answered by the agent's end."""
    stop: Callable[[], None] = lambda: None
    """Ends the agent early, where that is possible; set by whoever starts it."""
    output: str = ""
    """The last that a command and its test printed."""


class Agent(ABC):
    """A way to bring an agent. Each starts jobs and answers their :attr:`AgentJob.ended`, in threads of its own."""

    plays: bool = True
    """Whether it can be given an environment of this process."""
    grace: float = 5.0
    """Seconds that it has to end after its session has."""

    @abstractmethod
    def start(self, job: AgentJob) -> None:
        """Starts an episode; returns at once."""

    def close(self) -> None:
        """Ends what is left of all."""
        return


class FunctionAgent(Agent):
    """``function(task, client) -> reward | None``, each episode in a thread.

    Args:
        place: ``file.py:function``; ``examples/agents.py`` is installed with the trainer.

    Raises:
        ConfigError: It is not there.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        with config_errors("rollout.agent.run"):
            file, _, name = place.rpartition(":")
            self.function = function_in(f"{located(file)}:{name}" if file else place)

    def start(self, job: AgentJob) -> None:
        """Starts a thread."""
        threading.Thread(target=self._run, args=(job,), daemon=True, name=f"agent {job.task.id}").start()

    def _run(self, job: AgentJob) -> None:
        try:
            with boundary(f"task {job.task.id}"):
                result = self.function(job.task, job.client)
                reward = None if result is None else number(result, f"what {self.place} returned")
        except BaseException as error:  # of somebody's agent: anything; this thread is its own
            message = f"{self.place} raised {reason(error)}"
            job.ended.set_result(AgentOutcome(error=None if isinstance(error, Refused) else message))
            return
        job.ended.set_result(AgentOutcome(reward))


class ServiceAgent(Agent):
    """A service elsewhere that asks for sessions over HTTP, ends them, and posts rewards.

    Args:
        gateway: Offers them.
    """

    plays = False

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def start(self, job: AgentJob) -> None:
        """Offers the session."""
        self.gateway.offer(job.session)


@dataclass
class _RunningAgent:
    plan: EpisodePlan
    job: AgentJob
    env: World | None
    began: float
    over: float | None = None
    """When its session was seen to have ended."""


@dataclass(eq=False)
class AgentManager:
    """Plays episodes as a :class:`~envsuite.playing.manager.RolloutManager` does, by agents that ask the gateway.

    Args:
        engine: Generates tokens, or is a teacher that answers messages.
        gateway: Its address for agents.
        url: Where that listens.
        agent: Starts episodes.
        config: Limits.
        factories: How each environment is made.
        slots: Most episodes at a time.
        attempts: Times that an episode is started whose agent fails.
    """

    engine: BaseEngine[Any, Any]
    gateway: Gateway
    url: str
    agent: Agent
    config: AgentConfig
    factories: Sequence[EnvFactory]
    slots: int
    attempts: int

    def __post_init__(self) -> None:
        self.gateway.context = min(self.engine.max_length or CONTEXT, 1 << 22)
        self.timing = Timing()
        self._free: list[list[World]] = [[] for _ in self.factories]

    def run(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> list[Episode]:
        """Plays every plan once; episodes come back in the order of ``plans``.

        An episode whose agent fails is started again, ``attempts`` times in all; then it is left out. One without a
        reward is counted and left out.
        """
        if branches is not None:
            raise UsageError("episodes of agents cannot branch")
        self.gateway.sampling, self.gateway.seed = sampling, seed
        self.timing, ledger = Timing(), Ledger(self.attempts)
        waiting, running, episodes = deque(plans), list[_RunningAgent](), dict[int, Episode]()
        last_count, due = -1, 0.0
        while waiting or running:
            while waiting and len(running) < self.slots:
                running.append(self._start(waiting.popleft()))
            began = time.monotonic()
            self.gateway.pump(self.engine, _PATIENCE)
            seconds = time.monotonic() - began
            self.timing.engine += seconds if self.gateway.busy else 0.0
            self.timing.env += 0.0 if self.gateway.busy else seconds
            for run in list(running):
                if (outcome := self._outcome(run)) is None:
                    continue
                running.remove(run)
                episode = self._finish(run, outcome)
                if outcome.error is not None and ledger.enter_failure(run.plan.episode_id, False):
                    _LOG.warning("task %s: %s; it is started again", run.plan.task_id, outcome.error)
                    self.timing.repeated += 1
                    waiting.appendleft(run.plan)
                    continue
                if episode.error is not None:
                    self.gateway.tell(f"an episode is left out: {episode.error}")
                episodes[run.plan.episode_id] = episode
                if keep is not None:
                    spent = sum(len(step.prompt_ids) for step in episode.steps)
                    keep(run.plan, episode, EpisodeCost(time.monotonic() - run.began, spent, run.job.session.tokens))
            if watch is not None and (len(episodes) != last_count or time.monotonic() >= due):
                last_count, due = len(episodes), time.monotonic() + _LOOK
                watch(last_count, self._oldest(running))
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.gateway.counts.items()))
        _LOG.info("requests of agents so far: %s", counts or "none")
        return [episodes[plan.episode_id] for plan in plans]

    def _oldest(self, running: Sequence[_RunningAgent]) -> Wait | None:
        oldest = min(running, key=lambda run: run.began, default=None)
        return None if oldest is None else Wait(f"the agent of task {oldest.plan.task_id}", oldest.began)

    def _start(self, plan: EpisodePlan) -> _RunningAgent:
        config, env_id = self.config, self.factories[plan.env].env_id
        env, world, failure, about = self._env(plan.env), None, "", {"env_id": env_id}
        try:
            world = AgentEpisode(env, plan.task_id, self.gateway)
            text = f"{world.goal}\n\n{world.text}" if world.text else world.goal
            about |= world.about
        except Exception as error:  # of an environment: a lost server, a fault of its own
            text, failure = "", f"{env_id}: {reason(error)}"
        limits = Limits(config.requests, config.tokens, config.seconds)
        session = self.gateway.open(plan, limits, {**about, "task": text})
        game = world if self.agent.plays and config.environment else None
        client = Client(self.gateway, f"{self.url}/v1", session.key, game)
        job = AgentJob(AgentTask(plan.task_id, text), client, session)
        if world is None:
            env.close()
            job.ended.set_result(AgentOutcome(error=failure))
            return _RunningAgent(plan, job, None, time.monotonic())
        if game is not None:
            game.join_session(session)
            if isinstance(self.engine, ExpertEngine):
                self.engine.join(plan.episode_id, game, make_player(env_id, self.engine.name))
        self.agent.start(job)
        return _RunningAgent(plan, job, env, time.monotonic())

    def _env(self, number: int) -> World:
        """An environment that no episode has."""
        if self._free[number]:
            return self._free[number].pop()
        with config_errors(f"envs[{number}] ({self.factories[number].env_id})"):
            return self.factories[number].make()

    def _outcome(self, run: _RunningAgent) -> AgentOutcome | None:
        """How an agent ended; ``None`` while it works."""
        session, now, environment = run.job.session, self.gateway.clock(), run.job.client.env
        failure = None if environment is None else environment.failure
        if run.job.ended.done():
            outcome = run.job.ended.result()
            if failure is not None:
                return AgentOutcome(error=failure)
            try:
                if outcome.reward is not None:
                    session.post(outcome.reward)
            except Refused as error:
                return AgentOutcome(error=str(error))
            # An agent whose requests are refused beyond its limits may fail at that, which is no failure of its own.
            return replace(outcome, error=None) if session.limited and session.steps else outcome
        if session.ended is None and now > session.until:
            with self.gateway.lock:
                session.end(f"it lasted longer than its {session.limits.seconds:g} s")
        if session.ended is None:
            return None
        if run.over is None:
            run.over = now
            run.job.stop()
        waits = self.agent.grace if self.agent.plays else REWARD_WAIT * (session.reward is None)
        return AgentOutcome(error=failure) if now > run.over + waits else None

    def _finish(self, run: _RunningAgent, outcome: AgentOutcome) -> Episode:
        session = run.job.session
        self.gateway.end(session)
        self.timing.dropped_tokens += session.lost_tokens
        game = run.job.client.env
        if run.env is not None and run.job.ended.done() and (game is None or game.leave()):  # else it may be played
            if game is None or game.failure is None:
                self._free[run.plan.env].append(run.env)
            else:
                run.env.close()
        episode = session.episode(outcome.error)
        if episode.error is not None:
            self.timing.dropped_tokens += sum(len(step.response_ids) for step in episode.steps)
        return episode

    def close(self) -> None:
        """Ends agents and environments."""
        self.agent.close()
        for envs in self._free:
            while envs:
                envs.pop().close()
