"""Runs episodes asynchronously: no episode waits for another's step."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from envsuite.core import Tool
from envsuite.core.errors import UsageError
from envsuite.prompting import Chat, Codec, Conversation, Memory, PromptFile
from envsuite.prompting.conversation import ChatTokenizer
from envsuite.vector import Event, Vector, Wait
from trainers.activity import ACTIVITY
from trainers.policy.vision import format_of
from trainers.rollout.engine import AnyEngine, ChatEngine, Sampling
from trainers.rollout.episode import Branches, Effort, Ending, EpisodePlan, Playing
from trainers.rollout.exchange import ChatExchange, Exchange, TokenExchange
from trainers.rollout.timing import Part, Stopwatch, Timing
from trainers.steps import Episode

_LOG = logging.getLogger(__name__)
_PATIENCE = 1.0  # seconds of waiting for environments or engine, after which progress is told
_LOOK = 0.1  # seconds between two looks at progress and overdue answers
_BRIEF = 0.005  # seconds of waiting for the engine while environments are about to answer
_LOSSES = 8  # losses with the process of another episode that an episode survives: bounds a machine that kills them all
_NUMBERS = itertools.count()  # of requests: an engine that several managers ask may answer one of another's too late


Watcher = Callable[[int, Wait | None], None]
"""Called with the number of finished episodes, and the oldest question to environments or engine without an answer."""
Keeper = Callable[[EpisodePlan, Episode, Effort], None]
"""Called with an episode when it has ended, its plan, and what it took."""


class RolloutManager:
    """Plays episodes with an engine and a vector of environments.

    Args:
        engine: Generates tokens, or answers messages.
        vector: Runs environments; its slots bound how many episodes run at a time.
        env_ids: Gymnasium id of each environment of the vector, for the records.
        tokenizer: Renders prompts and decodes completions; ``None`` with an engine for messages.
        codec: Format of actions.
        memory: Which part of the history is shown.
        instructions: Begin prompts with the codec's instructions.
        commands: Show the admissible commands.
        prompt_file: Renders the prompts.
        max_prompt_tokens: Maximum number of tokens of a prompt; ``None`` for no limit.
        truncate: What happens to a longer one, as :class:`~envsuite.prompting.Conversation` says.
        template_arguments: Arguments of the chat template; by default the codec's.
        episode_tokens: An episode that has written so many response tokens is cut; ``None`` for no limit.
        examples: Text of demonstrations for the prompts of each environment; by default none.
        attempts: Times that an episode is started whose environment or engine fails, or does not answer in time.
        engine_deadline: Seconds that the engine may take for one answer.
        clock: Seconds, monotonic; those of :class:`~envsuite.vector.Wait`.

    Raises:
        UsageError: An engine for tokens has no tokenizer, or there are examples of several agents.
    """

    def __init__(
        self,
        engine: AnyEngine[Any, Any],
        vector: Vector,
        env_ids: Sequence[str],
        tokenizer: ChatTokenizer | None,
        codec: Codec,
        memory: Memory,
        *,
        instructions: bool = True,
        commands: bool = True,
        prompt_file: PromptFile | None = None,
        max_prompt_tokens: int | None = None,
        truncate: Literal["episode", "left"] = "episode",
        template_arguments: Mapping[str, Any] | None = None,
        episode_tokens: int | None = None,
        examples: Sequence[str] = (),
        attempts: int = 2,
        engine_deadline: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if tokenizer is None and not isinstance(engine, ChatEngine):
            raise UsageError(f"{type(engine).__name__} takes prompts of tokens, which need a tokenizer")
        self.engine = engine
        self.vector = vector
        self.env_ids = tuple(env_ids)
        self.tokenizer = tokenizer
        self.codec = codec
        self.memory = memory
        self.instructions = instructions
        self.commands = commands
        self.prompt_file = prompt_file
        self.max_prompt_tokens = max_prompt_tokens
        self.truncate: Literal["episode", "left"] = truncate
        self.template_arguments = template_arguments
        self.episode_tokens = episode_tokens
        self.examples = tuple(examples) or ("",) * len(self.env_ids)
        if any(example and vector.agents(env) for env, example in enumerate(self.examples)):
            raise UsageError("prompt.examples are for environments of one agent: they show the tools of all")
        self.attempts = attempts
        self.engine_deadline = engine_deadline
        self.clock = clock
        self.timing = Timing()
        """Wall time of the last rollout by cause, and what it gave up."""

    def exchanges(self, env: int) -> dict[str, Exchange]:
        """Returns what each agent of a new episode in environment number ``env`` speaks to the engine by.

        The only agent of an environment is "".
        """
        tools, agents = self.vector.tools(env), self.vector.agents(env)
        if not agents:
            return {"": self._exchange(env, tools)}
        return {
            agent: self._exchange(env, tuple(tool for tool in tools if tool.name in names))
            for agent, names in agents.items()
        }

    def _exchange(self, env: int, tools: tuple[Tool, ...]) -> Exchange:
        max_calls, examples = self.vector.max_calls(env), self.examples[env]
        shown: dict[str, Any] = {
            "instructions": self.instructions, "commands": self.commands, "prompt_file": self.prompt_file,
            "examples": examples,
        }  # fmt: skip
        if self.tokenizer is None:
            return ChatExchange(Chat(self.codec, self.memory, tools, max_calls, **shown))
        conversation = Conversation(
            self.tokenizer, self.codec, self.memory, tools, max_calls, **shown,
            max_tokens=self.max_prompt_tokens, truncate=self.truncate, template_arguments=self.template_arguments,
            image_format=format_of(self.tokenizer),
        )  # fmt: skip
        return TokenExchange(conversation, self.tokenizer)

    def open(
        self, sampling: Sampling, seed: int, keep: Keeper | None = None, branches: Branches | None = None
    ) -> Rollout:
        """Returns a rollout without plans, to which they can be added at any time; at most one may have some at a time.

        Args:
            sampling: How tokens are drawn.
            seed: As for :meth:`stream`.
            keep: Called with each episode when it has ended.
            branches: Takes the steps of each episode that has ended, as points where others can start; those of a
                branch begin where it started. The vector must take snapshots.
        """
        if branches is not None and not self.vector.snapshots:
            raise UsageError("branches are kept of a vector that takes snapshots; make_vector(…, snapshots=True)")
        if branches is not None and any(self.vector.agents(env) for env in range(len(self.env_ids))):
            raise UsageError("episodes of several agents cannot branch")
        rollout = Rollout(self, sampling, seed, keep, branches)
        self.timing = rollout.timing
        return rollout

    def stream(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> Iterator[list[Episode]]:
        """Play every plan once; yield each group as soon as its last episode has ended, in the order of ``plans``.

        An episode whose environment or engine fails, or does not answer within its deadline, is started again in a
        fresh environment, with the same task and seeds, ``attempts`` times in all. What it had sampled is dropped, and
        counted in :attr:`timing`. One that fails each time has ``error`` set and the steps made last. An episode that
        was lost with the worker process of another one is started again in any case. One that outgrows the context is
        truncated there and counts like any other. Between two groups the caller may
        :meth:`~trainers.rollout.engine.Engine.sync` the engine: episodes on their way go on under the new weights.

        Args:
            plans: The episodes to play.
            sampling: How tokens are drawn.
            seed: Each response is a function of weights, prompt, this seed, episode id and step.
            watch: Called with progress.
            keep: Called with each episode when it has ended.
            branches: As for :meth:`open`.
        """
        rollout = self.open(sampling, seed, keep, branches)
        rollout.add(plans)
        told, due = -1, 0.0
        while rollout.busy:
            rollout.advance()
            if watch is not None and (rollout.ended != told or self.clock() >= due):
                told, due = rollout.ended, self.clock() + _LOOK
                watch(rollout.ended, rollout.oldest())
            while rollout.groups:
                yield rollout.groups.popleft()

    def run(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> list[Episode]:
        """Play every plan once, as :meth:`stream` does; episodes come back in the order of ``plans``."""
        done = {e.episode_id: e for group in self.stream(plans, sampling, seed, watch, keep, branches) for e in group}
        return [done[plan.episode_id] for plan in plans]


class Rollout:
    """The state of one rollout: waiting plans, running episodes by slot, and completed groups."""

    def __init__(
        self,
        manager: RolloutManager,
        sampling: Sampling,
        seed: int,
        keep: Keeper | None,
        branches: Branches | None = None,
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
        self.running: dict[int, Playing] = {}
        """Running episodes by slot of the vector."""
        self.groups: deque[list[Episode]] = deque()
        """Whole groups that nobody has taken yet."""
        self.ended = 0
        """Episodes that have ended."""
        self._requests: dict[int, int] = {}
        """Slots by the numbers of the requests that the engine has not answered."""
        self._failures: Counter[int] = Counter()
        """Times that an episode has failed, by its id, losses with the process of another one left out."""
        self._losses: Counter[int] = Counter()
        """Those losses."""
        self._paused: float | None = None
        """When the last call ended."""
        self._look = 0.0
        """When overdue answers are looked for next."""
        self._told: list[str] = []
        """Episodes given up since the last log message."""
        self._missing: Counter[int] = Counter()
        self._place: dict[int, int] = {}
        self._parts: defaultdict[int, list[Episode]] = defaultdict(list)

    @property
    def busy(self) -> bool:
        """Whether a plan waits or an episode runs."""
        return bool(self.waiting or self.running)

    def add(self, plans: Sequence[EpisodePlan]) -> None:
        """Queue plans; a group is completed by those of its plans that have been added before its last episode ends."""
        self.waiting.extend(plans)
        self._missing.update(plan.group_id for plan in plans)
        self._place.update((plan.episode_id, number) for number, plan in enumerate(plans, start=len(self._place)))

    def settle(self) -> None:
        """Takes the answers to what the engine has been asked, and asks it nothing more: others may use it then."""
        self._go_on()
        while self._requests:
            self._take_answers(_PATIENCE)
        self._pause()

    def timed(self) -> Timing:
        """Returns the time, and what was given up, since the last call."""
        timing, self.timing = self.timing, Timing()
        self._watch.timing = self.timing
        return timing

    def advance(self) -> None:
        """Start episodes in free slots, then take what environments and engine have finished."""
        self._go_on()
        self._play()
        while self.waiting and self.free:  # slots that were free a moment ago wait for no answer of the engine
            self._play()
        if self._requests:
            self._take_answers(_BRIEF if self.manager.vector.pending else _PATIENCE)
        self._tell()
        self._pause()

    def _go_on(self) -> None:
        """Begins to count time; what passed since the last pause counts against no answer's deadline."""
        self._watch.start()
        paused = 0.0 if self._paused is None else self.manager.clock() - self._paused
        for episode in self.running.values():
            if episode.asked is not None:
                episode.asked += paused

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
        """Starts episodes in free slots, and takes what environments have finished."""
        vector, engine = self.manager.vector, self.manager.engine
        while self.waiting and engine.stopped is not None:
            plan = self.waiting.popleft()
            left = Playing(plan, self.manager.env_ids[plan.env], self.manager.exchanges(plan.env))
            self._enter(left, Ending(error=engine.stopped, unanswered=True))
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
        asked = [(episode.asked, episode) for episode in self.running.values() if episode.asked is not None]
        if asked:
            since, episode = min(asked, key=lambda pair: pair[0])
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
        exchanges, env_id = manager.exchanges(plan.env), manager.env_ids[plan.env]
        self.running[slot] = Playing(plan, env_id, exchanges)
        call = "reset" if plan.branch is None else "restore"
        with self._watch.on(self._meanwhile("env")), ACTIVITY.waiting(f"{call} of slot {slot} ({env_id})"):
            if plan.branch is None:
                manager.vector.reset(slot, plan.env, task_id=plan.task_id)
            else:
                manager.vector.restore(slot, plan.env, plan.branch.world)

    def _on_event(self, event: Event) -> None:
        """Handles an environment's answer: records the step, and ends the episode or asks the engine again."""
        episode = self.running[event.slot]
        if event.error is not None or event.observation is None or event.info is None:
            self._failed(event.slot, Ending(error=event.error), innocent=event.innocent)
            return
        episode.observe(event)
        if event.terminated or event.truncated or (episode.steps and self._tokens_left(episode) == 0):
            self._end(event.slot, Ending(terminated=event.terminated))
            return
        plan, sampling = episode.plan, self.sampling
        with self._watch.on(self._meanwhile("codec")):
            if plan.branch is not None and episode.observation is None:
                ending = episode.start_at(plan.branch, event)
            else:
                ending = episode.ask(event.observation)
        if ending is not None:
            self._end(event.slot, ending)
            return
        if self.branches is not None:
            episode.keep(event)
        if plan.greedy:
            sampling = replace(sampling, temperature=0.0)
        if (left := self._tokens_left(episode)) is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, left))
        seed = step_seed(self.seed, plan.episode_id, len(episode.steps))
        number = next(_NUMBERS)
        episode.asked = self.manager.clock()
        self._requests[number] = event.slot
        self.manager.engine.submit([episode.exchange.request(number, sampling, plan.episode_id, seed)])

    def _on_completion(self, completion: Any) -> None:
        """Handles the engine's answer: steps the environment."""
        slot, vector = self._requests.pop(completion.request_id, None), self.manager.vector
        if slot is None:  # of a request that was given up
            self.timing.dropped_tokens += completion.count
            return
        episode = self.running[slot]
        episode.asked = None
        if completion.error is not None:
            if completion.finish_reason == "context":
                self._end(slot, episode.outgrown(completion.error))
            else:
                self._failed(slot, Ending(error=completion.error, unanswered=True))
            return
        with self._watch.on(self._meanwhile("codec")):
            parsed = episode.read(completion)
        waits = ACTIVITY.waiting(f"step of slot {slot} ({episode.env_id})")
        with self._watch.on(self._meanwhile("env")), waits:
            if parsed.action is not None:
                vector.step(slot, parsed.action)
            else:
                vector.refuse(slot, parsed.error or "no action in the completion")

    def _give_up_unanswered(self) -> None:
        """Gives up the requests that the engine has not answered within its deadline, or does not have any more."""
        engine, now, limit = self.manager.engine, self.manager.clock(), self.manager.engine_deadline
        lost = not engine.pending
        if not lost and now < self._look:
            return
        self._look = now + _LOOK
        for number, slot in list(self._requests.items()):
            episode = self.running[slot]
            session = episode.plan.episode_id
            assert episode.asked is not None
            if lost:
                why = f"RequestLost: {engine.where(session)} has lost the request"
            elif now - episode.asked >= limit:
                why = f"DeadlineExceeded: {engine.where(session)} has not answered for {limit:g} s"
            else:
                continue
            del self._requests[number]
            engine.abandon(number, session)
            self._failed(slot, Ending(error=why, unanswered=True))

    def _failed(self, slot: int, ending: Ending, innocent: bool = False) -> None:
        """Handles an episode without an answer: it is started again, if it may be, or ends with its error."""
        episode = self.running[slot]
        plan = episode.plan
        (self._losses if innocent else self._failures)[plan.episode_id] += 1
        again = (
            self._failures[plan.episode_id] < self.manager.attempts
            and self._losses[plan.episode_id] < _LOSSES
            and self.manager.engine.stopped is None
        )
        self._told.append(f"{episode}: {ending.error}; {'it is started again' if again else 'it is left out'}")
        if not again:
            self._end(slot, ending)
            return
        self._release(slot)
        self.timing.repeated += 1
        self.timing.dropped_tokens += episode.sampled
        self.waiting.appendleft(plan)

    def _tell(self) -> None:
        """Logs which episodes were given up."""
        if self._told:
            first, *others = self._told
            _LOG.warning("%s%s", first, f" (and {len(others)} others)" if others else "")
            for text in others:
                _LOG.info("%s", text)
            self._told = []

    def _tokens_left(self, episode: Playing) -> int | None:
        most = self.manager.episode_tokens
        return None if most is None else max(0, most - episode.tokens)

    def _release(self, slot: int) -> Playing:
        """Free the slot of an episode that goes on no further."""
        self._watch.book()
        playing = self.running.pop(slot)
        self.free.append(slot)
        self.manager.engine.release(playing.plan.episode_id)
        return playing

    def _end(self, slot: int, ending: Ending) -> None:
        """Free the slot of an episode that has ended."""
        playing = self._release(slot)
        if ending.error is not None:
            self.timing.dropped_tokens += playing.sampled
        self._enter(playing, ending)

    def _enter(self, playing: Playing, ending: Ending) -> None:
        """Take an episode that has ended; a group that has its last one now is whole."""
        plan, episode = playing.plan, playing.ended(ending)
        self.ended += 1
        if self.keep is not None:
            self.keep(plan, episode, playing.effort)
        if self.branches is not None:
            self.branches[plan.episode_id] = playing.points
        self._parts[plan.group_id].append(episode)
        self._missing[plan.group_id] -= 1
        if not self._missing[plan.group_id]:
            del self._missing[plan.group_id]
            group = sorted(self._parts.pop(plan.group_id), key=lambda episode: self._place[episode.episode_id])
            for episode in group:
                del self._place[episode.episode_id]
                for counts in (self._failures, self._losses):
                    counts.pop(episode.episode_id, None)
            self.groups.append(group)


def step_seed(seed: int, episode_id: int, t: int) -> int:
    """A 63-bit seed for one response."""
    digest = hashlib.blake2b(f"{seed}/{episode_id}/{t}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
