"""Runs many episodes on servers; calls that are due at the same time share one request."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envsuite.core.boundary import number, reason
from envsuite.core.env import StepInfo
from envsuite.core.errors import EnvsuiteError, UsageError
from envsuite.core.tools import Action
from envsuite.remote import transport
from envsuite.remote.places import Places
from envsuite.remote.protocol import EPISODE, from_json
from envsuite.remote.session import CLOSE_SECONDS, EnvDescription, RemoteSession, plain, step_of
from envsuite.remote.transport import RequestRefused, ServerUnreachable, server
from envsuite.vector.base import EnvFactory, Vector, VectorEvent, VectorSnapshot, Wait, failure
from envsuite.vector.members import Members

BATCH = 256
"""Maximum number of calls in one request."""
REQUESTS, SLOW_REQUESTS = 4, 32
"""Maximum number of concurrent requests to one server; the second value is for environments whose steps take longer
than microseconds, which are asked one call a request."""
QUICK_PATIENCE = 10.0
"""Seconds that :meth:`RemoteVector.poll` waits for answers to the calls it has just sent to environments whose steps
take microseconds, where only an overloaded or lost server needs so long."""


@dataclass
class _Seat:
    """The state of a slot for one of the environments."""

    session: RemoteSession
    members: Members
    task: str = ""
    episode: dict[str, Any] | None = None


@dataclass
class _RemoteCall:
    slot: int
    env: int
    seat: _Seat
    op: str
    body: dict[str, Any]
    since: float

    def __str__(self) -> str:
        session = self.seat.session
        return f"{self.op} of slot {self.slot} ({session.env_id} at {session.url or 'no server yet'})"


@dataclass
class _ServerLine:
    """The requests to one server: each has its own threads, so that a silent one holds up nobody else's calls."""

    work: queue.SimpleQueue[list[_RemoteCall] | None] = field(default_factory=queue.SimpleQueue)
    threads: int = 0


