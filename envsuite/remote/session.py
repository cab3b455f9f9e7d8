"""A session on a server, from the client's side: numbers its calls, and restores it after a loss."""

from __future__ import annotations

import itertools
import logging
import os
import random
import secrets
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, UsageError, WorkerLost
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import Action, Tool, check_action
from envsuite.remote.places import Places
from envsuite.remote.protocol import EPISODE
from envsuite.remote.transport import RequestRefused, ServerUnreachable, server

log = logging.getLogger("envsuite.remote")
NUMBERED = ("reset", "step", "restore")
"""Calls that change a session."""
CLOSE_SECONDS = 2.0
LOST = ("unknown-session", "session-ended")
"""Problems of a session that was lost for a reason other than its call: its episode can be replayed."""
BATCH = 256
"""Maximum number of calls of an episode that are repeated in one request."""

IDENTIFIED = 256
"""Maximum number of tasks whose goals and identities are asked for in one request."""


@dataclass(frozen=True)
class EnvDescription:
    """A server's description of an environment made with some arguments."""

    name: str
    """Name of its class."""
    tools: tuple[Tool, ...]
    max_calls: int
    agents: Mapping[str, tuple[str, ...]]
    """Agents that take turns -> names of the tools of each."""
    images: bool
    """Whether observations have images."""
    tools_change: bool
    """Whether some tools can be called at some times only."""
    restorable: bool
    """Whether it can be snapshot and restored."""
    max_episode_steps: int | None
    split: str | None
    versions: Mapping[str, str]
    tasks: TaskSet


def describe_environment(url: str, env_id: str, arguments: Mapping[str, Any], servers: int = 1) -> EnvDescription:
    """Returns the description of ``env_id`` by the server at ``url``, one of ``servers``; requested once per process.

    Raises:
        EnvsuiteError: The environment cannot be made with these arguments; as for a local one.
        DataError: The server's task manifest does not match this version of envsuite, or a tool's schema refers to
            something outside itself.
        WorkerLost: The server does not answer.
    """
    return _request_description(url, env_id, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS), servers)


def describe_again(url: str, env_id: str, arguments: Mapping[str, Any]) -> EnvDescription:
    """As :func:`describe_environment`; requested each time, as another server may have taken the place."""
    return _request_description.__wrapped__(url, env_id, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS), 1)


@lru_cache(maxsize=64)
def _request_description(url: str, env_id: str, arguments: bytes, servers: int) -> EnvDescription:
    path = f"/v1/environments/{urllib.parse.quote(env_id, safe=':')}"
    try:
        body = server(url).ask("POST", path, {"arguments": orjson.loads(arguments)}, servers=servers)
    except RequestRefused as error:
        raise error.local_error() from None
    manifest = body["tasks"]
    splits = {split: tuple(ids) for split, ids in manifest["splits"].items()}
    tasks = TaskSet(manifest["env_id"], manifest["source"], manifest["version"], splits, manifest["types"])
    here, there = tasks.hash, manifest["hash"]
    if here != there:
        raise DataError(f"{url}: the manifest of {env_id} has hash {there[:8]} there and {here[:8]} here")
    tools = tuple(Tool(**tool["function"]).check() for tool in body["tools"])
    agents = {agent: tuple(names) for agent, names in body.get("agents", {}).items()}
    same = ("max_calls", "images", "tools_change", "restorable", "max_episode_steps", "split", "versions")
    facts = {name: body[name] for name in same}
    return EnvDescription(body["class"], tools, agents=agents, tasks=tasks, **facts)


