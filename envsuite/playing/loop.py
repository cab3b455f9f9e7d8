"""The loop that plays episodes: no episode waits for another's step."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from envsuite.playing.activity import ACTIVITY
from envsuite.playing.dialog import Dialog
from envsuite.playing.engine import BaseEngine, Sampling
from envsuite.playing.episode import Branches, EpisodeCost, EpisodeEnding, EpisodePlan, RunningEpisode
from envsuite.playing.ledger import Ledger
from envsuite.playing.step import Episode
from envsuite.playing.timing import Part, Stopwatch, Timing
from envsuite.vector import Vector, VectorEvent, Wait

_LOG = logging.getLogger(__name__)
_PATIENCE = 1.0  # seconds of waiting for environments or engine, after which progress is shown
_LOOK = 0.1  # seconds between two looks at overdue answers
_BRIEF = 0.005  # seconds of waiting for the engine while environments are about to answer
_NUMBERS = itertools.count()  # of requests: an engine that several rollouts ask may answer one of another's too late

Keeper = Callable[[EpisodePlan, Episode, EpisodeCost], None]
"""Called with an episode when it has ended, its plan, and what it took."""


class Resources(Protocol):
    """Engine, environments and limits of a rollout (:class:`~envsuite.playing.manager.RolloutManager` has them)."""

    engine: BaseEngine[Any, Any]
    vector: Vector
    env_ids: tuple[str, ...]
    episode_tokens: int | None
    attempts: int
    engine_deadline: float
    clock: Callable[[], float]

    def dialogs(self, plan: EpisodePlan) -> dict[str, Dialog]:
        """Returns the dialog of each agent of a new episode with the engine."""
        ...


class Rollout:
    """One rollout: gives slots to waiting plans, and passes on what environments and engine have answered."""

    def __init__(
        self, manager: Resources, sampling: Sampling, seed: int, keep: Keeper | None, branches: Branches | None = None
    ) -> None:
        self.manager = manager
        self.sampling = sampling
        self.seed = seed
        self.keep = keep
        self.branches = branches
        self.timing = Timing()
        self._watch = Stopwatch(self.timing, self._share, manager.clock)
        self.waiting: deque[EpisodePlan] = deque()
        self.free = list(range(manager.vector.slots))[::-1]
        self.running: dict[int, RunningEpisode] = {}
        """Running episodes by slot of the vector."""
        self.ledger = Ledger(manager.attempts)
        """Accounts for the plans: which have ended, and which groups are whole."""
        self._requests: dict[int, int] = {}
        """Slots by the numbers of the requests that the engine has not answered."""
        self._paused: float | None = None
        """When the last call ended."""
        self._next_look = 0.0
        """When overdue answers are looked for next."""
        self._failures: list[str] = []
        """Episodes given up since the last log message."""

    @property
    def busy(self) -> bool:
        """Whether a plan waits or an episode runs."""
        return bool(self.waiting or self.running)

    def add(self, plans: Sequence[EpisodePlan]) -> None:
        """Queues plans; a group is whole when all of its plans that were added until then have ended."""
        self.waiting.extend(plans)
        self.ledger.add(plans)

    def settle(self) -> None:
        """Takes the answers to all requests, and sends no more: others may use the engine then."""
        self._resume()
        while self._requests:
            self._take_answers(_PATIENCE)
        self._pause()

    def take_timing(self) -> Timing:
        """Returns the time, and what was given up, since the last call."""
        timing, self.timing = self.timing, Timing()
        self._watch.timing = self.timing
        return timing

    def advance(self) -> None:
        """Starts episodes in free slots, then takes the answers of environments and engine."""
        self._resume()
        self._play()
        while self.waiting and self.free:  # slots that were free a moment ago wait for no answer of the engine
            self._play()
        if self._requests:
            self._take_answers(_BRIEF if self.manager.vector.pending else _PATIENCE)
        self._log_failures()
        self._pause()

    def _resume(self) -> None:
        """Begins to count time; what passed since the last pause counts against no answer's deadline."""
        self._watch.start()
        pause = 0.0 if self._paused is None else self.manager.clock() - self._paused
        for episode in self.running.values():
            if episode.asked_at is not None:
                episode.asked_at += pause

    def _pause(self) -> None:
        """Counts no time until the next call."""
        self._watch.book()
        self._paused = self.manager.clock()

    def _take_answers(self, patience: float) -> None:
        """Waits for the engine, so many seconds at most, and takes what it has answered."""
        with self._watch.on("engine"):
            completions = self.manager.engine.poll(patience)
        for completion in completions:
            self._on_completion(completion)
        self._give_up_unanswered()

    def _play(self) -> None:
        """Starts episodes in free slots, and takes the answers of environments."""
        vector, engine = self.manager.vector, self.manager.engine
        while self.waiting and engine.stopped is not None:
            plan = self.waiting.popleft()
            episode = RunningEpisode(plan, self.manager.env_ids[plan.env], self.manager.dialogs(plan))
            self._record(episode, EpisodeEnding(error=engine.stopped, unanswered=True))
        while self.waiting and self.free:
            self._start(self.free.pop(), self.waiting.popleft())
        if vector.pending:
            with self._watch.on(self._meanwhile("env")):
                events = vector.poll(0.0 if self._requests else _PATIENCE)
            for event in events:
                self._on_event(event)

    def oldest(self) -> Wait | None:
        """The oldest question to environments or engine without an answer."""
        waits = []
        if (call := self.manager.vector.waiting_for()) is not None:
            episode = None if call.slot is None else self.running.get(call.slot)
            waits.append(call if episode is None else replace(call, what=f"{episode}: {call.what}"))
        questions = [(episode.asked_at, episode) for episode in self.running.values() if episode.asked_at is not None]
        if questions:
            since, episode = min(questions, key=lambda pair: pair[0])
            waits.append(Wait(f"{episode}: {self.manager.engine.where(episode.plan.episode_id)}", since))
        return min(waits, key=lambda wait: wait.since, default=None)

    def _share(self) -> float:
        """Share of the slots that have an episode, or could have one."""
        return 1.0 if self.waiting else len(self.running) / self.manager.vector.slots

    def _meanwhile(self, part: Part) -> Part:
        """Returns the part that counts while this thread works on ``part``: an engine may generate meanwhile."""
        return "engine" if self._requests and self.manager.engine.background else part

    def _start(self, slot: int, plan: EpisodePlan) -> None:
        manager = self.manager
        dialogs, env_id = manager.dialogs(plan), manager.env_ids[plan.env]
        self.running[slot] = RunningEpisode(plan, env_id, dialogs)
        call = "reset" if plan.branch is None else "restore"
        with self._watch.on(self._meanwhile("env")), ACTIVITY.waiting(f"{call} of slot {slot} ({env_id})"):
            if plan.branch is None:
                manager.vector.reset(slot, plan.env, task_id=plan.task_id, seed=plan.seed)
            else:
                manager.vector.restore(slot, plan.env, plan.branch.environment)

    def _on_event(self, event: VectorEvent) -> None:
        """Handles an environment's answer: records the step, and ends the episode or asks the engine again."""
        episode = self.running[event.slot]
        if event.error is not None or event.observation is None or event.info is None:
            self._handle_failure(event.slot, EpisodeEnding(error=event.error), collateral=event.collateral)
            return
        episode.observe(event)
        plan, sampling = episode.plan, self.sampling
        at_limit = len(episode.steps) == plan.steps or (episode.steps and self._tokens_left(episode) == 0)
        if (event.terminated or event.truncated or at_limit) and not episode.tries_again():
            self._end(event.slot, EpisodeEnding(terminated=event.terminated))
            return
        with self._watch.on(self._meanwhile("codec")):
            if plan.branch is not None and episode.observation is None:
                ending = episode.start_at(plan.branch, event)
            else:
                ending = episode.ask(event.observation)
        if ending is not None:
            self._end(event.slot, ending)
            return
        if self.branches is not None:
            episode.add_branch(event)
        if plan.greedy:
            sampling = replace(sampling, temperature=0.0)
        if (budget := self._tokens_left(episode)) is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, budget))
        seed = step_seed(self.seed, plan.episode_id, len(episode.steps))
        number = next(_NUMBERS)
        episode.asked_at = self.manager.clock()
        self._requests[number] = event.slot
        self.manager.engine.submit([episode.dialog.request(number, sampling, plan.episode_id, seed)])

    def _on_completion(self, completion: Any) -> None:
        """Handles the engine's answer: steps the environment."""
        slot, vector = self._requests.pop(completion.request_id, None), self.manager.vector
        if slot is None:  # of a request that was given up
            self.timing.dropped_tokens += completion.count
            return
        episode = self.running[slot]
        episode.asked_at = None
        if completion.error is not None:
            if completion.finish_reason == "context":
                self._end(slot, episode.context_ending(completion.error))
            else:
                self._handle_failure(slot, EpisodeEnding(error=completion.error, unanswered=True))
            return
        with self._watch.on(self._meanwhile("codec")):
            answer = episode.read(completion)
        waits = ACTIVITY.waiting(f"step of slot {slot} ({episode.env_id})")
        with self._watch.on(self._meanwhile("env")), waits:
            if answer is None:
                vector.reset(slot, episode.plan.env, task_id=episode.plan.task_id, seed=episode.plan.seed)
            elif answer.action is not None:
                vector.step(slot, answer.action)
            else:
                vector.refuse(slot, answer.error or "no action in the completion")

    def _give_up_unanswered(self) -> None:
        """Gives up the requests that the engine has not answered within its deadline, or does not have any more."""
        engine, now, limit = self.manager.engine, self.manager.clock(), self.manager.engine_deadline
        idle = not engine.pending
        if not idle and now < self._next_look:
            return
        self._next_look = now + _LOOK
        for number, slot in list(self._requests.items()):
            episode = self.running[slot]
            session = episode.plan.episode_id
            assert episode.asked_at is not None
            if idle:
                why = f"RequestLost: {engine.where(session)} has lost the request"
            elif now - episode.asked_at >= limit:
                why = f"DeadlineExceeded: {engine.where(session)} has not answered for {limit:g} s"
            else:
                continue
            del self._requests[number]
            engine.abandon(number, session)
            self._handle_failure(slot, EpisodeEnding(error=why, unanswered=True))

    def _handle_failure(self, slot: int, ending: EpisodeEnding, collateral: bool = False) -> None:
        """Handles an episode without an answer: it is started again, if it may be, or ends with its error."""
        episode = self.running[slot]
        again = self.ledger.enter_failure(episode.plan.episode_id, collateral) and self.manager.engine.stopped is None
        if self.ledger.attempts > 1:  # else whoever keeps the episode has the reason
            self._failures.append(f"{episode}: {ending.error}; {'it is started again' if again else 'it is left out'}")
        if not again:
            self._end(slot, ending)
            return
        self._release(slot)
        self.timing.repeated += 1
        self.timing.dropped_tokens += episode.sampled_tokens
        self.waiting.appendleft(episode.plan)

    def _log_failures(self) -> None:
        """Logs which episodes were given up."""
        if self._failures:
            first, *texts = self._failures
            _LOG.warning("%s%s", first, f" (and {len(texts)} others)" if texts else "")
            for text in texts:
                _LOG.info("%s", text)
            self._failures = []

    def _tokens_left(self, episode: RunningEpisode) -> int | None:
        most = self.manager.episode_tokens
        return None if most is None else max(0, most - episode.tokens)

    def _release(self, slot: int) -> RunningEpisode:
        """Free the slot of an episode that goes on no further."""
        self._watch.book()
        episode = self.running.pop(slot)
        self.free.append(slot)
        self.manager.engine.release(episode.plan.episode_id)
        return episode

    def _end(self, slot: int, ending: EpisodeEnding) -> None:
        """Free the slot of an episode that has ended."""
        episode = self._release(slot)
        if ending.error is not None:
            self.timing.dropped_tokens += episode.sampled_tokens
        self._record(episode, ending)

    def _record(self, running: RunningEpisode, ending: EpisodeEnding) -> None:
        """Records an episode that has ended."""
        plan, episode = running.plan, running.finish(ending)
        if self.keep is not None:
            self.keep(plan, episode, running.cost)
        if self.branches is not None:
            self.branches[plan.episode_id] = running.branches
        self.ledger.enter(episode)


def step_seed(seed: int, episode_id: int, t: int) -> int:
    """A 63-bit seed for one response."""
    digest = hashlib.blake2b(f"{seed}/{episode_id}/{t}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
