"""A gateway at an address, behind it an engine whose tokens can be told apart, and clients that close when told to."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import orjson

from envsuite.playing.engine import Completion, Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import as_tokens
from trainers.gateway.app import serve
from trainers.gateway.gateway import Gateway
from trainers.gateway.sequences import Writer
from trainers.gateway.session import Session
from trainers.rollout.engine import refusal
from trainers.rollout.scripted import ScriptedEngine

CHAT = "/v1/chat/completions"
_NUMBERS = itertools.count(1)


class Speaker(ScriptedEngine):
    """Says what ``says`` returns for a prompt's text; no two tokens have the same log-probability."""

    def __init__(self, tokenizer: Any, says: Callable[[str], str] = lambda prompt: "Well.") -> None:
        super().__init__(lambda request: self.ids(says(str(tokenizer.decode(request.prompt_ids)))))
        self.tokenizer = tokenizer
        self.going = threading.Event()
        """Answers come while it is set."""
        self.going.set()
        self.asked: list[Request] = []
        self.room = 100_000
        """Tokens of a prompt and an answer."""

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return [*found, self.tokenizer.eos_token_id]

    def submit(self, requests: Sequence[Request]) -> None:
        self.asked += requests
        super().submit(requests)

    def poll(self, timeout: float | None = None) -> list[Completion]:
        return super().poll(timeout) if self.going.wait(timeout) else []

    def _complete(self, request: Request) -> Completion:
        if (why := refusal(request.prompt_ids, self.room, 1 << 20)) is not None:
            none = np.array([], np.float32)
            return Completion(request.request_id, as_tokens([]), none, why[0], none.astype(np.int64), why[1])
        done = super()._complete(request)
        logprobs = -np.array([next(_NUMBERS) for _ in range(done.count)], np.float32)
        count = len(request.prompt_ids) + len(done.token_ids) - 1
        return replace(done, logprobs=logprobs, experts=(np.zeros((count, 1, 1), np.int16),))


class Place:
    """A gateway, its address and its engine."""

    def __init__(self, tokenizer: Any, says: Callable[[str], str] = lambda prompt: "Well.", **settings: Any) -> None:
        self.engine = Speaker(tokenizer, says)
        self.gateway = Gateway(Writer(tokenizer), Sampling(max_tokens=64), 0, **settings)
        self.url = ""
        self._episodes = itertools.count()

    def open(self, *arguments: Any) -> Session:
        return self.gateway.open(EpisodePlan(next(self._episodes), 0, 0, "task"), *arguments)

    @contextlib.contextmanager
    def open_at_an_address(self, **settings: Any) -> Iterator[Place]:
        going = threading.Event()

        def pump() -> None:
            while not going.is_set():
                self.gateway.pump(self.engine, 0.01)

        thread = threading.Thread(target=pump)
        with serve(self.gateway, **settings) as self.url:
            thread.start()
            try:
                yield self
            finally:
                going.set()
                thread.join()


def body(text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": text}], **more}


TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the <b>é</b>"}}\n</tool_call>'


def ask(place: Place, path: str, key: str, sent: Any = None) -> httpx2.Response:
    """One request; a POST where something is sent."""
    data = sent if isinstance(sent, bytes) else orjson.dumps(sent)
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    if sent is None:
        return httpx2.get(f"{place.url}{path}", headers=headers, timeout=30)
    return httpx2.post(f"{place.url}{path}", content=data, headers=headers, timeout=30)


def raw(path: str, key: str, sent: Any) -> bytes:
    """A request as bytes."""
    data = sent if isinstance(sent, bytes) else orjson.dumps(sent)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Wire:
    """A connection."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=30)
        self.got = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, count: int | None = None, but: int = 0) -> bytes:
        """So many bytes; by default an answer, but for its last ``but`` bytes."""
        while (most := self.missing() - but if count is None else count - len(self.got)) > 0:
            part = self.socket.recv(most)
            assert part, self.got
            self.got += part
        return self.got

    def missing(self) -> int:
        """How many bytes of the answer are left; one where not even that is known."""
        head, ended, rest = self.got.partition(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":1")
        return int(length.split(b":")[1]) - len(rest) if ended else 1

    @property
    def json(self) -> Any:
        return orjson.loads(self.got.partition(b"\r\n\r\n")[2])

    def close(self) -> None:
        self.socket.close()


def recorded(session: Session) -> list[list[float]]:
    """Log-probabilities of the steps of a session's record."""
    return [np.asarray(step.response_logprobs).tolist() for step in session.episode().steps]
