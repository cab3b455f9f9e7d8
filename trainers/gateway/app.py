"""The gateway's address: HTTP for agents, and for the operator who makes sessions and gives rewards.

An answer is delivered when the client has all of it. A client that closes a connection with something unread resets
it, and one that has read everything does not; the system tells one from the other. Of a connection that stays open it
is known when the next request comes on it, or another one quotes the answer; at the end of the session, or when an
environment answers, what the system of the client has accepted counts as read. Until then, the same request gets the
same answer. A client that has the connection closed (``Connection: close``) is believed to read what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import orjson

from envsuite.core import http
from envsuite.core.addresses import is_private, open_socket
from envsuite.core.errors import UsageError, require_extra
from envsuite.remote.guard import RequestGuard
from envsuite.remote.tokens import check_token
from trainers.gateway import anthropic_api, openai_api, responses_api
from trainers.gateway.gateway import Gateway
from trainers.gateway.listening import listener
from trainers.gateway.messages import ParsedRequest, Refused
from trainers.gateway.reading import Fields, read_json, size_of
from trainers.gateway.session import AnswerChoice, AnsweredRequest, Playable, Session

with require_extra("the gateway needs packages of its own", "gateway"):
    import httpx2
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from envsuite.remote.listening import Connection, HttpServer, in_thread

MOST_BYTES = 16 << 20
"""Most bytes of a request."""
_CHAT, _RESPONSES, _MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_APIS = {_CHAT: openai_api, _RESPONSES: responses_api, _MESSAGES: anthropic_api}
_PASSED = ("content-type", "accept", "anthropic-version", "anthropic-beta")
_PROXY_SECONDS = 600.0
_SMALL = 1 << 14  # bytes of a request whose size is not looked at
_THREADS = 4  # in which requests of one session are read and rendered
T = TypeVar("T")


class _Connection(Connection):
    """One connection of a client, which knows whether it has got its answers."""

    gateway: Gateway
    waiting: list[tuple[Session, AnsweredRequest]]
    """Requests whose answers were sent, and are not yet known to have arrived."""
    over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting = []
        self.app_state = {**self.app_state, "connection": self}  # the scope's "state"
        transport.set_write_buffer_limits(0)  # what is sent has left this process when the next part is
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def note_sent(self, session: Session, record: AnsweredRequest) -> None:
        """Records that an answer is handed to the system, which takes none where the client is known to have left."""
        with self.gateway.lock:
            if not self.over and not self.transport.is_closing():
                self.waiting.append((session, record))
                record.sent.append(self.has_arrived)

    def has_arrived(self) -> bool:
        """Whether the client has what was sent, or is still there to read it; of any thread."""
        with self.gateway.lock:
            return not self.over and self._is_whole()

    def present(self) -> bool:
        """Whether the client is still there; of any thread."""
        return not self.over

    def _is_whole(self) -> bool:
        number = self.transport.get_extra_info("socket").fileno()
        if number < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLRDHUP)
        events = dict(poll.poll(0)).get(number, 0)
        (backlog,) = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)))
        closed_early = bool(events & select.POLLRDHUP and backlog)
        return not (events & (select.POLLERR | select.POLLHUP) or closed_early)

    def settle(self, whole: bool) -> None:
        """Records whether the answers that were sent have arrived."""
        with self.gateway.lock:
            for session, record in self.waiting:
                record.sent.remove(self.has_arrived)
                if whole:
                    session.deliver(record)
            self.waiting = []

    def connection_lost(self, exc: Exception | None) -> None:
        with self.gateway.lock:
            self.settle(exc is None and self._is_whole())
            self.over = True
        super().connection_lost(exc)


class _HTTPAnswer(Response):
    """An answer of the model."""

    def __init__(self, content: bytes, kind: str, session: Session, record: AnsweredRequest) -> None:
        super().__init__(content, media_type=kind)
        self.session, self.asked = session, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body[:-1], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # waits until the system has that
        _connection(scope).note_sent(self.session, self.asked)  # before any client can have the last byte
        await send({"type": "http.response.body", "body": self.body[-1:]})


def _connection(scope: Scope) -> _Connection:
    connection: _Connection = scope["state"]["connection"]
    return connection


class _App:
    """The routes."""

    def __init__(self, gateway: Gateway, most_bytes: int, guard: RequestGuard) -> None:
        self.gateway, self.most_bytes, self.guard = gateway, most_bytes, guard
        self.threads: WeakKeyDictionary[Session, CapacityLimiter] = WeakKeyDictionary()
        self.turns: WeakKeyDictionary[Playable, CapacityLimiter] = WeakKeyDictionary()
        routes = [
            *(Route(path, self.ask, methods=["POST"]) for path in _APIS),
            Route(f"{_MESSAGES}/count_tokens", self.count, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.models, methods=["GET"]),
            Route("/env/mcp", self.play, methods=["GET", "POST", "DELETE"]),
            Route("/sessions", self.next, methods=["POST"]),
            Route("/sessions/{number:int}", self.operate, methods=["GET"]),
            Route("/sessions/{number:int}/reward", self.operate, methods=["POST"]),
            Route("/sessions/{number:int}/end", self.operate, methods=["POST"]),
        ]
        kinds = (Refused, HTTPException, ClientDisconnect, Exception)
        self.app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _error_response))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; what was sent before it on the same connection has been read."""
        _connection(scope).settle(True)
        request = Request(scope)
        if (refusal := self.guard.refusal(request.method, request.url.path, request.headers.get)) is not None:
            await _error_response(request, Refused(refusal.status, "forbidden", refusal.detail))(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def ask(self, request: Request) -> Response:
        """Has the model answer."""
        api, key, present = _APIS[request.url.path], _key(request), _connection(request.scope).present
        session = self.gateway.session(key)
        body = await self.body(request)

        def take() -> tuple[ParsedRequest, AnsweredRequest] | str:
            fields = read_json(body)
            if (name := str(fields.value.get("model"))) in self.gateway.proxied:
                return name
            ask = self.read(api.read, fields, request.headers, len(body))
            return ask, self.gateway.ask(key, ask, present)[1]

        if isinstance(outcome := await self.in_thread(session, take), str):
            return await self.forward(request, key, outcome, body)
        ask, record = outcome
        choices = await _await_answer(record.done, request)
        if ask.shown["stream"]:
            stream = b"".join(api.chunks(session, record, choices, ask.shown))
            return _HTTPAnswer(stream, "text/event-stream", session, record)
        whole = orjson.dumps(api.answer(session, record, choices, ask.shown))
        return _HTTPAnswer(whole, "application/json", session, record)

    async def in_thread(self, session: Session, function: Callable[[], T]) -> T:
        """Runs a function in a thread; the threads of one session leave those of others free."""
        limiter = self.threads.setdefault(session, CapacityLimiter(_THREADS))
        return await to_thread.run_sync(function, limiter=limiter)

    async def play(self, request: Request) -> ASGIApp:
        """Plays the environment of a session, by MCP, whose package the first agent that asks for one imports."""
        if (environment := self.gateway.environment(_key(request))) is None:
            raise Refused(404, "no_environment", "this episode has no environment to play; only ask the model")
        from trainers.gateway.environment import AgentEnvironment

        return AgentEnvironment(environment, self.turns.setdefault(environment, CapacityLimiter(1)))

    async def forward(self, request: Request, key: str, name: str, body: bytes) -> Response:
        """Has another endpoint answer; nothing of it is recorded."""
        self.gateway.forward(key)
        url = httpx2.URL(self.gateway.proxied[name])
        secret = {"authorization": f"Bearer {url.username}", "x-api-key": url.username} if url.username else {}
        headers = {header: request.headers[header] for header in _PASSED if header in request.headers} | secret
        place = f"{url.copy_with(username='', password='')}{request.url.path.removeprefix('/v1')}"
        try:
            by_proxy = not is_private(url.host)
            async with httpx2.AsyncClient(timeout=_PROXY_SECONDS, trust_env=by_proxy, **http.answer_limits()) as client:
                reply = await client.post(place, content=body, headers=headers)
        except httpx2.HTTPError as error:
            raise Refused(502, "proxy_failed", f"the endpoint of {name!r}: {type(error).__name__}", 1.0) from error
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))

    async def count(self, request: Request) -> Response:
        """Counts the tokens of a prompt."""
        key = _key(request)
        session, body = self.gateway.session(key), await self.body(request)

        def count_tokens() -> int:
            reading = partial(anthropic_api.read, counting=True)
            return self.gateway.count(key, self.read(reading, read_json(body), request.headers, len(body)))

        return _json({"input_tokens": await self.in_thread(session, count_tokens)})

    async def models(self, request: Request) -> Response:
        """Lists the models, or describes the one that the path names."""
        if not self.gateway.is_operator(key := _key(request)):
            self.gateway.session(key)
        names = (*self.gateway.names, *self.gateway.proxied)
        about = {"object": "model", "created": 0, "owned_by": "envsuite", "type": "model"}
        rows = [{"id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z", **about} for name in names]
        if (name := request.path_params.get("name")) is not None:
            self.gateway.check_model(name, *self.gateway.proxied)
            return _json(rows[names.index(name)])
        return _json({"object": "list", "data": rows, "has_more": False, "first_id": names[0], "last_id": names[-1]})

    def _check_operator(self, request: Request) -> None:
        if not self.gateway.is_operator(key := _key(request)):
            self.gateway.session(key)
            raise Refused(403, "operator_only", "this is for the operator's key; an agent's does not open it")

    async def next(self, request: Request) -> Response:
        """Gives a service the session that has been offered longest."""
        self._check_operator(request)
        if (session := self.gateway.next()) is None:
            return Response(status_code=204, headers={"Retry-After": "1"})
        return _json({
            "id": session.number, "key": session.key, "base_url": f"{request.base_url}v1",
            "model": self.gateway.names[0], "task": session.about.get("task", ""), "task_id": session.plan.task_id,
        })  # fmt: skip

    async def operate(self, request: Request) -> Response:
        """Gives a session its reward, or ends it, and says how far it is."""
        self._check_operator(request)
        number = request.path_params["number"]
        if request.url.path.endswith("/reward"):
            self.gateway.reward(number, float(read_json(await self.body(request)).need("reward", float)))
        elif request.url.path.endswith("/end"):
            self.gateway.finish(number)
        session = self.gateway.session_of(number)
        prompts = [record.prompt for record in list(session.asked) if len(record.prompt.ids)]
        sequences = sum(prompt.parent is None for prompt in prompts)
        return _json({
            "id": number, "requests": len(session.asked), "forwarded": session.forwarded, "tokens": session.tokens,
            "sequences": sequences, "reward": session.reward, "ended": session.ended,
        })  # fmt: skip

    def read(
        self, reading: Callable[[Fields], ParsedRequest], fields: Fields, headers: Headers, size: int
    ) -> ParsedRequest:
        """Reads a request; its headers say whether the client repeats it.

        Raises:
            Refused: It is wrong, or the context cannot hold it: then no messages are made of it.
        """
        if size > _SMALL:
            self.gateway.check_size(*size_of(fields))
        retries = headers.get("x-stainless-retry-count", "0").strip("0")
        return replace(reading(fields), repeats=bool(retries), name=headers.get("idempotency-key", ""))

    async def body(self, request: Request) -> bytes:
        """The body of a request.

        Raises:
            Refused: It is too large; the rest is not kept.
        """
        fits = (1 << 20) + 6 * self.gateway.context * self.gateway.writer.longest  # however it is written
        content, most = bytearray(), min(self.most_bytes, fits)
        size = int(request.headers.get("content-length", 0))  # checked by the parser
        if size <= most:
            async for part in request.stream():
                content += part
                if (size := len(content)) > most:
                    break
        if size > most:
            raise Refused(413, "request_too_large", f"the body has more than {most:,} bytes; send less")
        return bytes(content)


