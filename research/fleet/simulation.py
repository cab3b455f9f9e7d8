"""The events of a fleet: groups start, episodes go from environment to engine and back, updates take whole groups."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from research.fleet.cores import Cores
from research.fleet.draws import Draws
from research.fleet.engine import CAUSES, Engine
from research.fleet.model import EnvironmentSpeed, Fleet, UpdateSpeed, Workload
from research.fleet.outcome import GENERATING, ROLLOUT_PROCESS, Outcome, Totals
from research.fleet.state import Group, Playing
from trainers.planning.plan import EngineSpeed
from trainers.settings import ConfigError

ENGINE, ANSWER, HUNG, UPDATED, SYNCED, SERVER, SERVER_BACK, GPU, GPU_BACK, OUTAGE = range(10)
"""Kinds of events."""
LOST = 10**9
"""Load of an engine that is lost, so that no other one is passed over for it."""
MOST_WASTED = 100
"""Groups without use, for each that an update takes, after which a simulation is given up."""


class Simulation:
    """One run of a fleet.

    Args:
        work: The episodes of an iteration.
        environment: Seconds of an environment.
        engine: Speed of each engine.
        update: Speed of the update.
        fleet: The machines.
        seed: All chance is a function of it; fleets with one seed play the same episodes.
    """

    def __init__(
        self,
        work: Workload,
        environment: EnvironmentSpeed,
        engine: EngineSpeed,
        update: UpdateSpeed,
        fleet: Fleet,
        seed: int = 0,
    ) -> None:
        self.work, self.fleet, self.update_speed = work, fleet, update
        self.mean_step = environment.step.mean
        self.draws = Draws(work, environment, fleet.failures.hung, seed)
        self.engines = [Engine(engine, fleet.slots) for _ in range(fleet.engines)]
        self.cores = Cores(fleet)
        self.chance = np.random.default_rng([seed, 0x6661696C])  # of failures
        self.now, self.lost = 0.0, 0.0
        """Seconds so far without outages of the whole run; and those of outages."""
        self.version = 0
        self.started = self.consumed = self.empty = 0
        """Groups so far: begun, trained on, without an episode that did not fail."""
        self.redispatched = self.failed = 0
        """Episodes that were dispatched again; that failed for good."""
        self.training: list[Group] = []
        """Groups of the update under way."""
        self.syncing = False
        self.groups: dict[int, Group] = {}
        """Groups on their way."""
        self.ready: dict[int, Group] = {}
        """Whole groups, behind some that are not."""
        self.first: list[Group] = []
        """Whole groups of the next update: those that were started first."""
        self._order: deque[int] = deque()
        """Numbers of the groups behind these, in the order in which they were started."""
        self.episodes: dict[int, Playing] = {}
        self.ages: dict[int, float] = {}
        """Trained response tokens by the number of updates since they were sampled."""
        self.steps = 0
        """Environment steps so far."""
        self.env_waited = 0.0
        """Seconds that calls waited for a core."""
        self.update_busy = 0.0
        """Seconds of updates."""
        self.calls = 0
        """Environment calls so far."""
        self._load = [(0, n) for n in range(fleet.engines)]  # episodes, engine: a note for each change
        self._events: list[tuple[float, int, int, int, int]] = []
        self._number = 0
        self._checkpoint = 0.0
        self._wasted = 0  # groups that had failed before the last update

    def run(self, updates: int, warm_up: int = 0) -> Outcome:
        """Simulates until so many updates have been made.

        Args:
            updates: Their number, those of the warm-up included.
            warm_up: Updates at the beginning that the outcome leaves out.

        Raises:
            ConfigError: They cannot be reached, because too much fails.
        """
        handlers = {
            ENGINE: self._engine_due, ANSWER: self._answer, HUNG: self._hung, UPDATED: self._updated,
            SYNCED: self._synced, SERVER: self._server_lost, SERVER_BACK: self._server_back, GPU: self._gpu_lost,
            GPU_BACK: self._gpu_back, OUTAGE: self._outage,
        }  # fmt: skip
        self._first_failures()
        self._admit()
        events, count = self._events, 0
        before = self.totals()
        while self.version < updates:
            if self.empty - self._wasted > MOST_WASTED * self.work.tasks:
                raise ConfigError(
                    f"update {self.version + 1} cannot be filled: {self.empty - self._wasted:,} groups "
                    f"failed since the last one ({self.failed:,} episodes failed so far); so much "
                    "fails only with rates as high as those of --failures: lower them"
                )
            self.now, _, kind, one, ticket = heappop(events)
            handlers[kind](one, ticket)
            count += 1
            if kind == SYNCED and self.version == warm_up:
                before = self.totals()
        return Outcome.between(before, self.totals(), len(self.engines), self.fleet.cores, count)

    def totals(self) -> Totals:
        """The sums from the beginning until now."""
        for engine in self.engines:
            engine.advance(self.now, self.cause(engine))
        did = {cause: sum(engine.idle[cause] for engine in self.engines) for cause in CAUSES}
        aside = sum(engine.aside for engine in self.engines)
        did |= {GENERATING: sum(engine.busy for engine in self.engines) - aside, ROLLOUT_PROCESS: aside}
        return Totals(
            self.now + self.lost, self.version, did, sum(engine.sequences for engine in self.engines),
            self.update_busy, self.cores.busy, self.env_waited, self.calls, self.steps, dict(self.ages),
            self.redispatched, self.failed, self.lost,
        )  # fmt: skip

    # -- groups -------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts every group that may."""
        most = (self.version + self.fleet.staleness + 1) * self.work.tasks + self.empty
        touched: dict[int, None] = {}
        while self.started < most:
            number = self.started
            self.started += 1
            self.groups[number] = Group(self.work.group_size)
            self._order.append(number)
            engine = self._lightest(self.work.group_size)
            for member, drawn in enumerate(self.draws.group(number)):
                episode = number * self.work.group_size + member
                self.episodes[episode] = Playing(number, member, drawn, engine)
                self.engines[engine].waiting.append(episode)
            touched[engine] = None
        for engine in touched:
            self._fill(engine)

    def _lightest(self, episodes: int) -> int:
        """The engine with the fewest episodes, which gets so many more."""
        while True:
            noted, number = self._load[0]
            load = self._load_of(number)
            if noted == load:
                break
            heappop(self._load)
            heappush(self._load, (load, number))
        heappop(self._load)
        heappush(self._load, (load + episodes, number))
        return number

    def _load_of(self, number: int) -> int:
        engine = self.engines[number]
        return engine.episodes + len(engine.waiting) + (LOST if "failure" in engine.pauses else 0)

    def _fill(self, number: int) -> None:
        """Gives free slots to waiting episodes."""
        engine = self.engines[number]
        if not engine.waiting or engine.episodes >= engine.slots or "failure" in engine.pauses:
            return
        engine.advance(self.now, self.cause(engine))
        while engine.waiting and engine.episodes < engine.slots:
            name = engine.waiting.popleft()
            episode = self.episodes[name]
            engine.episodes += 1
            episode.core = self.cores.seat()
            self._call(name, episode, 0.0)

    def _end(self, name: int, sound: bool) -> None:
        """Ends an episode, and its group with the last one."""
        episode = self.episodes.pop(name)
        engine = self.engines[episode.engine]
        if episode.core >= 0:
            self.cores.leave(episode.core)
            engine.episodes -= 1
        group = self.groups[episode.group]
        group.missing -= 1
        if sound:
            group.sound += 1
            for version, tokens in episode.tokens.items():
                group.tokens[version] = group.tokens.get(version, 0.0) + tokens
            own = episode.drawn.responses[-1] if self.work.merges else sum(episode.drawn.responses)
            group.trained += episode.prompts + own - (self.work.first if self.work.shares and episode.member else 0.0)
        if not group.missing:
            del self.groups[episode.group]
            if group.sound:
                self.ready[episode.group] = group
            else:
                self.empty += 1
                self._admit()
            self._train()
        heappush(self._load, (self._load_of(episode.engine), episode.engine))
        self._fill(episode.engine)

    # -- turns of an episode ----------------------------------------------------------------------------------------

    def _call(self, name: int, episode: Playing, replay: float) -> None:
        """Asks the environment: the reset, or a step. ``replay``: CPU seconds of earlier steps that it repeats."""
        fleet, drawn, number = self.fleet, episode.drawn, episode.call
        self.calls += 1
        seconds = drawn.env[number]
        engine = self.engines[episode.engine]
        if fleet.client_blocks:
            engine.advance(self.now, self.cause(engine))
            engine.interrupt(fleet.client)
        if drawn.hangs == number:
            self._at(self.now + fleet.failures.deadline, HUNG, name, episode.ticket)
            return
        if fleet.place == "inline":
            engine.advance(self.now, self.cause(engine))
            engine.interrupt(seconds)
            self.cores.busy += seconds
            self._at(self.now + engine.stall + drawn.waits[number], ANSWER, name, episode.ticket)
            return
        sent = self.now + (engine.stall if fleet.client_blocks else fleet.client) + fleet.network / 2
        work = seconds + replay + fleet.request
        served = self.cores.call(episode.core, sent, work)
        self.env_waited += served - sent - work
        self._at(served + drawn.waits[number] + fleet.network / 2, ANSWER, name, episode.ticket)

    def _answer(self, name: int, ticket: int) -> None:
        """Takes the environment's answer: the episode ends, or its next response begins."""
        episode = self.episodes.get(name)
        if episode is None or episode.ticket != ticket:
            return
        number = episode.call
        if number:
            self.steps += 1
        engine = self.engines[episode.engine]
        engine.advance(self.now, self.cause(engine))
        if number == episode.drawn.steps:
            self._end(name, True)
            self._schedule(episode.engine)
            return
        work, tokens = self.work, episode.drawn.responses[number]
        prompt = new = work.first + work.growth * number
        if work.merges:
            episode.prompts = prompt
            if number:
                new = work.growth - episode.drawn.responses[number - 1]
        else:
            episode.prompts += prompt
        if not number and work.shares and episode.member:
            new = 0.0
        episode.generating, episode.joined = True, self.version
        episode.context = prompt + tokens / 2
        engine.join(name, tokens, max(new, 0.0), episode.context)
        self._schedule(episode.engine)

    def _engine_due(self, number: int, _: int) -> None:
        """Takes what an engine has finished."""
        engine = self.engines[number]
        if engine.expected <= self.now:
            engine.expected = float("inf")
        engine.advance(self.now, self.cause(engine))
        while (name := engine.ended()) is not None:
            episode = self.episodes[name]
            engine.leave(episode.context)
            self._count(engine, episode)
            episode.generating = False
            episode.call += 1
            self._call(name, episode, 0.0)
        self._schedule(number)

    def _count(self, engine: Engine, episode: Playing) -> None:
        """Books the tokens of a response on the versions that sampled them."""
        tokens, begun = episode.drawn.responses[episode.call], episode.joined
        if begun == self.version:
            episode.tokens[begun] = episode.tokens.get(begun, 0.0) + tokens
            return
        left, end = float(tokens), engine.clock
        for version in range(self.version, begun - 1, -1):  # from the last token back
            mark = engine.marks[version] if version > begun else 0.0
            part = left if version == begun else min(left, max(0.0, end - mark))
            if part:
                episode.tokens[version] = episode.tokens.get(version, 0.0) + part
            left, end = left - part, min(end, mark)

    def _schedule(self, number: int) -> None:
        engine = self.engines[number]
        due = engine.next_end()
        if due < engine.expected:
            engine.expected = due
            self._at(due, ENGINE, number, 0)

    def _at(self, time: float, kind: int, one: int, ticket: int) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, kind, one, ticket))

    def cause(self, engine: Engine) -> str:
        """Why an engine without sequences generates nothing."""
        if engine.episodes:
            return "environment"
        return "update" if self.training or self.syncing else "longest episode"

    def _all(self, change: str, cause: str) -> None:
        """Pauses or resumes all engines."""
        for number, engine in enumerate(self.engines):
            engine.advance(self.now, self.cause(engine))
            if change == "pause":
                engine.pause(cause)
            else:
                engine.resume(cause)
                engine.expected = float("inf")
                self._schedule(number)

    # -- updates ------------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Begins an update, if the groups that were started first are whole."""
        if self.training or self.syncing:
            return
        while self._order and len(self.first) < self.work.tasks and self._order[0] not in self.groups:
            number = self._order.popleft()
            if number in self.ready:  # and not empty
                self.first.append(self.ready.pop(number))
        if len(self.first) < self.work.tasks:
            return
        for engine in self.engines:  # what they wait for changes
            if not engine.running:
                engine.advance(self.now, self.cause(engine))
        self.training, self.first = self.first, []
        tokens = sum(group.trained for group in self.training)
        seconds = self.update_speed.fixed + self.update_speed.token * tokens
        self.update_busy += seconds
        if self.fleet.colocated:
            self._all("pause", "update")
        self._at(self.now + seconds, UPDATED, 0, 0)

    def _updated(self, _: int, __: int) -> None:
        """Ends an update, and gives engines the new weights."""
        if self.fleet.colocated:
            self._all("resume", "update")
        self.syncing = True
        self._all("pause", "sync")
        self._at(self.now + self.update_speed.sync, SYNCED, 0, 0)

    def _synced(self, _: int, __: int) -> None:
        self._all("resume", "sync")
        for group in self.training:
            for version, count in group.tokens.items():
                age = self.version - version
                self.ages[age] = self.ages.get(age, 0.0) + count
        self.consumed += len(self.training)
        self.training, self.syncing = [], False
        self.version += 1
        self._wasted = self.empty
        for engine in self.engines:
            engine.marks.append(engine.clock)
        if self.version % self.fleet.failures.checkpoint == 0:
            self._checkpoint = self.now
        self._admit()
        self._train()

    # -- failures -----------------------------------------------------------------------------------------------------

    def _first_failures(self) -> None:
        failures = self.fleet.failures
        if failures.server_hours and self.fleet.place == "servers":
            self._next(failures.server_hours, self.fleet.servers, SERVER)
        if failures.gpu_hours:
            self._next(failures.gpu_hours, self.fleet.training_gpus, OUTAGE)
            if not self.fleet.colocated:
                self._next(failures.gpu_hours, self.fleet.engines, GPU)

    def _next(self, hours: float, count: int, kind: int) -> None:
        """The next loss of one of ``count`` parts."""
        self._at(self.now + self.chance.exponential(3600.0 * hours / count), kind, int(self.chance.integers(count)), 0)

    def _hung(self, name: int, ticket: int) -> None:
        """Gives a call up at its deadline."""
        episode = self.episodes.get(name)
        if episode is not None and episode.ticket == ticket:
            self._again(name)

    def _again(self, name: int) -> None:
        """Dispatches an episode again from its beginning, or gives it up."""
        episode = self.episodes[name]
        engine = self.engines[episode.engine]
        engine.advance(self.now, self.cause(engine))
        episode.attempt += 1
        if episode.attempt >= self.fleet.failures.attempts:
            self.failed += 1
            self._end(name, False)
            return
        self.redispatched += 1
        if episode.core >= 0:
            self.cores.leave(episode.core)
            engine.episodes -= 1
            heappush(self._load, (self._load_of(episode.engine), episode.engine))
        where = self._lightest(1)
        self.episodes[name] = Playing(
            episode.group, episode.member, self.draws.group(episode.group, episode.attempt)[episode.member], where,
            episode.attempt, ticket=episode.ticket + 1,
        )  # fmt: skip
        self.engines[where].waiting.append(name)
        self._fill(where)
        self._fill(episode.engine)

    def _server_lost(self, server: int, _: int) -> None:
        """Loses a server: its sessions go to others, which repeat their steps."""
        failures = self.fleet.failures
        self._next(failures.server_hours, self.fleet.servers, SERVER)
        if self.cores.down[server * self.fleet.cores_per_server]:
            return
        back = self.now + failures.restart
        cores = self.cores.lose(server, back)
        self._at(back, SERVER_BACK, server, 0)
        for name, episode in self.episodes.items():
            if episode.core in cores:
                self.cores.leave(episode.core)
                episode.core = self.cores.seat()
                if not episode.generating and episode.drawn.hangs != episode.call:
                    episode.ticket += 1
                    self._call(name, episode, self.mean_step * episode.call)
                else:
                    self.cores.call(episode.core, self.now, self.mean_step * episode.call)

    def _server_back(self, server: int, _: int) -> None:
        self.cores.back(server)

    def _gpu_lost(self, number: int, _: int) -> None:
        """Loses an engine: the episodes that it plays begin again on others."""
        failures = self.fleet.failures
        self._next(failures.gpu_hours, self.fleet.engines, GPU)
        engine = self.engines[number]
        if "failure" in engine.pauses:
            return
        engine.advance(self.now, self.cause(engine))
        engine.pause("failure")
        engine.running.clear()
        engine.context = engine.stall = 0.0
        self._at(self.now + failures.restart, GPU_BACK, number, 0)
        for name in [name for name, episode in self.episodes.items() if episode.engine == number and episode.core >= 0]:
            self._again(name)

    def _gpu_back(self, number: int, _: int) -> None:
        engine = self.engines[number]
        engine.advance(self.now, self.cause(engine))
        engine.resume("failure")
        heappush(self._load, (self._load_of(number), number))
        engine.expected = float("inf")
        self._fill(number)
        self._schedule(number)

    def _outage(self, _: int, __: int) -> None:
        """Loses a process of the update: the run goes on from its last checkpoint, and what came after is repeated."""
        failures = self.fleet.failures
        self.lost += failures.restart + self.now - self._checkpoint
        self._next(failures.gpu_hours, self.fleet.training_gpus, OUTAGE)
