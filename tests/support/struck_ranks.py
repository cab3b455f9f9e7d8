"""``struck_ranks.py SEED MOMENTS ARGUMENTS…``: a process of a run that is disturbed in each attempt.

``MOMENTS`` are separated by commas, one for each attempt: ``start``, ``rollout``, ``update``, ``checkpoint``, when one
of the ranks is killed; ``engine``, when a child that stands in for a vLLM server is; or the name of an exception, which
is raised in an update. Later attempts are not disturbed. A kill is printed before: ``struck ATTEMPT MOMENT``.
"""

import builtins
import os
import random
import signal
import subprocess
import sys
import threading

from trainers.train import main

seed, moments, attempt = sys.argv[1], sys.argv[2].split(","), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rng = random.Random(f"{seed} {attempt}")
moment = moments[attempt] if attempt < len(moments) else ""
mine = os.environ["RANK"] == str(rng.randrange(int(os.environ["WORLD_SIZE"])))
left, seconds = rng.randint(1, 3), rng.uniform(0.0, 0.2)


def tell() -> None:
    os.write(1, f"struck {attempt} {moment}\n".encode())


def strike() -> None:
    tell()
    os.kill(os.getpid(), signal.SIGKILL)


def comes(what: str) -> bool:
    """Whether it is time: at the ``left``-th call of the moment."""
    global left
    left -= mine and moment == what
    return mine and moment == what and left == 0


def disturb() -> None:
    from envsuite.playing.engine import EngineFailed
    from envsuite.playing.manager import RolloutManager
    from trainers.policy.update import Updater
    from trainers.rollout.hf_engine import HFEngine
    from trainers.run import checkpoint

    run, update, flushed, poll = RolloutManager.run, Updater.update, checkpoint._flush_files, HFEngine.poll
    # Stands in for a vLLM server: a child that is polled.
    server = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def playing(self, *rest, **named):
        if comes("rollout"):
            threading.Timer(seconds, strike).start()
        if comes("engine"):
            tell()
            server.kill()
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

    def polling(self, *rest, **named):
        if server.poll() is not None:
            raise EngineFailed(f"the server: it was killed by {signal.Signals(-server.poll()).name}")
        return poll(self, *rest, **named)

    RolloutManager.run, Updater.update, checkpoint._flush_files, HFEngine.poll = playing, updating, flushing, polling


if moment:
    disturb()
if moment == "start" and mine:
    threading.Timer(20 * seconds, strike).start()
sys.exit(main(sys.argv[3:]))
