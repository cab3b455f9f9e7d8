"""The process that plays episodes while another one updates the policy: its settings, its messages, its main loop."""

from __future__ import annotations

import logging
import pickle
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from envsuite.core.errors import EnvsuiteError
from envsuite.core.processes import Channel
from envsuite.remote.places import News, listening
from envsuite.vector import Wait
from trainers.policy.adapter import trained_weights
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.stateful import compare
from trainers.processes.activity import ACTIVITY, Doing
from trainers.processes.cpu import keep_freed_memory, without_subnormals
from trainers.rollout.engine import Engine, EngineSetup, Sampling
from trainers.rollout.engines import make_engine
from trainers.rollout.environments import make_manager
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.rollout import Rollout
from trainers.rollout.timing import Timing
from trainers.run.asynchronous.weights import WeightsNote, read_weights
from trainers.run.config import TrainConfig
from trainers.run.rollouts import training_factory
from trainers.steps import Episode

BEAT_SECONDS = 0.5
"""Seconds between two signs of life."""

PLAYS = "rollout"
"""The phase in which a wait is one for an environment."""


@dataclass(frozen=True)
class Playing:
    """Settings of the process."""

    config: TrainConfig
    sampling: Sampling
    """How tokens are drawn in training."""
    seed: int
    """As in :meth:`RolloutManager.stream`."""
    slots: int
    """Most episodes at a time."""
    examples: Sequence[str]
    """Demonstrations for the prompts of each environment."""
    device: str
    """On which the model samples."""


@dataclass(frozen=True)
class Synced:
    """Sent when the weights of a version are in place."""

    version: int


@dataclass(frozen=True)
class Failed:
    """Sent when the process cannot go on."""

    message: str


@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    doing: Doing
    turn_s: float
    """Seconds since the main loop came round last."""
    oldest: tuple[str, float] | None
    """The oldest question to environments or engine without an answer, and the seconds since."""
    timing: Timing
    """Seconds of the rollout's parts, since it began."""
    idle_s: float
    """Seconds since the process began to play in which it had nothing to play."""


Message = Synced | Failed | Beat | News | Episode
"""Sent by the process."""
Order = WeightsNote | list[EpisodePlan]
"""Sent to it, after a :class:`Playing`: weights to go on with, and episodes to play under them."""


def serve(channel: socket.socket) -> None:
    """The main function of the process; returns when it cannot go on, and raises when the socket is closed.

    Raises:
        EOFError, OSError: The socket is closed.
    """
    logging.basicConfig(level=logging.WARNING, format="rollout: %(levelname)s %(name)s: %(message)s")
    line = _Line(channel)
    with without_subnormals(), line.beating(), listening(lambda news: line.send([news])):
        try:
            playing, *orders = line.wait()
            assert isinstance(playing, Playing)
            _play(playing, orders, line)
        except EnvsuiteError as error:
            line.send([Failed(str(error))])
            line.drain()


def _play(playing: Playing, orders: Sequence[Order], line: _Line) -> None:
    config = playing.config
    ACTIVITY.begin("loading the model")
    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    nn.Module.to(model, playing.device)
    if model.device.type == "cpu":
        keep_freed_memory()
    setup = EngineSetup(model, tokenizer, config.model, playing.slots)
    rollout = config.rollout
    with closing(make_engine(rollout.engine, setup, rollout.engine_options)) as engine:
        manager = make_manager(
            rollout,
            config.prompt,
            config.envs,
            playing.slots,
            engine,
            tokenizer,
            list(playing.examples),
            training_factory(config.method),
        )
        with manager.vector:
            ended: list[Episode] = []
            played = manager.open(playing.sampling, playing.seed, lambda plan, episode, effort: ended.append(episode))
            line.rollout = played
            ACTIVITY.begin(PLAYS)
            while True:
                for order in orders or (line.received() if played.busy else line.wait()):
                    if isinstance(order, WeightsNote):
                        _renew(order, model, engine)
                        line.send([Synced(order.version)])
                    else:
                        played.add(order)
                orders = ()
                if played.busy:
                    played.advance()
                played.ledger.groups.clear()
                line.turned(played.oldest())
                line.send([*ended, line.beat()] if ended else [])
                ended.clear()


def _renew(note: WeightsNote, model: PreTrainedModel, engine: Engine) -> None:
    """Goes on with other weights.

    Raises:
        StaleWeights, Mismatch: They are not those that were sent, or not the model's.
        EngineFailed: The engine has not taken them.
    """
    ACTIVITY.begin(f"taking the weights of version {note.version}")
    weights, own = read_weights(note), dict(trained_weights(model))
    compare(weights, own)
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    engine.sync(own.items(), note.version)
    ACTIVITY.begin(PLAYS)


class _Line:
    """The socket to the program; a second thread sends signs of life.

    Args:
        channel: The socket.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = Channel(channel)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._turned = time.monotonic()
        self._oldest: Wait | None = None
        self._idle = 0.0
        self._waits_since: float | None = None
        self.rollout: Rollout | None = None
        """The episodes that are played; ``None`` before the model is loaded."""

    def send(self, messages: Sequence[Message]) -> None:
        """Sends messages, as far as the program accepts them now."""
        with self._lock:
            if messages:
                self._channel.send([pickle.dumps(message) for message in messages])
            else:
                self._channel.flush()

    def drain(self) -> None:
        """Waits until everything is sent."""
        while self._channel.unsent:
            select.select([], [self._channel.socket], [], BEAT_SECONDS)
            self.send(())

    def received(self) -> list[Any]:
        """Returns what has arrived."""
        return self._channel.receive()

    def wait(self) -> list[Any]:
        """Waits for something to do, and counts that time as idle."""
        self._waits_since = time.monotonic()
        try:
            while not (orders := self.received()):
                select.select([self._channel.socket], [], [], BEAT_SECONDS)
                self.send(())
                self._turned = time.monotonic()
            return orders
        finally:
            self._idle, self._waits_since = self._idle_s(), None

    def turned(self, oldest: Wait | None) -> None:
        """Records that the main loop comes round, and what it waits for."""
        self._turned, self._oldest = time.monotonic(), oldest

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Sends signs of life while the block runs."""
        thread = threading.Thread(target=self._beat, name="beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            try:
                self.send([] if self._channel.unsent else [self.beat()])  # nobody reads while the policy is updated
            except OSError:  # the main thread notices
                return

    def beat(self) -> Beat:
        """Returns a sign of life."""
        now, oldest = time.monotonic(), self._oldest
        return Beat(
            ACTIVITY.now(),
            now - self._turned,
            None if oldest is None else (oldest.what, now - oldest.since),
            Timing() if self.rollout is None else self.rollout.timing,
            self._idle_s(),
        )

    def _idle_s(self) -> float:
        since = self._waits_since
        return self._idle + (0.0 if since is None else time.monotonic() - since)
