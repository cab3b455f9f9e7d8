"""What runs in a worker process of a server: a host of sessions, asked over a socket.

A message is JSON, ``{"id", "calls"}``. Its answers come in the order of the calls, in one part or several: a line of
JSON, ``{"id", "answers": [[status, bytes], …]}``, and after it the bodies.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from envsuite.processes import frame, receive_body
from envsuite.serving.host import Answer, Host

THREADS = 8
"""Messages that are executed at a time: a world that waits for something does not hold up the others."""
FLUSH_SECONDS = 0.01
"""Answers of a message are held back for this long, to be sent together."""


def serve(channel: socket.socket) -> None:
    """Answer messages until the other end is closed."""
    host = Host()
    sending = threading.Lock()

    def send(parts: Sequence[bytes]) -> None:
        with sending:
            channel.sendall(frame(list(parts)))

    def answer(message: dict[str, Any]) -> None:
        answers: list[Answer] = []
        flushed = time.monotonic()
        for call in message["calls"]:
            answers.append(host.execute(call))
            if time.monotonic() - flushed > FLUSH_SECONDS:
                send(packed(message["id"], answers))
                answers, flushed = [], time.monotonic()
        if answers:
            send(packed(message["id"], answers))

    for env_id in orjson.loads(receive_body(channel)):  # loads what its sessions share; what is missing, they will tell
        host.execute({"op": "describe", "environment": env_id})
    send(packed(0, []))
    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            pool.submit(answer, orjson.loads(receive_body(channel)))


def packed(number: int, answers: Sequence[Answer]) -> list[bytes]:
    """Answers to message ``number``, as they are sent."""
    head = orjson.dumps({"id": number, "answers": [[status, len(body)] for status, body in answers]})
    return [head, b"\n", *(body for _, body in answers)]


def unpacked(body: bytes) -> tuple[int, list[Answer]]:
    """The number of the message and the answers that :func:`packed` has sent."""
    end = body.index(b"\n")
    head = orjson.loads(body[:end])
    answers, start = [], end + 1
    for status, size in head["answers"]:
        answers.append((status, body[start : start + size]))
        start += size
    return head["id"], answers