def plain(value: Any) -> Any:
    """Converts ``value`` to plain JSON values: paths to strings, iterables to lists.

    Raises:
        UsageError: The value cannot be converted.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    raise UsageError(f"an environment with url= takes arguments that are JSON, got {type(value).__name__}")


def step_of(action: Action, tools: Sequence[Tool], max_calls: int) -> dict[str, Any]:
    """Returns the request body of a step with ``action``, whatever it is."""
    if (problem := check_action(action, tools, max_calls)) is not None:
        return {"problem": problem}
    return {"calls": [{"name": call.name, "arguments": call.arguments} for call in action]}


_TURN = itertools.count(secrets.randbelow(1 << 16))
"""Index of the next of several servers; each process starts at another one."""


class RemoteSession:
    """One environment on one of several servers.

    A session that a server has lost (it was restarted, or the session idled for too long) is created again, on any of
    the servers, and its episode is replayed: an episode is a function of its task and its actions.

    Args:
        places: Where the servers are.
        env_id: The environment.
        arguments: Its arguments, as JSON values.
        horizon: Steps after which the server truncates; ``None`` for never.
    """

    def __init__(self, places: Places, env_id: str, arguments: Mapping[str, Any], horizon: int | None = None) -> None:
        self.places, self.env_id, self.arguments, self.horizon = places, env_id, dict(arguments), horizon
        turn, urls = next(_TURN), places.now()
        self.url = urls[turn % len(urls)] if urls else ""
        """Address of the current server; empty where there is none yet."""
        self._name: str | None = None
        self._process = os.getpid()
        self._number = 0
        self._task_id: str | None = None
        self._steps: list[dict[str, Any]] = []
        self._state_key: str | None = None

    def in_turn(self) -> list[str]:
        """Returns the servers that there are now, from the current one on."""
        urls = self.places.now()
        first = urls.index(self.url) if self.url in urls else random.randrange(len(urls) or 1)
        return [*urls[first:], *urls[:first]]

    @property
    def servers(self) -> int:
        """Number of servers that may answer, the current one included."""
        return len({*self.places.now(), self.url})

    def reset(self, task_id: str) -> dict[str, Any]:
        """Starts an episode; returns the answer.

        Raises:
            EnvsuiteError: As the environment's own reset.
            WorkerLost: No server answers.
        """
        body = {"options": {"task_id": task_id}}
        if self.url not in self.places.now():  # it has left, or there was none yet
            self.move(random.choice(self.places.some()))
        return self.accept("reset", body, self._ensure_call("reset", body))

    def step(self, body: dict[str, Any]) -> dict[str, Any]:
        """Takes a step; returns the answer.

        Args:
            body: The body from :func:`step_of`.

        Raises:
            EnvsuiteError: As the environment's own step.
            WorkerLost: The world has failed, or no server answers.
        """
        return self.accept("step", body, self._ensure_call("step", body))

    def batch_entry(self, op: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the call as part of a batch; pass its answer to :meth:`accept`, a failure to :meth:`mend`."""
        return {"op": op, "session": self._name, "number": self._number + 1, **body}

    def accept(self, op: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Records that ``op`` was executed; returns the answer."""
        self._number = answer["number"]
        if op == "reset":
            self._task_id, self._steps = answer["info"]["task_id"], []
        else:
            self._steps.append(body)
        self._state_key = answer["info"]["state_key"]
        return answer

    def mend(self, op: str, body: dict[str, Any], failure: RequestRefused | None) -> dict[str, Any]:
        """Repeats a call that failed in a batch, if the session can be restored; returns the answer.

        Args:
            op: ``"reset"`` or ``"step"``.
            body: The body that was sent.
            failure: The error; ``None`` if the server did not answer.

        Raises:
            EnvsuiteError: As the environment's own.
            WorkerLost: The world has failed, or no server answers.
        """
        return self.accept(op, body, self._repeat_call(op, body, failure))

    def open_body(self) -> dict[str, Any]:
        """Returns the body of the call that creates the session."""
        key = secrets.token_hex(16)
        return {"environment": self.env_id, "arguments": self.arguments, "max_episode_steps": self.horizon, "key": key}

    @property
    def open(self) -> bool:
        """Whether the session exists on a server, as far as is known."""
        return self._name is not None

    def record_opening(self, name: str) -> None:
        """Records that the session was created, as ``name``."""
        self._name, self._process, self._number = name, os.getpid(), 0

    def move(self, url: str) -> None:
        """Moves the session to ``url``; a running episode is replayed there."""
        if url != self.url:
            self.url, self._name = url, None

    def snapshot(self) -> dict[str, Any]:
        """Returns a token for :meth:`restore`, in any session of the same environment.

        Raises:
            EnvsuiteError: As the environment's own.
        """
        return self.token(self._ensure_call("snapshot", None)["snapshot"])

    def token(self, name: str | None = None) -> dict[str, Any]:
        """Returns a token for :meth:`restore`: of the server's snapshot ``name``, or to replay the episode."""
        episode = {"task_id": self._task_id, "steps": tuple(self._steps), "state_key": self._state_key}
        return {**episode, "url": self.url, "snapshot": name}

    def restore(self, token: Mapping[str, Any]) -> dict[str, Any]:
        """Restores a snapshot; returns observation, ``episode`` and ``done``.

        If its server has dropped the snapshot, the episode is replayed up to it.

        Raises:
            EnvsuiteError: As the environment's own.
        """
        before = self._task_id, self._steps, self._state_key
        self._task_id, self._steps, self._state_key = token["task_id"], list(token["steps"]), token["state_key"]
        try:
            if token["snapshot"] is not None and token["url"] == self.url and self._name is not None:
                try:
                    return self._call("restore", {"snapshot": token["snapshot"]})
                except RequestRefused as error:
                    if error.kind not in (*LOST, "unknown-snapshot"):
                        raise error.local_error() from None
            return self._recover_episode()
        except BaseException:
            self._task_id, self._steps, self._state_key = before
            raise

    def _recover_episode(self) -> dict[str, Any]:
        """Replays the episode; after a failure the next call begins in a new session."""
        try:
            try:
                return self._replay()
            except RequestRefused as error:
                if error.kind not in LOST:
                    raise
                self._name = None
                return self._replay()
        except RequestRefused as error:
            self._name = None
            raise error.local_error() from None
        except WorkerLost:
            self._name = None
            raise

    def propose(self, generator: dict[str, Any]) -> dict[str, Any]:
        """Returns a call drawn by the environment, and the generator's next state.

        Raises:
            EnvsuiteError: As the environment's own.
        """
        return self._ensure_call("propose", {"generator": generator})

    def identify(self, task_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Returns goal and identity of each task.

        Raises:
            EnvsuiteError: As the environment's own.
        """
        identities: list[dict[str, Any]] = []
        for start in range(0, len(task_ids), IDENTIFIED):
            part = list(task_ids[start : start + IDENTIFIED])
            identities += self._ensure_call("identify", {"tasks": part})["tasks"]
        return identities

    def close(self) -> None:
        """Ends the session if that is possible now; if not, the server does it later."""
        if (name := self.leave()) is not None:
            try:
                server(self.url).ask("DELETE", f"/v1/sessions/{name}", seconds=CLOSE_SECONDS)
            except (RequestRefused, ServerUnreachable):
                return

    def leave(self) -> str | None:
        """Drops the session; returns its name, for ending it, or ``None`` if this process has none."""
        name, self._name = self._name, None
        return name if os.getpid() == self._process else None  # in a fork, the session belongs to the parent

    def _ensure_call(self, op: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Makes a call; if the session was lost, repeats it in a new one."""
        try:
            if self._name is None:
                return self._repeat_call(op, body, None)
            return self._call(op, body)
        except RequestRefused as error:
            return self._repeat_call(op, body, error)
        except ServerUnreachable as error:
            silent = error
        if not self.places.fixed:
            self.places.some()
        for url in [url for url in self.in_turn() if url != self.url]:
            self.move(url)
            log.warning("going on at %s", url)
            try:
                return self._repeat_call(op, body, None)
            except ServerUnreachable as error:
                silent = error
        raise silent

    def _repeat_call(self, op: str, body: dict[str, Any] | None, failure: RequestRefused | None) -> dict[str, Any]:
        """Makes a call in a new session, in which the episode is replayed, unless the call begins another."""
        if failure is not None:
            if failure.kind not in LOST:
                if failure.kind == "session-lost":
                    self._name = self._task_id = None
                raise failure.local_error() from None
            log.info("%s: %s; playing its episode again", self.url, failure.detail)
        self._name = None
        try:
            if op != "reset":
                self._replay()
            return self._call(op, body)
        except RequestRefused as error:
            if error.kind in (*LOST, "session-lost"):
                self._name = self._task_id = None
            raise error.local_error() from None

    def _call(self, op: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if self._name is None:
            self._open()
        if op in NUMBERED:
            body = {"number": self._number + 1, **(body or {})}
        answer: dict[str, Any] = self._ask(f"/v1/sessions/{self._name}/{op}", body)
        self._number += op in NUMBERED
        return answer

    def _open(self) -> None:
        self.record_opening(self._ask("/v1/sessions", self.open_body())["session"])

    def _ask(self, path: str, body: object) -> Any:
        return server(self.url).ask("POST", path, body, servers=self.servers)

    def _replay(self) -> dict[str, Any]:
        """Replays the episode in the current or a new session; returns the result of :meth:`restore`."""
        if self._task_id is None:
            return {}
        if self._name is None:
            self._open()
        calls = [{"op": "reset", "options": {"task_id": self._task_id}}, *({"op": "step", **b} for b in self._steps)]
        bodies: list[dict[str, Any]] = []
        for start in range(0, len(calls), BATCH):
            part = [
                {**call, "session": self._name, "number": self._number + number}
                for number, call in enumerate(calls[start : start + BATCH], start=1)
            ]
            for result in self._ask("/v1/batch", {"calls": part})["results"]:
                if result["status"] != 200:
                    raise RequestRefused(self.url, result["status"], result["body"])
                bodies.append(result["body"])
            self._number += len(part)
        first, last = bodies[0], bodies[-1]
        if last["info"]["state_key"] != self._state_key:
            self._name = self._task_id = None
            raise WorkerLost(f"{self.url}: the episode cannot be replayed: it takes another course there")
        return {
            "observation": {**last["observation"], "task": first["observation"]["task"]},
            "episode": {name: first["info"][name] for name in EPISODE},
            "done": last.get("terminated", False),
        }
