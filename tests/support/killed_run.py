"""``python killed_run.py WHERE N SIGNAL ARGUMENTS…``: a run that sends itself a signal where the test says."""

import os
import sys

from envsuite.playing.manager import RolloutManager
from trainers.report.metrics import MetricsWriter
from trainers.run import checkpoint
from trainers.run import saving as run_saving
from trainers.train import main

where, number, signal_number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def strike() -> None:
    os.kill(os.getpid(), signal_number)


write, play, save = MetricsWriter.write, RolloutManager.run, checkpoint.save
calls = {"rollout": 0}


def writing(self, iteration, values):
    write(self, iteration, values)
    if where == "metrics" and iteration == number:
        strike()


def playing(self, plans, *rest, **named):
    calls["rollout"] += 1
    if where == "rollout" and calls["rollout"] == number:
        episodes = play(self, plans[:1], *rest[:2])
        strike()
        del episodes
    return play(self, plans, *rest, **named)


def saving(folder, *rest):
    save(folder, *rest)
    if where == "checkpoint" and folder.name.endswith(str(number)):
        strike()


MetricsWriter.write, RolloutManager.run, checkpoint.save = writing, playing, saving
assert run_saving.checkpoint is checkpoint
sys.exit(main(sys.argv[4:]))
