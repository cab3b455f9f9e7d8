"""Routes calls to sessions: knows their places, idle times and limits, and counts what happens."""

from __future__ import annotations

import importlib
import logging
import secrets
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium
from gymnasium.envs.registration import load_env_creator

from envsuite.core import EnvsuiteError, ToolEnv, UsageError
from envsuite.core.errors import DataError, unknown
from envsuite.core.options import PATH, SEARCH, EnvOptions
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.tools import shorten_reason
from envsuite.remote.protocol import HttpProblem
from envsuite.retrieval.retrievers import parse_search
from envsuite.serving.host import Answer, SessionHost
from envsuite.serving.schemas import REQUEST_CHECKS
from envsuite.serving.settings import ServerSettings

HELP = {
    "envsuite_calls_total": "Calls on sessions, those of batches counted one by one, by operation and status.",
    "envsuite_requests_total": "HTTP requests, by status.",
    "envsuite_connections_refused_total": "Connections refused because there were too many.",
    "envsuite_request_seconds_total": "Seconds spent on HTTP requests.",
    "envsuite_sessions_created_total": "Sessions created.",
    "envsuite_sessions_expired_total": "Sessions ended because they were idle.",
    "envsuite_sessions_refused_total": "Sessions refused because the server was full.",
    "envsuite_workers_replaced_total": "Worker processes that died or hung.",
}


class Metrics:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)

    def count(self, metric: str, by: float = 1.0, **labels: str) -> None:
        """Adds ``by`` to ``metric``, one of :data:`HELP`."""
        with self._lock:
            self._counts[metric, tuple(labels.items())] += by

    def request(self, status: int, seconds: float) -> None:
        """Counts one HTTP request."""
        with self._lock:
            self._counts["envsuite_requests_total", (("status", str(status)),)] += 1
            self._counts["envsuite_request_seconds_total", ()] += seconds

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Returns all counters and ``gauges`` (name -> help and value), in Prometheus' text format."""
        with self._lock:
            counts = sorted(self._counts.items())
        lines = []
        for name, help_text in HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} counter"]
            for (metric, labels), value in counts:
                if metric == name:
                    inside = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels)
                    lines.append(f"{name}{{{inside}}} {value:.17g}" if inside else f"{name} {value:.17g}")
        for name, (help_text, value) in gauges.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:.17g}"]
        return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


log = logging.getLogger("envsuite.serving")
LOADED = frozenset(("split", "tasks"))
"""Arguments with which a world is made of what the server has loaded at its start; others may generate data."""
REMEMBERED = 10_000
"""Number of ended sessions whose reason is kept; older ones are reported as unknown."""
SWEEP_SECONDS = 1.0
RETRY_SECONDS = 1


class SessionPlace(Protocol):
    """A place where sessions are played."""

    sessions: int
    """Number of its sessions, counted by the front."""

    def submit(self, calls: Sequence[Mapping[str, Any]]) -> Callable[[], list[Answer]]:
        """Starts ``calls``; the returned function waits for the answers and returns them in the same order."""


class Inline:
    """Plays sessions in this process, in the calling thread."""

    def __init__(self) -> None:
        self.sessions = 0
        self._host = SessionHost()

    def submit(self, calls: Sequence[Mapping[str, Any]]) -> Callable[[], list[Answer]]:
        """Executes ``calls`` immediately."""
        answers = [self._host.execute(call) for call in calls]
        return lambda: answers


@dataclass(frozen=True)
class EnvOffer:
    """An environment that the server offers."""

    env_id: str
    max_episode_steps: int | None
    options: type[EnvOptions]
    arguments: Mapping[str, Any]
    """JSON Schema of each option that a client may choose."""
    inline: bool
    """Whether it is played in the process that answers HTTP."""
    quick: bool = False
    """Whether its resets and steps take microseconds."""


