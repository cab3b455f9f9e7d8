"""HTTP as anybody speaks it, without envsuite's client."""

from __future__ import annotations

import http.client
import socket
import urllib.parse
from dataclasses import dataclass
from typing import Any

import orjson

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    raw: bytes

    @property
    def body(self) -> Any:
        return orjson.loads(self.raw)


def ask(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    """One request on a connection of its own; ``body`` may be bytes."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30)
    sent = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
    try:
        connection.request(method, path, sent, (JSON if sent is not None else {}) if headers is None else headers)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def is_problem(reply: Reply, status: int, kind: str, field: str | None = None) -> bool:
    """Whether the reply is a problem document as RFC 9457 has it, of this kind."""
    assert reply.headers["Content-Type"] == "application/problem+json", reply
    body = reply.body
    assert {"type", "title", "status", "detail", "error"} <= body.keys() and body["status"] == reply.status
    told = (reply.status, body["type"], body.get("field"))
    assert told == (status, f"urn:envsuite:problem:{kind}", field), reply.raw
    return True


def new(url: str, **body: Any) -> str:
    """A new session's path."""
    reply = ask(url, "POST", "/v1/sessions", {"environment": "TextCraft-v0", **body})
    assert reply.status == 200, reply
    return f"/v1/sessions/{reply.body['session']}"


def command(text: str) -> list[dict[str, Any]]:
    return [{"name": "env_step", "arguments": {"command": text}}]


def connect(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def everything(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received
