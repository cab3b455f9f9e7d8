"""What a call over HTTP takes on both sides: ``benchmarks.fleet`` uses it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.serving import ACTION, COMMANDS, OURS
from envsuite.remote import RemoteEnv
from envsuite.vector import EnvFactory, make_vector
from trainers.planning.fleet.constants import ServingConstants

SLOTS, ROUNDS, SINGLE = 256, 40, 2000


def serving() -> ServingConstants:
    """CPU seconds of server and client for each step of a vector, and the time of a round trip of one client.

    The environment is TextCraft's shortest step, of some microseconds, which is not taken off.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", *COMMANDS[OURS], str(port)], stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(port)
        env = RemoteEnv(url, "TextCraft-v0")
        env.reset(seed=0)
        took, busy = [], _cpu(server.pid) + time.process_time()
        for _ in range(SINGLE):
            began = time.perf_counter()
            env.step(ACTION)
            took.append(time.perf_counter() - began)
        busy = (_cpu(server.pid) + time.process_time() - busy) / SINGLE
        env.close()
        with make_vector([EnvFactory("TextCraft-v0", {"url": url, "max_episode_steps": -1})], SLOTS) as vector:
            for slot in range(SLOTS):
                vector.reset(slot, 0, seed=slot)
            taken, ours, theirs = -SLOTS, 0.0, 0.0
            while vector.pending:
                for event in vector.poll():
                    taken += 1
                    if taken == 0:
                        ours, theirs = time.process_time(), _cpu(server.pid)
                    if taken <= (ROUNDS - 1) * SLOTS:
                        vector.step(event.slot, ACTION)
            ours, theirs = time.process_time() - ours, _cpu(server.pid) - theirs
    finally:
        server.kill()
        server.wait()
    trip = max(0.0, sorted(took)[len(took) // 2] - busy)
    return ServingConstants(theirs / taken, ours / taken, trip)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(port: int) -> None:
    """Waits until something listens there."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
