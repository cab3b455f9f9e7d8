"""The main function of a server's worker process: a host of sessions behind a socket.

A message is JSON, ``{"id", "calls"}``. Its answers are in the order of the calls, in one or several parts: a line of
JSON, ``{"id", "answers": [[status, bytes], …]}``, followed by the bodies.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from envsuite.core.processes import frame, receive_body
from envsuite.serving.host import Answer, SessionHost

THREADS, MAKERS = 8, 2
"""Number of messages executed at a time, and of those that make worlds: one that waits does not block the others."""
FLUSH_SECONDS = 0.01
"""Seconds for which the answers of a message are held back, to be sent together."""


def serve(channel: socket.socket) -> None:
    """Answers messages until the other end is closed."""
    host = SessionHost()
    sending = threading.Lock()

    def send(parts: Sequence[bytes]) -> None:
        with sending:
            channel.sendall(frame(list(parts)))

    def answer(message: dict[str, Any], makes: bool) -> None:
        if makes:
            send(pack_answers(message["id"], []))  # its time begins
        answers: list[Answer] = []
        last_flush = time.monotonic()
        for call in message["calls"]:
            answers.append(host.execute(call))
            if time.monotonic() - last_flush > FLUSH_SECONDS:
                send(pack_answers(message["id"], answers))
                answers, last_flush = [], time.monotonic()
        if answers:
            send(pack_answers(message["id"], answers))

    for env_id in orjson.loads(receive_body(channel)):  # loads the shared data; sessions report missing ones
        host.execute({"op": "describe", "environment": env_id})
    send(pack_answers(0, []))
    with ThreadPoolExecutor(THREADS) as players, ThreadPoolExecutor(MAKERS) as makers:
        while True:
            message = orjson.loads(receive_body(channel))
            makes = makes_worlds(message["calls"])
            (makers if makes else players).submit(answer, message, makes)


def makes_worlds(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a call of a message makes a world, which may take long and waits for its turn."""
    return any(call["op"] in ("create", "describe") for call in calls)


def pack_answers(number: int, answers: Sequence[Answer]) -> list[bytes]:
    """Encodes the answers to message ``number``."""
    head = orjson.dumps({"id": number, "answers": [[status, len(body)] for status, body in answers]})
    return [head, b"\n", *(body for _, body in answers)]


def unpack_answers(body: bytes) -> tuple[int, list[Answer]]:
    """Decodes the number of the message and the answers from :func:`pack_answers`."""
    end = body.index(b"\n")
    head = orjson.loads(body[:end])
    answers, start = [], end + 1
    for status, size in head["answers"]:
        answers.append((status, body[start : start + size]))
        start += size
    return head["id"], answers