async def _await_answer(future: Future[list[AnswerChoice]], request: Request) -> list[AnswerChoice]:
    """Waits for an answer.

    Raises:
        ClientDisconnect: The client has gone before it was there; it may come again for it.
        Refused: There is none.
    """
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[list[AnswerChoice]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ready.set)

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    future.add_done_callback(tell)
    disconnect = asyncio.create_task(leave())
    first = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((disconnect, first), return_when=asyncio.FIRST_COMPLETED)
        if disconnect.done():
            raise ClientDisconnect
        return future.result()
    finally:
        disconnect.cancel()
        first.cancel()


def _key(request: Request) -> str:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _error_response(request: Request, error: Exception) -> Response:
    """The answer to a request that failed, in the form of its interface."""
    if isinstance(error, HTTPException):
        text = f"{request.method} {request.url.path[:200]}: {error.detail}; agents ask at {', '.join(_APIS)}"
        error = Refused(error.status_code, "unknown_url", text)
    elif not isinstance(error, Refused):
        error = Refused(500, "internal_error", "the gateway failed; its log says how")
    anthropic = request.url.path.startswith(_MESSAGES) or "anthropic-version" in request.headers
    api = anthropic_api if anthropic else openai_api
    later = {} if error.retry_after is None else {"Retry-After": f"{math.ceil(error.retry_after)}"}
    return _json(api.problem(error), error.status, later)


