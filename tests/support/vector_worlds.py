"""A small world that counts, and crashes, hangs or misbehaves on command; registered as ``vector_worlds:Rough-v0``."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
from bandit_world import COMMAND

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv
from envsuite.core.options import EnvOptions, option

TASKS = TaskSet("Rough-v0", "builtin", "1", {"train": ("a", "b", "c")}, dict.fromkeys("abc", "plain"))


@dataclass(frozen=True, kw_only=True)
class RoughOptions(EnvOptions):
    broken: str = option("", "how it fails")


class Rough(ToolEnv):
    tools = (Tool("do", "Do something.", COMMAND),)
    takes = RoughOptions

    def __init__(self, split="train", render_mode=None, broken=""):
        if broken == "make":
            raise ValueError("no\nworld today")
        if broken == "exit on make":
            os._exit(9)
        self.broken = broken
        self.farewell = ""
        self.count = 0
        super().__init__(TASKS, split, render_mode)

    def _begin(self, task_id):
        if self.broken == "reset":
            raise KeyError("reset is broken")
        self.count = 0
        return f"Count in {task_id}.", Outcome("0", commands=("go", "end"))

    def _call(self, call: ToolCall):
        verb, _, rest = call.arguments["command"].partition(" ")
        if verb == "raise":
            raise ZeroDivisionError(rest)
        if verb == "exit":
            os._exit(int(rest))
        if verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "segfault":
            ctypes.string_at(0)
        if verb == "sleep":
            time.sleep(float(rest))
        if verb == "wait":
            if rest:
                Path(f"{rest}.begun").touch()
            end = time.monotonic() + 120.0
            time.sleep(0.01)  # a worker sends the answers of calls that take less together
            while not Path(rest).exists() and time.monotonic() < end:
                time.sleep(0.01)
        if verb == "touch":
            path, _, seconds = rest.partition(" and sleep ")
            Path(path).touch()
            time.sleep(float(seconds))
        if verb == "farewell":
            self.farewell = rest
        if verb == "spawn":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(rest).write_text(str(child.pid))
        if verb == "print":
            print("to standard output")
        if verb == "unsendable":
            return Outcome("?", metrics={"f": lambda: 0})
        if verb == "long":
            return Outcome("x" * int(rest))
        if verb == "state":
            return Outcome(f"{os.getpid()} {'torch' in sys.modules} {os.environ.get('OMP_NUM_THREADS')}")
        self.count += 1
        return Outcome(f"{self._task_id} {self.count}", reward=0.5, done=verb == "end", success=verb == "end")

    def _state_key(self):
        return str(self.count)

    def close(self):
        if self.farewell:
            Path(self.farewell).touch()

    def _propose(self, rng):
        return ToolCall("do", {"command": "go"})


if "Rough-v0" not in gymnasium.registry:
    gymnasium.register("Rough-v0", entry_point=Rough, max_episode_steps=20)
