"""The main function of a worker process: reads calls and writes answers, in order."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Iterable, Iterator

from envsuite.core.boundary import reason
from envsuite.core.processes import frame, receive
from envsuite.vector.base import EnvFactory, VectorEvent, VectorSnapshot, failure
from envsuite.vector.runner import CallRunner

READY = "ready"
FLUSH_SECONDS = 0.002
"""Seconds for which the answers of a batch are held back, to be sent together."""


def serve(channel: socket.socket) -> None:
    """Answers calls until the other end is closed."""
    factories: list[EnvFactory]
    snapshots: bool
    ((factories, snapshots),) = receive(channel)
    runner = CallRunner(factories, snapshots)
    channel.sendall(frame([pickle.dumps(READY)]))
    while True:
        try:
            calls = receive(channel)
        except EOFError:
            runner.close()
            raise
        for answers in answer_calls(runner, calls):
            channel.sendall(frame(answers))


def answer_calls(runner: CallRunner, calls: Iterable[tuple[object, ...]]) -> Iterator[list[bytes]]:
    """Yields the answers to calls, those of :data:`FLUSH_SECONDS` together."""
    answers: list[bytes] = []
    last_flush = time.monotonic()
    for call in calls:
        answers.append(_answer(runner, call))
        if time.monotonic() - last_flush > FLUSH_SECONDS:
            yield answers
            answers = []
            last_flush = time.monotonic()
    if answers:
        yield answers


def _answer(runner: CallRunner, call: tuple[object, ...]) -> bytes:
    answer: object
    match call:
        case ("reset", int(slot), int(env), str() | None as task_id, int() | None as seed):
            answer = runner.reset(slot, env, task_id, seed)
        case ("restore", int(slot), int(env), VectorSnapshot() as snapshot):
            answer = runner.restore(slot, env, snapshot)
        case ("step", int(slot), action):
            answer = runner.step(slot, action)  # type: ignore[arg-type]
        case ("describe", int(env)):
            return pickle.dumps(runner.describe(env))
        case _:
            raise AssertionError(f"unknown call {call!r}")
    try:
        return pickle.dumps(answer)
    except Exception as error:  # a world may put anything into its info
        assert isinstance(answer, VectorEvent)
        return pickle.dumps(failure(answer.slot, f"the answer cannot be sent: {reason(error)}"))
