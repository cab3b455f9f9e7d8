"""Drives vectors of environments in tests: calls, and the events that answer them."""

import time

import psutil

from envsuite.core import ToolCall
from envsuite.vector import EnvFactory, Event

ROUGH = EnvFactory("vector_worlds:Rough-v0")
CRAFT = EnvFactory("TextCraft-v0")


def do(command):
    return (ToolCall("do", {"command": command}),)


def answers(vector, count, timeout=60.0) -> dict[int, Event]:
    events = {}
    end = time.monotonic() + timeout
    while len(events) < count:
        assert time.monotonic() < end, f"waiting for {vector.waiting_for()}"
        events.update((event.slot, event) for event in vector.poll(1.0))
    return events


def one(vector, slot, call) -> Event:
    call()
    return answers(vector, 1)[slot]


def reset_all(vector, env=0, **options):
    for slot in range(vector.slots):
        vector.reset(slot, env, **options)
    return answers(vector, vector.slots)


def pids(vector):
    return [worker.child.process.pid for worker in vector._workers if worker is not None]


def gone(pid, timeout=5.0):
    end = time.monotonic() + timeout
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