class RemoteVector(Vector):
    """Plays episodes on one or several servers, with one session per slot.

    Sessions are spread evenly over the servers that answer; when a server stops answering, its episodes are replayed on
    the others. Servers may join and leave (:class:`~envsuite.remote.places.Places`). :meth:`poll` sends the calls:
    those of environments whose steps take microseconds share a request, any other goes alone, since the answers of a
    request come together, when its slowest call is done. Episodes are the same as in a
    :class:`~envsuite.vector.local.LocalVector`.

    Args:
        factories: The environments, each with the argument ``url``: one server, several, or where they are named.
        slots: Number of concurrent episodes.
        deadline: Seconds; a call without an answer after twice this time has failed, whatever its servers do. Their own
            deadlines end calls that hang.
        snapshots: Take a snapshot with each answer: the actions so far, which :meth:`restore` plays again.

    Raises:
        UsageError: An environment cannot be made, or an argument is missing or out of range.
        DataError: Servers have different tasks.
    """

    def __init__(
        self, factories: Sequence[EnvFactory], slots: int, deadline: float = 60.0, snapshots: bool = False
    ) -> None:
        super().__init__(factories, slots, deadline, snapshots)
        self._parts = [_part(factory) for factory in self.factories]
        self._members = [Members(part.places, part.env_id, part.arguments) for part in self._parts]
        self._descriptions: list[EnvDescription] = [members.described for members in self._members]
        self._seats: dict[tuple[int, int], _Seat] = {}
        self._current: dict[int, int] = {}
        self._unsent: list[_RemoteCall] = []
        self._due: dict[int, _RemoteCall] = {}
        self._lines: dict[str, _ServerLine] = {}
        self._events: queue.SimpleQueue[tuple[_RemoteCall, VectorEvent]] = queue.SimpleQueue()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._seats, self._lines, os.getpid())

    def poll(self, timeout: float | None = None) -> list[VectorEvent]:
        """Sends the calls that are due; returns the events that have arrived, in the order of the calls.

        It waits at most ``timeout`` seconds for a first answer. In addition, it waits up to :data:`QUICK_PATIENCE` for
        the answers of environments whose steps take microseconds: so that the same events come together as in a
        :class:`~envsuite.vector.local.LocalVector`, and computations on them are bit-identical.
        """
        self._send()
        end = None if timeout is None else time.monotonic() + timeout
        events: dict[int, VectorEvent] = {}
        while len(events) < len(self._due):
            now = time.monotonic()
            events |= {slot: event for slot, event in self._overdue(now).items() if slot not in events}
            if not (calls := [call for slot, call in self._due.items() if slot not in events]):
                break
            together = max((call.since + QUICK_PATIENCE - now for call in calls if self._quick[call.env]), default=0.0)
            if together > 0 or events:
                wait = together
            else:
                wait = math.inf if end is None else end - now
            wait = min(wait, *(self._limit(call) - now for call in calls))
            try:
                call, event = self._events.get_nowait() if wait <= 0 else self._events.get(timeout=wait)
                if self._due.get(call.slot) is call:  # not the late answer to a call that was given up
                    events[call.slot] = event
            except queue.Empty:
                if events or (end is not None and time.monotonic() >= end):
                    break
        slots = [slot for slot in self._due if slot in events]
        for slot in slots:
            del self._due[slot]
        return self._finish_calls([events[slot] for slot in slots])

    def waiting_for(self) -> Wait | None:
        """Returns the call that has been outstanding for longest."""
        if not self._due:
            return None
        call = min(self._due.values(), key=lambda call: call.since)
        return Wait(str(call), call.since, call.slot)

    def close(self) -> None:
        """Ends every session."""
        self._closed = True
        self._finalizer()

    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        seat = self._seat(slot, env)
        self._current[slot] = env
        body: dict[str, Any] = {"options": {"task_id": task_id}}
        if seed is not None:
            body["seed"] = seed
        self._post(_RemoteCall(slot, env, seat, "reset", body, time.monotonic()))

    def _restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> None:
        seat = self._seat(slot, env)
        self._current[slot] = env
        self._post(_RemoteCall(slot, env, seat, "restore", {"snapshot": snapshot}, time.monotonic()))

    def _step(self, slot: int, action: Action) -> None:
        env = self._current[slot]
        description = self._descriptions[env]
        body = step_of(action, description.tools, description.max_calls)
        self._post(_RemoteCall(slot, env, self._seats[slot, env], "step", body, time.monotonic()))

    def _post(self, call: _RemoteCall) -> None:
        if self._closed:
            raise UsageError(f"{call.op} of a vector that is closed; make another one")
        self._due[call.slot] = call
        self._unsent.append(call)

    def _seat(self, slot: int, env: int) -> _Seat:
        """Returns the seat of a slot, on an available server with the fewest sessions; nowhere while there is none."""
        part, members = self._parts[env], self._members[env]
        if (slot, env) not in self._seats:
            steps = self._descriptions[env].max_episode_steps if part.horizon is None else part.horizon
            session = RemoteSession(part.places, part.env_id, part.arguments, None if steps == -1 else steps)
            self._seats[slot, env] = _Seat(session, members)
        seat = self._seats[slot, env]
        load = Counter(peer.session.url for (_, kind), peer in self._seats.items() if kind == env)
        up = members.up()
        best = min(up, key=lambda url: load[url], default="")
        if seat.session.url not in up or load[seat.session.url] > load[best] + 1:
            seat.session.move(best)
        return seat

    def _limit(self, call: _RemoteCall) -> float:
        """Returns when ``call`` becomes overdue (``time.monotonic``)."""
        return call.since + 2 * self.deadline

    def _overdue(self, now: float) -> dict[int, VectorEvent]:
        """Returns the failures of calls without an answer; their sessions are left, their servers get no new ones."""
        events = {}
        for slot, call in self._due.items():
            if now < self._limit(call):
                continue
            self._seats.pop((slot, call.env), None)
            seconds = f"{2 * self.deadline:g} s"
            call.seat.members.mark_silent(call.seat.session.url, f"a call was not answered for {seconds}")
            events[slot] = failure(slot, f"DeadlineExceeded: {call} was not answered for {seconds}")
        return events

    def _send(self) -> None:
        """Hands over the calls that are due: quick ones as one request for each server and environment."""
        groups: dict[tuple[str, int], list[_RemoteCall]] = {}
        now = time.monotonic()
        for call in self._unsent:
            call.since = now
            groups.setdefault((call.seat.session.url, call.env), []).append(call)
        self._unsent = []
        for (url, env), calls in groups.items():
            line = self._line(url)
            size, most = (BATCH, REQUESTS) if self._quick[env] else (1, SLOW_REQUESTS)
            alone = [call for call in calls if call.op == "restore"]
            plain_calls = [call for call in calls if call.op != "restore"]
            batches = [plain_calls[start : start + size] for start in range(0, len(plain_calls), size)]
            for batch in [*([call] for call in alone), *batches]:
                line.work.put(batch)
                if line.threads < most:
                    line.threads += 1
                    # Not a method of the vector: a thread that held it would prevent its garbage collection.
                    arguments = (line.work, self._events, 2 * self.deadline, self.snapshots)
                    threading.Thread(target=_serve, args=arguments, name="envsuite-remote", daemon=True).start()

    def _line(self, url: str) -> _ServerLine:
        """Returns the line of a server; before a new one is made, those that nobody needs any more end."""
        if url not in self._lines:
            urls = {seat.session.url for seat in self._seats.values()}
            urls.update(*(part.places.now() for part in self._parts))
            for old in self._lines.keys() - urls:
                self._lines.pop(old).work.put(None)
            self._lines[url] = _ServerLine()
        return self._lines[url]


