"""Measures what a call over HTTP takes on both sides: ``research.fleet.measure`` uses it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.serving import ACTION, served
from envsuite.remote import RemoteEnv
from envsuite.vector import EnvFactory, make_vector
from research.fleet.constants import ServingConstants

SLOTS, ROUNDS, SINGLE = 256, 40, 2000


def serving() -> ServingConstants:
    """CPU seconds of server and client for each step of a vector, and the time of a round trip of one client.

    The environment is TextCraft's shortest step, of some microseconds, which is not taken off.
    """
    with served() as (url, server):
        env = RemoteEnv(url, "TextCraft-v0")
        env.reset(seed=0)
        took, busy = [], _cpu(server) + time.process_time()
        for _ in range(SINGLE):
            began = time.perf_counter()
            env.step(ACTION)
            took.append(time.perf_counter() - began)
        busy = (_cpu(server) + time.process_time() - busy) / SINGLE
        env.close()
        with make_vector([EnvFactory("TextCraft-v0", {"url": url, "max_episode_steps": -1})], SLOTS) as vector:
            for slot in range(SLOTS):
                vector.reset(slot, 0, seed=slot)
            taken, ours, theirs = -SLOTS, 0.0, 0.0
            while vector.pending:
                for event in vector.poll():
                    taken += 1
                    if taken == 0:
                        ours, theirs = time.process_time(), _cpu(server)
                    if taken <= (ROUNDS - 1) * SLOTS:
                        vector.step(event.slot, ACTION)
            ours, theirs = time.process_time() - ours, _cpu(server) - theirs
    trip = max(0.0, sorted(took)[len(took) // 2] - busy)
    return ServingConstants(theirs / taken, ours / taken, trip)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
