"""A player in a process of its own, which goes on while the policy is updated, and is started anew where it fails."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from envsuite.core.processes import START_SECONDS, Channel, Child
from envsuite.remote.places import News, tell
from envsuite.vector import Wait
from trainers.processes.activity import ACTIVITY, duration
from trainers.rollout.engine import EngineFailed
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.timing import Timing
from trainers.run.asynchronous.child import PLAYS, Beat, Failed, Message, Order, Playing, Synced
from trainers.run.asynchronous.player import Effort, Player
from trainers.run.asynchronous.weights import SharedWeights
from trainers.steps import Episode

_LOG = logging.getLogger(__name__)
ATTEMPTS = 3
"""Times that an episode is played whose process is lost. The run stops when so many processes in a row were lost that
did not play, or twice as many that ended no episode."""
_POLL_SECONDS = 0.5
_AWAY_SECONDS = 5.0  # without a look at the process, after which its silence is counted anew
_ENDING_SECONDS = 1.0  # that the process has to end by itself
_ENTRY = "trainers.run.asynchronous.child:serve"


class ProcessPlayer(Player):
    """Plays in a process with a copy of the model, which gets the policy's weights through memory.

    A process that ends, gives no sign of life, or does not come round within its deadlines is killed and started
    anew with the present weights; the episodes that it had not sent are played again. What is waited for has a name:
    :meth:`oldest`.

    Args:
        playing: What is played.
        weights: Returns name and tensor of the policy's trained parameters.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, playing: Playing, weights: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        self.playing = playing
        self._weights = weights
        self._deadline = playing.config.rollout.deadline
        self._patience = 60.0 * playing.config.process_timeout
        self._plans: dict[int, EpisodePlan] = {}
        """Those that have been started and whose episodes have not come."""
        self._attempts: Counter[int] = Counter()
        """Processes that were lost with each of them."""
        self._lost = 0
        """Processes that were lost in a row without an episode in between."""
        self._restarts = 0
        self._failure: EngineFailed | None = None
        """Why the weights could not be sent."""
        self._version = 0
        """Version of the policy's weights."""
        self._current = -1
        """Version of the weights that the process was sent last."""
        self._ended: list[Episode] = []
        """Episodes that have come and were not asked for yet."""
        self._sent: list[SharedWeights] = []
        """Weights that the process has not taken yet."""
        self._before = (Timing(), 0.0)
        """Timing and idle seconds that :meth:`effort` has told of the present process."""
        self._earlier = (Timing(), 0.0)
        """Those of processes that were lost, which it has not told."""
        self._begin()

    def _begin(self) -> None:
        """Starts the process, which loads the model."""
        threads = max(1, torch.get_num_threads() // 2)  # the update has the others
        self._child = Child(_ENTRY, {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))})
        self._channel = Channel(self._child.socket)
        self._beat: Beat | None = None
        self._heard = self._looked = time.monotonic()
        self._send([self.playing])

    # -- the player ----------------------------------------------------------------------------------------------------

    def renew(self, version: int) -> None:
        """Sends the policy's weights; where that fails, :meth:`play` says so, as the other processes play then, too."""
        self._version = version
        try:
            with ACTIVITY.waiting(self._named("to take the weights before these")):
                while self._sent and self._current != version:  # memory for one copy on the way
                    self._look()
            if self._current != version:
                self._send_weights()
        except EngineFailed as error:
            self._failure = error

    def start(self, plans: Sequence[EpisodePlan]) -> None:
        """Sends plans; the process plays them with the weights that it was sent before."""
        self._plans.update((plan.episode_id, plan) for plan in plans)
        if plans:
            self._send([list(plans)])

    def play(self) -> list[Episode]:
        """Returns the episodes that have arrived, waiting half a second for a first one."""
        if self._failure is not None:
            raise self._failure
        self._look()
        ended, self._ended = self._ended, []
        return ended

    def oldest(self) -> Wait | None:
        """The wait that the process last told of; or that for its sign of life, if it is overdue."""
        now, beat = time.monotonic(), self._beat
        if beat is None or beat.doing.phase != PLAYS:
            phase = "start" if beat is None else beat.doing.phase
            return Wait(self._named(f"({phase})"), self._heard - (0.0 if beat is None else beat.doing.phase_s))
        if now - self._heard > _AWAY_SECONDS:
            return Wait(self._named(f"to give a sign of life; last: {beat.doing}"), self._heard)
        if beat.doing.waits_for:
            return Wait(self._named(f"in its {beat.doing.waits_for}"), self._heard - beat.doing.wait_s)
        return None if beat.oldest is None else Wait(beat.oldest[0], self._heard - beat.oldest[1])

    def effort(self) -> Effort:
        """Returns timing and idle seconds that the process has told of since the last call."""
        timing, idle = self._told()
        earlier, self._earlier = self._earlier, (Timing(), 0.0)
        self._before, before = (timing, idle), self._before
        restarts, self._restarts = self._restarts, 0
        return Effort(_less(timing, before[0]) + earlier[0], idle - before[1] + earlier[1], restarts)

    def close(self) -> None:
        """Ends the process."""
        self._child.stop(_ENDING_SECONDS)
        self._forget_weights()

    # -- the process ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Takes what arrives within half a second, and looks whether the process goes on."""
        if time.monotonic() - self._looked > _AWAY_SECONDS:
            self._heard = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended: the reader notices, after what it sent before
            writes = [self._channel.socket] if self._channel.unsent else []
            select.select([self._channel.socket], writes, [], _POLL_SECONDS)
            self._channel.flush()
        try:
            for message in self._channel.receive():
                self._heard = time.monotonic()
                self._take(message)
            lost = self._overdue()
        except EOFError:
            lost = "it ended by itself"
        self._looked = time.monotonic()
        if lost:
            self._start_anew(lost)

    def _take(self, message: Message) -> None:
        if isinstance(message, Beat):
            self._beat = message
        elif isinstance(message, Failed):
            raise EngineFailed(f"the rollout's process cannot go on: {message.message}")
        elif isinstance(message, News):
            tell(message)
        elif isinstance(message, Synced):
            self._forget_weights(message.version)
        else:
            self._ended.append(message)
            self._plans.pop(message.episode_id, None)
            self._attempts.pop(message.episode_id, None)
            self._lost = 0

    def _overdue(self) -> str:
        """Says which deadline has passed; empty where none has."""
        silence, beat = time.monotonic() - self._heard, self._beat
        doing = "start" if beat is None else str(beat.doing)
        if silence > (START_SECONDS if beat is None else self._patience):
            return f"no sign of life for {duration(silence)}; last: {doing}"
        if beat is not None and beat.doing.phase == PLAYS and beat.doing.wait_s > self._deadline:
            return f"rollout.deadline has passed: {doing}"
        if beat is not None and beat.turn_s > self._patience:
            return f"no progress for {duration(beat.turn_s)}; last: {doing}"
        return ""

    def _start_anew(self, reason: str) -> None:
        """Replaces the process, and gives the new one what the old one has not answered.

        Raises:
            EngineFailed: It has been lost too often.
        """
        how = self._child.stop(_ENDING_SECONDS)
        timing, idle = self._told()
        self._earlier = (self._earlier[0] + _less(timing, self._before[0]), self._earlier[1] + idle - self._before[1])
        self._before = (Timing(), 0.0)
        self._lost += 1
        self._restarts += 1
        said = f"the rollout's process (pid {self._child.process.pid}) was lost: {reason} (it {how})"
        played = self._beat is not None and self._beat.doing.phase == PLAYS
        if self._lost >= (2 * ATTEMPTS if played else ATTEMPTS):
            raise EngineFailed(f"{said}, {self._lost} times without an episode in between")
        running = list(self._plans)[: self.playing.slots] if played else []
        self._attempts.update(running)
        for number in running:
            if self._attempts[number] == ATTEMPTS:
                self._ended.append(self._given_up(self._plans.pop(number), said))
                del self._attempts[number]
        _LOG.warning("%s; it is started anew, and %d episodes are played again", said, len(self._plans))
        self._forget_weights()
        self._begin()
        self._send_weights()
        self._send([[*self._plans.values()]])

    def _given_up(self, plan: EpisodePlan, said: str) -> Episode:
        """The record of an episode with which the process was lost too often."""
        env = self.playing.config.envs[plan.env]
        return Episode(
            plan.episode_id, plan.group_id, env.id, plan.task_id, task_type="", split=env.split, task="", steps=(),
            terminated=False, truncated=False, success=False, score=0.0, greedy=plan.greedy, unanswered=True,
            error=f"played {ATTEMPTS} times, last {said}",
        )  # fmt: skip

    def _send(self, messages: Sequence[Playing | Order]) -> None:
        with contextlib.suppress(OSError):  # it has ended: the reader notices
            self._channel.send([pickle.dumps(message) for message in messages])

    def _send_weights(self) -> None:
        try:
            shared = SharedWeights(self._weights(), self._version)
        except OSError as error:
            raise EngineFailed(f"no room in memory for the weights of the rollout's process ({error})") from error
        self._sent.append(shared)
        self._current = self._version
        self._send([shared.note])

    def _forget_weights(self, version: int | None = None) -> None:
        """Gives back the memory of weights that were sent: those up to ``version``, or all."""
        done = [shared for shared in self._sent if version is None or shared.note.version <= version]
        self._sent = [shared for shared in self._sent if shared not in done]
        for shared in done:
            shared.close()

    def _told(self) -> tuple[Timing, float]:
        """Timing and idle seconds of the present process, as it last said."""
        return (Timing(), 0.0) if self._beat is None else (self._beat.timing, self._beat.idle_s)

    def _named(self, what: str) -> str:
        return f"the rollout's process (pid {self._child.process.pid}) {what}"


def _less(timing: Timing, before: Timing) -> Timing:
    return Timing(**{part: value - vars(before)[part] for part, value in vars(timing).items()})


def beside(accelerator: Accelerator) -> str:
    """The device of the rollout's process: the GPU after those of the trainers where there is one, else their own."""
    device = accelerator.device
    if device.type != "cuda":
        return str(device)
    trainers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return f"cuda:{((device.index or 0) + trainers) % torch.cuda.device_count()}"