@dataclass
class _Record:
    name: str
    env_id: str
    place: SessionPlace
    key: str | None
    quick: bool
    used: float
    busy: int = 0
    """Number of running calls."""


class Front:
    """Routes calls to the places where their sessions are played.

    Args:
        settings: Settings of the server.
        place: Chooses the place of a new session of an environment, given whether its worlds may generate data.

    Raises:
        EnvsuiteError: An environment does not exist, or is not a ``ToolEnv``.
    """

    def __init__(self, settings: ServerSettings, place: Callable[[EnvOffer, bool], SessionPlace]) -> None:
        self.settings = settings
        self.offers = {env_id: _offer(env_id, settings.workers) for env_id in settings.environments}
        self.metrics = Metrics()
        self.draining = False
        self._place = place
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()  # least recently used first
        self._keys: dict[str, str] = {}
        self._ended: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._calls = 0
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="envsuite-sweeper", daemon=True)
        self._sweeper.start()

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return len(self._records)

    @property
    def busy(self) -> int:
        """Number of running calls."""
        return self._calls

    def offer(self, env_id: str) -> EnvOffer:
        """Returns the offered environment ``env_id``.

        Raises:
            HttpProblem: The server does not offer it.
        """
        if env_id not in self.offers:
            detail = str(unknown("environment of this server", env_id, self.offers))
            raise HttpProblem(404, "unknown-environment", detail, field="environment", error="UnknownName")
        return self.offers[env_id]

    def quick(self, session: str) -> bool:
        """Whether a reset or step of the session takes microseconds, wherever it is executed."""
        record = self._records.get(session)
        return record is not None and record.quick

    def call(self, op: str, body: Mapping[str, Any]) -> Answer:
        """Answers one call, whose body has been checked; never raises for an error of the call."""
        return self._execute([(op, body)])[0]

    def batch(self, calls: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Answers the calls of a batch (see :data:`~envsuite.serving.schemas.REQUEST_CHECKS`), in the same order.

        Calls to one place form one message; those to one session are executed in order.
        """
        entries: list[tuple[str, Mapping[str, Any]] | HttpProblem] = []
        for call in calls:
            op: str = call["op"]
            try:
                body = {name: value for name, value in call.items() if name not in ("op", "session")}
                if op == "close" and body:
                    raise HttpProblem(422, "invalid", f"{min(body)}: not a field of close", field=min(body))
                if op != "close":
                    REQUEST_CHECKS[op](body)
                if op == "create":
                    if "session" in call:
                        raise HttpProblem(422, "invalid", "session: the server names it", field="session")
                elif "session" not in call:
                    raise HttpProblem(422, "invalid", f"session: missing, {op} is of a session", field="session")
                entries.append((op, {**body, "session": call["session"]} if "session" in call else body))
            except HttpProblem as problem:
                entries.append(problem)
        return self._execute(entries)

    def close(self) -> None:
        """Ends all sessions."""
        self._stop.set()
        self._sweeper.join()
        with self._lock:
            records = list(self._records.values())
        for record in records:
            self._end(record, "the server ends")

    def drop_place(self, place: SessionPlace, why: str) -> None:
        """Drops the sessions of a place that is gone."""
        with self._lock:
            for record in [record for record in self._records.values() if record.place is place]:
                self._forget(record, why)

    def _execute(self, calls: Sequence[tuple[str, Mapping[str, Any]] | HttpProblem]) -> list[Answer]:
        answers: list[Answer] = [(500, b"")] * len(calls)
        by_place: dict[int, tuple[SessionPlace, list[int], list[Mapping[str, Any]]]] = {}
        records: dict[int, _Record] = {}
        with self._lock:
            self._calls += 1
        try:
            for index, call in enumerate(calls):
                try:
                    if isinstance(call, HttpProblem):
                        raise call
                    place, message, record = self._admit(*call)
                except HttpProblem as problem:
                    answers[index] = problem.status, problem.document()
                    continue
                if record is not None:
                    records[index] = record
                _, indices, messages = by_place.setdefault(id(place), (place, [], []))
                indices.append(index)
                messages.append(message)
            waiting = [(indices, place.submit(messages)) for place, indices, messages in by_place.values()]
            for indices, collect in waiting:
                for index, answer in zip(indices, collect(), strict=True):
                    answers[index] = answer
        finally:
            self._settle(calls, records, answers)
        return answers

    def _admit(self, op: str, body: Mapping[str, Any]) -> tuple[SessionPlace, Mapping[str, Any], _Record | None]:
        """Returns the place and the message of a call, and its session's record."""
        if op == "describe":
            offer = self.offer(body["environment"])
            return self._chosen_place(offer, body)[0], {**body, "op": op}, None
        if op == "create":
            new = self._create(body)
            return new.place, self._message(op, body, new), new
        with self._lock:
            name = body["session"]
            record = self._records.get(name)
            if record is None:
                if name in self._ended:
                    kind, why = self._ended[name]
                    detail = f"session {name!r} has ended: {why}"
                    raise HttpProblem(410, kind, detail, field="session", error="WorkerLost")
                detail = f"no session {name!r}: it was never created, or the server was restarted"
                raise HttpProblem(404, "unknown-session", detail, field="session", error="WorkerLost")
            record.busy += 1
            self._records.move_to_end(name)
        return record.place, self._message(op, body, record), record

    def _message(self, op: str, body: Mapping[str, Any], record: _Record) -> Mapping[str, Any]:
        return {**body, "op": op, "session": record.name, "idle_seconds": self.settings.idle_seconds}

    def _create(self, body: Mapping[str, Any]) -> _Record:
        offer = self.offer(body["environment"])
        if self.draining:
            raise HttpProblem(503, "draining", "the server is about to end; ask another one", wait=RETRY_SECONDS)
        place, generates = self._chosen_place(offer, body)
        with self._lock:
            key = body.get("key")
            if key is not None and (name := self._keys.get(key)) is not None:
                record = self._records[name]
                if record.env_id != offer.env_id:
                    raise HttpProblem(409, "refused", f"key: it is of a session of {record.env_id}", field="key")
            else:
                if len(self._records) >= self.settings.max_sessions:
                    self.metrics.count("envsuite_sessions_refused_total")
                    detail = f"all {self.settings.max_sessions} sessions are in use; close some, or retry later"
                    raise HttpProblem(429, "capacity", detail, wait=RETRY_SECONDS)
                quick = offer.quick and not generates
                record = _Record(secrets.token_hex(16), offer.env_id, place, key, quick, time.monotonic())
                self._records[record.name] = record
                place.sessions += 1
                if key is not None:
                    self._keys[key] = record.name
                self.metrics.count("envsuite_sessions_created_total", environment=offer.env_id)
            record.busy += 1
            return record

    def _chosen_place(self, offer: EnvOffer, body: Mapping[str, Any]) -> tuple[SessionPlace, bool]:
        """Returns where the environment of a call is made, and whether that may generate data."""
        arguments = body.get("arguments", {})
        self._check_arguments(offer, arguments)
        generates = not arguments.keys() <= LOADED
        return self._place(offer, generates), generates

    def _check_arguments(self, offer: EnvOffer, arguments: Mapping[str, Any]) -> None:
        for name, value in arguments.items():
            field = f"arguments.{name}"
            try:
                if name not in offer.arguments:
                    field = "arguments"
                    raise unknown(f"argument of {offer.env_id}", name, offer.arguments)
                offer.options.check({name: value}, client=True)
                self._check_access(name, value, offer.arguments[name])
            except EnvsuiteError as error:
                detail = shorten_reason(f"arguments.{name}: {error}" if name in offer.arguments else str(error))
                raise HttpProblem(422, "invalid", detail, field=field, error=type(error).__name__) from error

    def _check_access(self, name: str, value: Any, form: Mapping[str, Any]) -> None:
        """Raises :class:`DataError` where an argument reads what this server does not open to its clients."""
        files: tuple[str, ...] = ()
        addresses: tuple[str, ...] = ()
        if form.get("format") == PATH and value is not None and value not in form["examples"]:
            files = (value,)
        elif form.get("format") == SEARCH:
            files, addresses = parse_search(value).reads()
        refusals = [f"the path {file!r} (--source-folder)" for file in files if not self._opens(file)]
        servers = self.settings.search_servers
        refusals += [f"the server {address!r} (--search-server)" for address in addresses if address not in servers]
        if refusals:
            names = f", and none of {', '.join(form['examples'])}" if "examples" in form else ""
            raise DataError(f"this server does not open {refusals[0]} to its clients{names}")

    def _opens(self, path: str) -> bool:
        """Returns whether clients may name the path."""
        folders = self.settings.source_folders
        return "\0" not in path and any(Path(path).resolve().is_relative_to(folder.resolve()) for folder in folders)

    def _settle(
        self,
        calls: Sequence[tuple[str, Mapping[str, Any]] | HttpProblem],
        records: Mapping[int, _Record],
        answers: Sequence[Answer],
    ) -> None:
        """Records the results of the calls."""
        now = time.monotonic()
        with self._lock:
            self._calls -= 1
            for index, record in records.items():
                record.busy -= 1
                record.used = now
                call, status = calls[index], answers[index][0]
                assert not isinstance(call, HttpProblem)
                if call[0] == "close":
                    self._forget(record, "it was closed")
                elif status == 410 and b"urn:envsuite:problem:session-lost" in answers[index][1]:
                    self._forget(record, "its world failed", "session-lost")
                elif call[0] == "create" and status != 200:
                    self._forget(record, "it could not be made")
            for call, answer in zip(calls, answers, strict=True):
                op = "invalid" if isinstance(call, HttpProblem) else call[0]
                self.metrics.count("envsuite_calls_total", op=op, status=str(answer[0]))

    def _forget(self, record: _Record, why: str, kind: str = "session-ended") -> None:
        if self._records.pop(record.name, None) is None:
            return
        if record.key is not None:
            del self._keys[record.key]
        record.place.sessions -= 1
        self._ended[record.name] = kind, why
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _end(self, record: _Record, why: str) -> None:
        with self._lock:
            self._forget(record, why)
        record.place.submit([{"op": "close", "session": record.name}])()

    def _sweep(self) -> None:
        """Ends sessions that have been idle for too long."""
        while not self._stop.wait(min(SWEEP_SECONDS, self.settings.idle_seconds / 4)):
            before = time.monotonic() - self.settings.idle_seconds
            idle = []
            with self._lock:
                for record in self._records.values():
                    if record.used > before:
                        break
                    if not record.busy:
                        idle.append(record)
            for record in idle:
                self._end(record, f"nobody called it for {self.settings.idle_seconds:g} s")
                self.metrics.count("envsuite_sessions_expired_total", environment=record.env_id)


def _offer(env_id: str, workers: int) -> EnvOffer:
    if (own_spec := ENVIRONMENTS.get(env_id)) is not None:
        entry: Any = load_env_creator(own_spec.entry_point)
        steps, quick = own_spec.max_episode_steps, own_spec.inline
        return EnvOffer(env_id, steps, entry.takes, entry.argument_schemas(), quick or workers == 0, quick)
    try:
        module, _, name = env_id.rpartition(":")
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise unknown("environment", env_id, ENVIRONMENTS) from error
    entry = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    if not isinstance(entry, type) or not issubclass(entry, ToolEnv):
        raise UsageError(f"{env_id} is not a ToolEnv; a server offers environments of envsuite's contract")
    return EnvOffer(env_id, spec.max_episode_steps, entry.takes, entry.argument_schemas(), workers == 0)
