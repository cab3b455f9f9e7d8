"""Environments and an engine on a clock that only they advance: rollouts of any length in milliseconds, exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from envsuite.core import Tool
from envsuite.core.tools import Action
from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Completion, Request
from envsuite.playing.manager import RolloutManager
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.vector import EnvFactory, Vector, VectorEvent, Wait
from envsuite.vector.base import COLLATERAL, Description, failure
from trainers.imitation.vocabulary import word_tokenizer
from trainers.rollout.engine import Engine

GO = Tool("go", "Go on.", {"type": "object", "properties": {}, "additionalProperties": False})


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(["Go go system user sleep end"], 512)


@cache
def answer() -> list[int]:
    return [*tokenizer().encode("<action>go</action>", add_special_tokens=False), 1]


@dataclass
class Clock:
    """Seconds, and for what they passed."""

    now: float = 0.0
    share: Callable[[], float] = lambda: 1.0
    """Share of the slots that have an episode at this moment."""
    passed: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __call__(self) -> float:
        return self.now

    def wait(self, part: str, seconds: float) -> None:
        share = self.share()
        self.passed[part] += seconds * share
        self.passed["longest_episode"] += seconds * (1 - share)
        self.now += seconds


class VirtualVector(Vector):
    """Slots whose calls take the seconds that ``script`` says of an episode's task, its attempt and its step."""

    def __init__(self, slots: int, clock: Clock, script: Callable[[str, int, int], tuple[float, str]]) -> None:
        super().__init__([EnvFactory("Virtual-v0")], slots)
        self._descriptions = [Description((GO,), max_calls=1)]
        self.clock, self.script = clock, script
        self.task: dict[int, str] = {}
        self.taken: Counter[int] = Counter()
        self.started: Counter[str] = Counter()
        self.over = 0
        self.due: dict[int, tuple[float, float, str]] = {}
        """Per slot, when its call began and ends, and how."""

    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        assert task_id is not None
        self.task[slot], self.taken[slot] = task_id, 0
        self.started[task_id] += 1
        self._call(slot)

    def _step(self, slot: int, action: Action) -> None:
        self.taken[slot] += 1
        self._call(slot)

    def _call(self, slot: int) -> None:
        task = self.task[slot]
        seconds, how = self.script(task, self.started[task], self.taken[slot])
        self.due[slot] = (self.clock(), self.clock() + seconds, how)

    def poll(self, timeout: float | None = None) -> list[VectorEvent]:
        if not self.due:
            return []
        first = min(end for _, end, _ in self.due.values())
        wait = max(0.0, first - self.clock())
        self.clock.wait("env", wait if timeout is None else min(wait, timeout))
        ready = [slot for slot, (_, end, _) in self.due.items() if end <= self.clock()]
        return self._finish_calls([self._event(slot, self.due.pop(slot)[2]) for slot in ready])

    def _event(self, slot: int, how: str) -> VectorEvent:
        if how in ("hangs", "collateral"):
            self.over += 1
            return failure(slot, f"{COLLATERAL if how == 'collateral' else ''}DeadlineExceeded: so it is")
        self.over += how == "ends"
        observation: Any = {"task": "Go.", "text": "go", "commands": ()}
        info: Any = {
            "valid": True,
            "success": how == "ends",
            "score": 1.0,
            "state_key": "",
            "task_type": "",
            "split": "",
        }
        return VectorEvent(slot, observation, 1.0, how == "ends", False, info, None)

    def waiting_for(self) -> Wait | None:
        if not self.due:
            return None
        slot = min(self.due, key=lambda slot: self.due[slot][0])
        return Wait(f"call of slot {slot}", self.due[slot][0], slot)

    def close(self) -> None:
        pass


class VirtualEngine(Engine):
    """Answers a request after the seconds that ``script`` says of its session, attempt and step; infinity is never.

    Args:
        clock: Advanced while it works, which it does only when polled.
        script: Seconds, by session, attempt and number of the request.
    """

    def __init__(self, clock: Clock, script: Callable[[int, int, int], float]) -> None:
        self.clock, self.script = clock, script
        self.left: dict[int, float] = {}
        self.attempt: Counter[int] = Counter()
        self.asked: Counter[int] = Counter()
        self.sampled = 0
        self.abandoned: list[int | None] = []

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request.session is not None
            if not self.asked[request.session]:
                self.attempt[request.session] += 1
            seconds = self.script(request.session, self.attempt[request.session], self.asked[request.session])
            self.asked[request.session] += 1
            self.left[request.request_id] = seconds

    def poll(self, timeout: float | None = None) -> list[Completion]:
        if not self.left:
            return []
        seconds = max(0.0, min(self.left.values()))
        seconds = seconds if timeout is None else min(seconds, timeout)
        self.clock.wait("engine", seconds)
        self.left = {number: left - seconds for number, left in self.left.items()}
        done = [number for number, left in self.left.items() if left <= 1e-9]
        for number in done:
            del self.left[number]
        self.sampled += len(done) * len(answer())
        zeros = np.zeros(len(answer()), np.float32)
        return [Completion(number, answer(), zeros, "stop", 0) for number in done]  # type: ignore[arg-type]

    @property
    def pending(self) -> int:
        return len(self.left)

    def release(self, session: int) -> None:
        self.asked[session] = 0

    def abandon(self, request_id: int, session: int | None) -> None:
        self.abandoned.append(session)

    def where(self, session: int | None) -> str:
        return "the scripted engine"

    def sync(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        self.policy_version = version


def manager_of(engine: Engine, vector: Vector, clock: Clock, **settings: Any) -> RolloutManager:
    """A manager on virtual time."""
    prompt = PromptSpec(make_codec("tags", think=False), make_memory("window(2)"), instructions=False)
    ids = [factory.env_id for factory in vector.factories]
    return RolloutManager(engine, vector, ids, TokenDialogs(tokenizer(), prompt), clock=clock, **settings)


def virtual(
    slots: int,
    script: Callable[[str, int, int], tuple[float, str]],
    seconds: Callable[[int, int, int], float] = lambda *_: 1.0,
    **settings: Any,
) -> tuple[Clock, VirtualVector, VirtualEngine, RolloutManager]:
    """A clock, and a manager with the vector and the engine that advance it."""
    clock = Clock()
    vector, engine = VirtualVector(slots, clock, script), VirtualEngine(clock, seconds)
    return clock, vector, engine, manager_of(engine, vector, clock, **settings)
