"""Plays the episodes of one evaluation, many at a time, and writes each when it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from envsuite.core.boundary import without_task
from envsuite.evaluation.prompting import Dialogue
from envsuite.evaluation.protocol import EvaluatedEnv, ProtocolSetting
from envsuite.evaluation.results import Conditions, Ending, EpisodeResult, ResultFile
from envsuite.playing.player import GAVE_UP
from envsuite.prompting.endpoints import RequestResult, body_of
from envsuite.vector import Vector, VectorEvent

if TYPE_CHECKING:
    from envsuite.prompting.endpoints.pool import RequestPool

_PATIENCE = 0.5  # seconds of waiting, after which progress is told
_SLOW = 1.0  # seconds that a call of an environment takes before it is named
_BRIEF = 0.02  # seconds of waiting for an endpoint while environments are about to answer


class Watcher(Protocol):
    """Is told how an evaluation goes."""

    def add_result(self, result: EpisodeResult) -> None:
        """Called with each episode that has ended."""

    def waits(self, what: str | None) -> None:
        """Called now and then, with what is waited for."""


@dataclass
class _Episode:
    """An episode on its way."""

    task_id: str
    seed: int
    dialogue: Dialogue | None
    began: float = field(default_factory=time.monotonic)
    info: Mapping[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    """Sum of the rewards of the current trial."""
    steps: int = 0
    valid: int = 0
    acting: bool = False
    """Whether the environment's next answer is to a step, not to a reset."""
    solved: list[bool] = field(default_factory=list)
    """Success of each trial that has ended."""

    def observe(self, event: VectorEvent) -> None:
        """Takes the environment's answer."""
        assert event.info is not None and event.observation is not None
        gave_up = GAVE_UP in event.info["metrics"]
        self.info = event.info
        if not self.acting:
            self.reward = 0.0
        elif not gave_up:
            self.steps += 1
            self.valid += event.info["valid"]
            self.reward += event.reward
        if self.dialogue is not None:
            self.dialogue.observe(event.observation)
        self.acting = True


