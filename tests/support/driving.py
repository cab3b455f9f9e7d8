"""Drives vectors of environments in tests: calls, and the events that answer them."""

import contextlib
import gc
import os
import time
from collections import Counter

from waiting import ended

from envsuite.core import ToolCall
from envsuite.vector import EnvFactory, VectorEvent

ROUGH = EnvFactory("vector_worlds:Rough-v0")
CRAFT = EnvFactory("TextCraft-v0")


def do(command):
    return (ToolCall("do", {"command": command}),)


def answers(vector, count, timeout=240.0) -> dict[int, VectorEvent]:
    events = {}
    end = time.monotonic() + timeout
    while len(events) < count:
        assert time.monotonic() < end, f"waiting for {vector.waiting_for()}"
        events.update((event.slot, event) for event in vector.poll(1.0))
    return events


def one(vector, slot, call) -> VectorEvent:
    call()
    return answers(vector, 1)[slot]


def reset_all(vector, env=0, **options):
    for slot in range(vector.slots):
        vector.reset(slot, env, **options)
    return answers(vector, vector.slots)


def step_all(vector, action):
    for slot in range(vector.slots):
        vector.step(slot, action)
    return answers(vector, vector.slots)


def pids(vector):
    return [worker.child.process.pid for worker in vector._workers if worker is not None]


def gone(pid, timeout=30.0):
    end = time.monotonic() + timeout
    while not ended(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def descriptors() -> Counter[str]:
    """Sockets, pipes and selectors of this process; numbers in their names tell those of two moments apart."""
    gc.collect()
    names: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            names[os.readlink(f"/proc/self/fd/{number}")] += 1
    return Counter({name: n for name, n in names.items() if name.startswith(("socket:", "pipe:", "anon_inode:"))})
