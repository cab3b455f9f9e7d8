"""``struck_ranks.py SEED MOMENTS ARGUMENTS…``: a process of a run one of whose ranks is killed in each attempt.

``MOMENTS`` are separated by commas, one for each attempt: ``start``, ``rollout``, ``update``, ``checkpoint``; or the name
of an exception, which is raised in an update. Later attempts are not disturbed.
"""

import builtins
import os
import random
import signal
import sys
import threading

from trainers.policy.update import Updater
from trainers.rollout.manager import RolloutManager
from trainers.run import checkpoint
from trainers.train import main

seed, moments, attempt = sys.argv[1], sys.argv[2].split(","), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rng = random.Random(f"{seed} {attempt}")
moment = moments[attempt] if attempt < len(moments) else ""
chosen, number, seconds = rng.randrange(int(os.environ["WORLD_SIZE"])), rng.randint(1, 3), rng.uniform(0.0, 0.2)
mine = os.environ["RANK"] == str(chosen)
left = {"rollout": number, "update": number, "checkpoint": 1}


def strike() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def comes(what: str) -> bool:
    """Whether the process is to be struck now, at its ``number``-th call."""
    if mine and moment == what:
        left[what] -= 1
    return mine and moment == what and left[what] == 0


run, update, flushed = RolloutManager.run, Updater.update, checkpoint._flushed


def playing(self, *rest, **named):
    if comes("rollout"):
        threading.Timer(seconds, strike).start()
    return run(self, *rest, **named)


def updating(self, *rest, **named):
    if comes("update"):
        threading.Timer(seconds / 4, strike).start()
    if mine and moment in vars(builtins):
        raise vars(builtins)[moment]("it failed 7 times")
    return update(self, *rest, **named)


def flushing(partial, *rest):
    if comes("checkpoint"):
        strike()
    return flushed(partial, *rest)


RolloutManager.run, Updater.update, checkpoint._flushed = playing, updating, flushing
if moment == "start" and mine:
    threading.Timer(10 * seconds, strike).start()
sys.exit(main(sys.argv[3:]))