@dataclass(frozen=True)
class _RemotePart:
    """An environment as its settings name it, before a server describes it."""

    places: Places
    env_id: str
    arguments: dict[str, Any]
    """Those of the environment on its server."""
    horizon: int | None


def _part(factory: EnvFactory) -> _RemotePart:
    kwargs = dict(factory.kwargs)
    url, horizon = kwargs.pop("url"), kwargs.pop("max_episode_steps", None)
    kwargs.pop("render_mode", None)
    return _RemotePart(Places(url), factory.env_id, plain(kwargs), horizon)


def _serve(
    work: queue.SimpleQueue[list[_RemoteCall] | None],
    events: queue.SimpleQueue[tuple[_RemoteCall, VectorEvent]],
    seconds: float,
    snapshots: bool,
) -> None:
    """Makes requests until told to end."""
    while (calls := work.get()) is not None:
        answers = [_answer_restore(calls[0])] if calls[0].op == "restore" else _answers(calls, seconds)
        for call, answer in zip(calls, answers, strict=True):
            try:
                event = _event(call, answer, snapshots)
            except Exception as error:  # a server may answer anything; the thread has to go on
                event = failure(call.slot, f"the server's answer is not of the protocol: {reason(error)}")
            events.put((call, event))
    work.put(None)  # for the next thread


def _answer_restore(call: _RemoteCall) -> dict[str, Any] | Exception:
    """Returns the answer to the call of a :meth:`RemoteVector.restore`, or the error."""
    session = call.seat.session
    try:
        if not session.url:
            urls = call.seat.members.wait_for_servers()
            session.move(urls[call.slot % len(urls)])
        return session.restore(call.body["snapshot"].world)
    except (EnvsuiteError, TypeError, ValueError) as error:
        return error


def _answers(calls: list[_RemoteCall], seconds: float) -> list[dict[str, Any] | Exception]:
    """Returns the answers to ``calls`` of one server: each a body, or the error."""
    url, members = calls[0].seat.session.url, calls[0].seat.members
    results: list[dict[str, Any] | None] = [None] * len(calls)
    try:
        if url and (members.answers(url) or members.alone):
            members.check(url)
            results = _batch(url, calls, seconds)
            members.mark_reachable(url)
    except ServerUnreachable as error:
        members.mark_silent(url, str(error))
        if members.alone:
            return [error] * len(calls)
    except RequestRefused as refused:
        return [refused.local_error()] * len(calls)
    answers: list[dict[str, Any] | Exception] = []
    until = time.monotonic() + transport.UNREACHABLE_SECONDS
    for call, result in zip(calls, results, strict=True):
        try:
            answers.append(_settle_call(call, result, url, until))
        except (EnvsuiteError, TypeError, ValueError) as error:
            answers.append(error)
        except RequestRefused as refused:
            answers.append(refused.local_error())
    return answers