def make_server(
    gateway: Gateway, host: str = "127.0.0.1", port: int = 0, token: str | None = None, most_bytes: int = MOST_BYTES
) -> HttpServer:
    """Makes the server of a gateway; its address is without ``/v1``.

    Args:
        gateway: Takes the requests.
        host: Where it listens.
        port: 0 for any that is free.
        token: The operator's key, :attr:`~trainers.gateway.gateway.Gateway.operator`; by default a random one.
        most_bytes: Most bytes of a request.

    Raises:
        UsageError: The address cannot be listened at, or other machines reach it and there is no token.
    """
    check_token(token)
    if token is None and not is_private(host):
        raise UsageError(f"the gateway is to listen at {host}, which other machines reach: give the operator a token")
    gateway.operator = token or gateway.operator
    server = HttpServer(
        _App(gateway, most_bytes, RequestGuard(is_private(host), who="gateway")),  # type: ignore[arg-type]
        open_socket(host, port),
        connection=type("_Bound", (_Connection,), {"gateway": gateway}),
    )
    gateway.listen = listener(server)
    http.bypass_proxy_here()  # for agents in this process
    return server


@contextlib.contextmanager
def serve(gateway: Gateway, host: str = "127.0.0.1", **settings: Any) -> Iterator[str]:
    """Serves a gateway for the duration of the block; requests under way have a second to end."""
    with in_thread(make_server(gateway, host, **settings)) as server:
        yield server.url
