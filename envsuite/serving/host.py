"""Holds sessions and executes calls on them: the part of a server that has the environments.

It runs in the process that answers HTTP, or in worker processes, and depends on neither.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import orjson

from envsuite.core import Observation, StepInfo, Tool, ToolCall, ToolEnv, UsageError
from envsuite.core.boundary import CodeError, boundary, reason
from envsuite.core.errors import EnvsuiteError
from envsuite.data.places import without_paths
from envsuite.remote.making import horizon_of
from envsuite.remote.protocol import EPISODE, HttpProblem, as_json, problem_of

log = logging.getLogger("envsuite.serving")
Answer = tuple[int, bytes]
"""HTTP status and body."""
SNAPSHOTS = 256
"""Maximum number of snapshots of a session; the oldest is dropped first."""
_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass
class _HostSession:
    env: ToolEnv
    env_id: str
    arguments: Mapping[str, Any]
    horizon: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    steps: int = 0
    """Number of steps in the episode so far."""
    number: int = 0
    """Number of the last call that changed the session."""
    last: tuple[Mapping[str, Any], bytes] | None = None
    """That call and its answer, for a client that did not receive it."""
    snapshots: OrderedDict[str, tuple[object, int]] = field(default_factory=OrderedDict)
    """Token and number of steps, by name."""
    taken: int = 0
    """Number of snapshots taken so far."""


def make_env(env_id: str, arguments: Mapping[str, Any]) -> ToolEnv:
    """Makes an environment, without time limit.

    Raises:
        HttpProblem: It cannot be made with these arguments.
    """
    import envsuite  # noqa: F401  (registers the ids, in a worker process too)

    try:
        with boundary(env_id):
            env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=-1, **arguments).unwrapped
    except EnvsuiteError as error:
        problem = problem_of(error)
        problem.field = "arguments"
        raise problem from error
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        kind = type(error).__name__ if type(error) in (TypeError, ValueError) else "UsageError"
        raise HttpProblem(422, "refused", str(error), field="arguments", error=kind) from error
    if not isinstance(env, ToolEnv):
        detail = f"{env_id} is not a ToolEnv but a {type(env).__name__}"
        raise HttpProblem(422, "refused", detail, field="environment")
    return env


class SessionHost:
    """Holds sessions and executes calls on them. Thread-safe."""

    def __init__(self) -> None:
        self._sessions: dict[str, _HostSession] = {}
        self._operations: dict[str, Callable[[_HostSession, Mapping[str, Any]], Answer]] = {
            "reset": self._reset,
            "step": self._step,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "propose": self._propose,
            "identify": self._identify,
            "show": self._show,
        }

    def __len__(self) -> int:
        """Returns the number of sessions."""
        return len(self._sessions)

    def execute(self, call: Mapping[str, Any]) -> Answer:
        """Answers one call; never raises for an error of the call or of a world.

        Args:
            call: The checked body of the request, with ``op`` and ``session``.
        """
        try:
            return self._answer(call)
        except HttpProblem as problem:
            return self._client_problem(problem, call)
        except Exception as error:  # a bug in one world must not end the sessions of the others
            if isinstance(error, EnvsuiteError) and not isinstance(error, CodeError):
                return self._client_problem(problem_of(error), call)
            detail = f"the world failed: {reason(error)}; its session has ended"
            loss = HttpProblem(410, "session-lost", detail, field="session", error="WorkerLost")
            answer = self._client_problem(loss, call)
            self._close(call.get("session", ""))
            return answer

    def _answer(self, call: Mapping[str, Any]) -> Answer:
        op = call["op"]
        if op == "describe":
            return self._describe(call)
        if op == "create":
            return self._create(call)
        if op == "close":
            return self._close(call["session"])
        session = self._sessions.get(call["session"])
        if session is None:
            raise HttpProblem(
                404, "unknown-session", f"no session {call['session']!r}", field="session", error="WorkerLost"
            )
        with session.lock:
            return self._operations[op](session, call)

    def _client_problem(self, problem: HttpProblem, call: Mapping[str, Any]) -> Answer:
        """Returns the problem for the client: without paths of this machine that the client has not named."""
        session = self._sessions.get(call.get("session", ""))
        arguments = call.get("arguments", {}) if session is None else session.arguments
        detail = without_paths(problem.detail, [value for value in arguments.values() if isinstance(value, str)])
        if detail != problem.detail:
            log.warning("a client is told: %s; in full: %s", detail, problem.detail)
            problem.detail = detail
        return problem.status, problem.document()

    def _describe(self, call: Mapping[str, Any]) -> Answer:
        with closing(make_env(call["environment"], call.get("arguments", {}))) as env:
            tasks = env.tasks
            body = {
                "environment": call["environment"],
                "class": type(env).__name__,
                "tools": [Tool.as_openai(tool) for tool in env.tools],
                "max_calls": env.max_calls,
                **({"agents": dict(env.agents)} if env.agents else {}),
                "images": env.images,
                "tools_change": env.tools_change,
                "restorable": env.restorable,
                "max_episode_steps": horizon_of(call["environment"], call.get("arguments")),
                "split": env.split,
                "versions": env.versions,
                "tasks": {
                    "env_id": tasks.env_id,
                    "source": tasks.source,
                    "version": tasks.version,
                    "hash": tasks.hash,
                    "splits": dict(tasks.splits),
                    "types": dict(tasks.types),
                },
            }
            return 200, orjson.dumps(body)

    def _create(self, call: Mapping[str, Any]) -> Answer:
        if call["session"] not in self._sessions:
            arguments = call.get("arguments", {})
            env = make_env(call["environment"], arguments)
            horizon = call.get("max_episode_steps", horizon_of(call["environment"], arguments))
            self._sessions[call["session"]] = _HostSession(env, call["environment"], arguments, horizon)
        return self._show(self._sessions[call["session"]], call)

    def _close(self, name: str) -> Answer:
        session = self._sessions.pop(name, None)
        if session is not None:
            try:
                session.env.close()
            except Exception:  # it has failed before, or is not needed any more
                log.warning("closing a session of %s failed", session.env_id, exc_info=True)
        return 204, b""

    def _show(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        body = {"session": call["session"], "environment": session.env_id, "next": session.number + 1}
        return 200, orjson.dumps({**body, "idle_seconds": call["idle_seconds"]})

    def _answer_once(self, session: _HostSession, call: Mapping[str, Any], run: Callable[[], dict[str, Any]]) -> Answer:
        """Executes the session's next call, or repeats the answer to its last one."""
        number = call["number"]
        if number == session.number and session.last is not None:
            if session.last[0] != call:
                detail = f"number {number} was another call; the next one has number {number + 1}"
                raise HttpProblem(409, "out-of-order", detail, field="number", more={"next": number + 1})
            return 200, session.last[1]
        if number != session.number + 1:
            detail = f"number {number} does not follow {session.number}; the next call has number {session.number + 1}"
            raise HttpProblem(409, "out-of-order", detail, field="number", more={"next": session.number + 1})
        answer = orjson.dumps({"number": number, **run()}, option=_JSON)
        session.number, session.last = number, (call, answer)
        return 200, answer

    def _reset(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        def execute() -> dict[str, Any]:
            options = {name: value for name, value in (call.get("options") or {}).items() if value is not None}
            observation, info = session.env.reset(seed=call.get("seed"), options=options)
            session.steps = 0
            return {"observation": as_json(observation), "info": info}

        return self._answer_once(session, call, execute)

    def _step(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        def execute() -> dict[str, Any]:
            env = session.env
            if (problem := call.get("problem")) is not None:
                observation, reward, terminated, truncated, info = env.refuse(problem)
            else:
                action = [ToolCall(item["name"], item["arguments"]) for item in call["calls"]]
                observation, reward, terminated, truncated, info = env.step(action)
            session.steps += 1
            if session.horizon is not None and session.steps >= session.horizon:
                truncated = True
            return {
                "observation": as_json(observation, task=False),
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "info": _changing(info),
            }

        return self._answer_once(session, call, execute)

    def _snapshot(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        token = session.env.snapshot()
        session.taken += 1
        name = f"{call['session']}.{session.taken}"
        session.snapshots[name] = token, session.steps
        while len(session.snapshots) > SNAPSHOTS:
            session.snapshots.popitem(last=False)
        return 200, orjson.dumps({"snapshot": name})

    def _restore(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        def execute() -> dict[str, Any]:
            name = call["snapshot"]
            owner = self._sessions.get(name.rpartition(".")[0])
            snapshot = None if owner is None else owner.snapshots.get(name)
            if owner is None or snapshot is None:
                detail = f"no snapshot {name!r} here: it ends with its session, which keeps the last {SNAPSHOTS}"
                raise HttpProblem(410, "unknown-snapshot", detail, field="snapshot", error="WorkerLost")
            if owner.env_id != session.env_id:
                detail = f"snapshot: {name!r} is of {owner.env_id}, the session is of {session.env_id}"
                raise HttpProblem(422, "invalid", detail, field="snapshot")
            observation: Observation = session.env.restore(snapshot[0])
            session.steps = snapshot[1]
            return {"observation": as_json(observation), "episode": session.env.episode, "done": session.env.done}

        return self._answer_once(session, call, execute)

    def _propose(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        space, before = session.env.action_space, call["generator"]
        if space.propose is None:  # type: ignore[attr-defined]
            raise UsageError("this action space samples from a mask only: action_space.sample(mask=[ToolCall(…), …])")
        generator, state, inc = np.random.PCG64(0), int(before["state"]), int(before["inc"])
        if not (state < 2**128 and inc < 2**128 and inc % 2):
            raise HttpProblem(422, "invalid", "generator: not a state of PCG64", field="generator")
        generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": inc},
            "has_uint32": before["has_uint32"],
            "uinteger": before["uinteger"],
        }
        proposal: ToolCall = space.propose(np.random.Generator(generator))  # type: ignore[attr-defined]
        after: Any = generator.state
        body = {
            "call": {"name": proposal.name, "arguments": dict(proposal.arguments)},
            "generator": {
                "state": str(after["state"]["state"]),
                "inc": str(after["state"]["inc"]),
                "has_uint32": after["has_uint32"],
                "uinteger": after["uinteger"],
            },
        }
        return 200, orjson.dumps(body, option=_JSON)

    def _identify(self, session: _HostSession, call: Mapping[str, Any]) -> Answer:
        tasks = session.env.identify_tasks(call["tasks"])
        return 200, orjson.dumps({"tasks": [task._asdict() for task in tasks]}, option=_JSON)


def _changing(info: StepInfo) -> dict[str, Any]:
    """Returns the part of an info that may change from step to step."""
    return {name: value for name, value in info.items() if name not in EPISODE}