def _batch(url: str, calls: list[_RemoteCall], seconds: float) -> list[dict[str, Any] | None]:
    """Makes one request and returns its results; first creates missing sessions by another one."""
    there, servers = server(url), calls[0].seat.session.servers
    new = [call for call in calls if call.op == "reset" and not call.seat.session.open]
    refusals: dict[int, dict[str, Any]] = {}
    if new:
        makings = [{"op": "create", **call.seat.session.open_body()} for call in new]
        reply = there.ask("POST", "/v1/batch", {"calls": makings}, seconds, servers)
        for call, result in zip(new, reply["results"], strict=True):
            if result["status"] == 200:
                call.seat.session.record_opening(result["body"]["session"])
            else:
                refusals[call.slot] = result
    open_calls = [call for call in calls if call.seat.session.open]
    body = {"calls": [call.seat.session.batch_entry(call.op, call.body) for call in open_calls]}
    results = there.ask("POST", "/v1/batch", body, seconds, servers)["results"] if open_calls else []
    by_slot = {call.slot: result for call, result in zip(open_calls, results, strict=True)}
    return [by_slot.get(call.slot, refusals.get(call.slot)) for call in calls]


def _settle_call(call: _RemoteCall, result: dict[str, Any] | None, url: str, until: float) -> dict[str, Any]:
    """Returns the body of one answer; repeats the call once if its session was lost, and while no server answers.

    Raises:
        ServerUnreachable: None has answered until then (``time.monotonic``).
    """
    session = call.seat.session
    if result is not None and result["status"] == 200:
        return session.accept(call.op, call.body, result["body"])
    if result is not None:
        refusal = RequestRefused(session.url, result["status"], result["body"])
        # Where there is no room now, it is asked again, patiently, alone.
        return session.mend(call.op, call.body, None if refusal.kind in ("capacity", "draining") else refusal)
    members = call.seat.members
    silent: ServerUnreachable | None = None
    while True:
        peers = [peer for peer in members.wait_for_servers() if peer != url or silent is not None] or [url]
        first = call.slot % len(peers)
        # Those that answered when they were asked last come first.
        for peer in sorted(peers[first:] + peers[:first], key=lambda peer: not members.answers(peer)):
            session.move(peer)
            try:
                members.check(peer)
                answer = session.mend(call.op, call.body, None)
                members.mark_reachable(peer)
                return answer
            except ServerUnreachable as error:
                members.mark_silent(peer, str(error))
                silent = error
        if silent is not None and time.monotonic() >= until:
            raise silent
        time.sleep(2 * transport.JUST_NOW)  # else those that were asked a moment ago would not be asked again


def _event(call: _RemoteCall, answer: dict[str, Any] | Exception, snapshots: bool) -> VectorEvent:
    if isinstance(answer, Exception):
        return failure(call.slot, reason(answer))
    if call.op == "restore":
        snapshot: VectorSnapshot = call.body["snapshot"]
        call.seat.task, call.seat.episode = answer["observation"]["task"], answer["episode"]
        view, old_info = from_json(call.seat.task, answer["observation"]), dict(snapshot.info)
        return VectorEvent(call.slot, view, 0.0, False, False, old_info, None, snapshot if snapshots else None)  # type: ignore[arg-type]
    seat, info, observation = call.seat, answer["info"], answer["observation"]
    if call.op == "reset":
        seat.task, seat.episode = observation["task"], {name: info[name] for name in EPISODE}
    assert seat.episode is not None
    whole: StepInfo = {**info, **seat.episode, "versions": dict(seat.episode["versions"])}  # type: ignore[typeddict-item]
    view = from_json(seat.task, observation)
    reward, terminated = number(answer.get("reward", 0.0), "the server's reward"), answer.get("terminated", False)
    truncated, new_snapshot = answer.get("truncated", False), None
    if snapshots and not terminated and not truncated:
        token = seat.session.token()
        new_snapshot = VectorSnapshot(token, dict(whole), len(token["steps"]))  # type: ignore[arg-type]
    return VectorEvent(call.slot, view, reward, terminated, truncated, whole, None, new_snapshot)


def _end(seats: dict[tuple[int, int], _Seat], lines: dict[str, _ServerLine], process: int) -> None:
    """Ends all sessions and threads, unless this is a fork of the process that they belong to."""
    if os.getpid() != process:
        return
    for line in lines.values():
        line.work.put(None)
    by_url: dict[str, list[str]] = {}
    for seat in seats.values():
        if (name := seat.session.leave()) is not None:
            by_url.setdefault(seat.session.url, []).append(name)
    for url, names in by_url.items():
        for start in range(0, len(names), BATCH):
            calls = [{"op": "close", "session": name} for name in names[start : start + BATCH]]
            try:
                server(url).ask("POST", "/v1/batch", {"calls": calls}, CLOSE_SECONDS)
            except RequestRefused:  # the server ends idle sessions itself
                continue
            except ServerUnreachable:
                break
    seats.clear()