class EpisodeRunner:
    """Plays the episodes of one setting.

    Args:
        setting: The setting.
        world: Its environment.
        conditions: Those of its results.
        file: Where results go.
        vector: Plays the environment, which is its only one.
        pool: Asks the endpoint, for a policy that is one.
        examples: Demonstrations in prompts, as text.
        watcher: Is told how it goes.
    """

    def __init__(
        self,
        setting: ProtocolSetting,
        world: EvaluatedEnv,
        conditions: Conditions,
        file: ResultFile,
        vector: Vector,
        pool: RequestPool | None,
        examples: str,
        watcher: Watcher,
    ) -> None:
        self.setting = setting
        self.world = world
        self.conditions = conditions
        self.file = file
        self.vector = vector
        self.pool = pool
        self.examples = examples
        self.watcher = watcher
        self._strata = world.strata
        self._waiting: deque[tuple[str, int]] = deque()
        self._free = list(range(vector.slots))[::-1]
        self._running: dict[int, _Episode] = {}
        self._again: set[tuple[str, int]] = set()

    def play(self, keys: Iterable[tuple[str, int]]) -> None:
        """Plays episodes, given as task and seed, and writes the result of each.

        When the endpoint cannot be used any more, the rest is left out, and episodes on their way with it: they say
        nothing, and are played when this is called again.
        """
        self._waiting.extend(keys)
        while self._waiting or self._running:
            if self.pool is not None and self.pool.stopped is not None:
                self._waiting.clear()
            while self._waiting and self._free:
                self._start(self._free.pop(), *self._waiting.popleft())
            if self.vector.pending:
                asking = self.pool is not None and self.pool.pending
                for event in self.vector.poll(0.0 if asking else _PATIENCE):
                    self._on_event(event)
            if self.pool is not None and self.pool.pending:
                for answer in self.pool.poll(_BRIEF if self.vector.pending else _PATIENCE):
                    self._on_reply(answer)
            self.watcher.waits(self._waited_for())

    def _waited_for(self) -> str | None:
        call = self.vector.waiting_for()
        if call is not None and time.monotonic() - call.since > _SLOW:
            return str(call)
        return f"an answer from {self.pool.url}" if self.pool is not None and self.pool.pending else None

    def _start(self, slot: int, task_id: str, seed: int) -> None:
        dialogue = None
        if self.setting.prompting is not None:
            assert self.pool is not None
            dialogue = Dialogue(
                self.setting.prompting, self.pool.options, self.world.tools, self.world.max_calls, self.examples,
                f"{seed}/{task_id}",
            )  # fmt: skip
        self._running[slot] = _Episode(task_id, seed, dialogue)
        self.vector.reset(slot, 0, task_id=task_id, seed=seed)

    def _on_event(self, event: VectorEvent) -> None:
        """Takes the environment's answer: the episode ends, or whoever acts next is asked."""
        episode, slot = self._running[event.slot], event.slot
        if event.error is not None:
            key = (episode.task_id, episode.seed)
            if event.collateral and key not in self._again:
                self._again.add(key)
                self._release_slot(slot)
                self._waiting.append(key)
            else:
                self._end(slot, "broken", event.error)
            return
        episode.observe(event)
        if event.terminated or event.truncated:
            self._trial_ended(slot, "done" if event.terminated else "budget")
        elif episode.dialogue is None:
            self.vector.step(slot, ())
        else:
            self._ask(slot, episode.dialogue)

    def _trial_ended(self, slot: int, ending: Ending) -> None:
        episode = self._running[slot]
        episode.solved.append(bool(episode.info["success"]))
        gave_up = GAVE_UP in episode.info["metrics"]
        if episode.dialogue is not None and not episode.solved[-1] and episode.dialogue.fail_trial():
            self._ask(slot, episode.dialogue)
        else:
            self._end(slot, "done" if gave_up else ending)

    def _ask(self, slot: int, dialogue: Dialogue) -> None:
        assert self.pool is not None
        self.pool.submit(slot, body_of(self.pool.options, **dialogue.request()))

    def _on_reply(self, answer: RequestResult) -> None:
        """Takes the endpoint's answer: the environment is stepped, or reset for another trial."""
        assert self.pool is not None
        slot = answer.request_id
        episode = self._running[slot]
        dialogue = episode.dialogue
        assert dialogue is not None
        if answer.reply is None:
            if answer.no_room:
                if not dialogue.reflecting:
                    episode.solved.append(False)
                self._end(slot, "context")
            elif self.pool.stopped is not None:
                self._release_slot(slot)
            else:
                self._end(slot, "broken", answer.error)
            return
        parse_result = dialogue.read(answer.reply)
        if parse_result is None:
            episode.acting = False
            self.vector.reset(slot, 0, task_id=episode.task_id, seed=episode.seed)
        elif parse_result.action is not None:
            self.vector.step(slot, parse_result.action)
        else:
            self.vector.refuse(slot, parse_result.error or "no action in the answer")

    def _end(self, slot: int, ending: Ending, broken: str | None = None) -> None:
        result = self._result(self._release_slot(slot), ending, broken)
        self.file.add(result)
        self.watcher.add_result(result)

    def _release_slot(self, slot: int) -> _Episode:
        """Frees a slot; returns the episode that was in it."""
        self._free.append(slot)
        return self._running.pop(slot)

    def _result(self, episode: _Episode, ending: Ending, broken: str | None) -> EpisodeResult:
        dialogue, sound = episode.dialogue, broken is None
        tokens = None if dialogue is None else dialogue.tokens
        metrics = {name: float(value) for name, value in episode.info.get("metrics", {}).items()}
        if dialogue is not None and dialogue.prompting.trials > 1 and sound:
            metrics |= {
                f"success_within_{trials}": float(any(episode.solved[:trials]))
                for trials in range(1, dialogue.prompting.trials + 1)
            }
        return EpisodeResult(
            self.conditions,
            episode.task_id,
            self._strata[episode.task_id],
            episode.seed,
            success=sound and any(episode.solved),
            score=float(episode.info["score"]) if sound and episode.info else 0.0,
            reward=episode.reward,
            steps=episode.steps,
            ending=ending,
            parsed=episode.steps if dialogue is None else dialogue.parsed,
            valid=episode.valid,
            cut=0 if dialogue is None else dialogue.cut,
            prompt_tokens=0 if tokens is None else tokens.prompt,
            answer_tokens=0 if tokens is None else tokens.answer,
            cost=None if dialogue is None else dialogue.cost,
            seconds=round(time.monotonic() - episode.began, 3),
            trials=1 if dialogue is None else max(1, dialogue.trial),
            seeds=self.setting.seeds,
            metrics=metrics,
            broken=None if broken is None else without_task(broken),
        )
