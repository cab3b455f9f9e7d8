"""What runs in a worker process: calls in, answers out, in order."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time

from envsuite.vector import frames
from envsuite.vector.base import EnvFactory, Event, failed
from envsuite.vector.runner import Runner, reason

READY = "ready"
FLUSH_SECONDS = 0.002
"""Answers of a batch are held back for this long, to be sent together."""


def main(fd: int, parent: int) -> None:
    """Serve calls from the socket ``fd`` until it is closed or process ``parent`` is gone."""
    os.dup2(2, 1)  # what a world prints must not land in the program's output
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with socket.socket(fileno=fd) as channel:
        try:
            serve(channel)
        except (EOFError, OSError):  # the vector is closed, or its process has ended
            return


def serve(channel: socket.socket) -> None:
    """Answer calls until the other end is closed."""
    factories: list[EnvFactory]
    (factories,) = frames.receive(channel)
    runner = Runner(factories)
    channel.sendall(frames.frame([pickle.dumps(READY)]))
    while True:
        try:
            calls = frames.receive(channel)
        except EOFError:
            runner.close()
            raise
        answers: list[bytes] = []
        flushed = time.monotonic()
        for call in calls:
            answers.append(_answer(runner, call))
            if time.monotonic() - flushed > FLUSH_SECONDS:
                channel.sendall(frames.frame(answers))
                answers = []
                flushed = time.monotonic()
        if answers:
            channel.sendall(frames.frame(answers))


def _answer(runner: Runner, call: tuple[object, ...]) -> bytes:
    answer: object
    match call:
        case ("reset", int(slot), int(env), str() | None as task_id, int() | None as seed):
            answer = runner.reset(slot, env, task_id, seed)
        case ("step", int(slot), action):
            answer = runner.step(slot, action)  # type: ignore[arg-type]
        case ("describe", int(env)):
            return pickle.dumps(runner.describe(env))
        case _:
            raise AssertionError(f"unknown call {call!r}")
    try:
        return pickle.dumps(answer)
    except Exception as error:  # a world may put anything into its info
        assert isinstance(answer, Event)
        return pickle.dumps(failed(answer.slot, f"the answer cannot be sent: {reason(error)}"))


def _watch(parent: int) -> None:
    """End this process, and whatever a world has started, when the program is gone, even during a call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
