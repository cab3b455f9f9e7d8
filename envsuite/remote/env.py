"""An environment on a server that behaves like a local one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envsuite.core.boundary import number
from envsuite.core.env import Observation, Outcome, StepInfo, TaskIdentity, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.snapshots import check_same
from envsuite.core.tools import Action, ToolCall
from envsuite.remote.places import Places
from envsuite.remote.protocol import EPISODE, from_json
from envsuite.remote.session import EnvDescription, RemoteSession, describe_environment, plain, step_of
from envsuite.remote.transport import ServerUnreachable

TOKEN = frozenset(("task_id", "steps", "state_key", "url", "snapshot", "of"))


class RemoteEnv(ToolEnv):
    """The environment ``env_id`` of a server: the same tools, tasks, spaces, episodes and errors as the local one.

    The client draws the task of a reset, by the same rules; a session on the server is created on first use. If it is
    lost for a reason other than the episode (the server was restarted, the session idled for too long), the episode is
    replayed up to its last step.

    Args:
        url: Address of an ``envsuite serve http``, or where it is named (:class:`~envsuite.remote.places.Places`); of
            several, one is chosen, and another if that does not answer.
        env_id: Id, as the server lists it.
        render_mode: ``"ansi"`` or ``None``.
        arguments: Arguments of the environment.

    Raises:
        EnvsuiteError: The environment cannot be made with these arguments.
        WorkerLost: No server answers.
    """

    def __init__(self, url: str | Sequence[str], env_id: str, render_mode: str | None = None, **arguments: Any) -> None:
        self._session = RemoteSession(Places(url), env_id, plain(arguments))
        description = _first_description(self._session)
        self.tools, self.max_calls, self.agents = description.tools, description.max_calls, description.agents
        self._name, self._restorable = description.name, description.restorable
        self.tools_change = description.tools_change
        super().__init__(description.tasks, description.split, render_mode, description.versions, description.images)
        self._episode: dict[str, Any] = {}

    @property
    def restorable(self) -> bool:
        """Whether the environment can be snapshot and restored."""
        return self._restorable

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, StepInfo]:
        """Starts an episode: as :meth:`ToolEnv.reset`.

        Raises:
            UnknownTask: The id does not exist.
            UsageError: An option is unknown, or the split is empty.
            WorkerLost: The server does not answer.
        """
        task_id = self._draw(seed, options or {})
        if not isinstance(task_id, str):
            self.tasks.split_of(task_id)  # raises
        answer = self._session.reset(task_id)
        info: Any = answer["info"]
        self._enter({name: info[name] for name in EPISODE}, done=False)
        self._instruction = answer["observation"]["task"]
        return self._see(answer["observation"]), info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Takes a step: as :meth:`ToolEnv.step`.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the episode has ended.
            WorkerLost: The world has failed, or the server does not answer; the episode is lost.
        """
        answer = self._session.step(step_of(action, self.offered, self.max_calls))
        info: Any = answer["info"]
        info.update(self._episode)
        info["versions"] = self.versions.copy()
        self._done = answer["terminated"]
        reward = number(answer["reward"], "the server's reward")
        return self._see(answer["observation"]), reward, self._done, answer["truncated"], info

    def goal(self, task_id: str) -> str:
        """Returns the instruction of a task: as :meth:`ToolEnv.goal`."""
        return self.identify_tasks([task_id])[0].goal

    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns what identifies a task in the original benchmark: as :meth:`ToolEnv.identity`."""
        return self.identify_tasks([task_id])[0].identity

    def identify_tasks(self, task_ids: Sequence[str]) -> list[TaskIdentity]:
        """Returns goal and identity of several tasks, as the server reads them from the files that it plays.

        Raises:
            UnknownTask: A task does not exist.
            WorkerLost: The server does not answer.
        """
        return [TaskIdentity(**facts) for facts in self._session.identify(task_ids)]

    def snapshot(self) -> object:
        """Returns the state of the episode as plain data that can be pickled.

        It has the name of a snapshot that the server keeps for a while, and the actions that lead there.

        Raises:
            UsageError: No episode has been started.
            WorkerLost: The server does not answer.
        """
        return {**self._session.snapshot(), "of": self._of()}

    def restore(self, token: object) -> Observation:
        """Restores a snapshot; returns the observation that was current when it was taken.

        Raises:
            UsageError: ``token`` is not a :meth:`snapshot`, or one of another environment or of other versions.
            UnknownTask: The environment does not have its task.
            WorkerLost: The server does not answer.
        """
        if not isinstance(token, dict) or token.keys() != TOKEN:
            raise UsageError(f"{self._name}.restore takes what snapshot() returned")
        check_same(token["of"], self._of(), self._name)
        answer = self._session.restore(token)
        self._enter(answer["episode"], answer["done"])
        self._instruction = answer["observation"]["task"]
        return self._see(answer["observation"])

    def close(self) -> None:
        """Ends the session on the server."""
        self._session.close()
        self._done = True

    def _enter(self, episode: dict[str, Any], done: bool) -> None:
        """Records the current episode."""
        self._episode = episode
        self._task_id, self._task_type, self._task_split = (episode[k] for k in ("task_id", "task_type", "split"))
        self.versions = dict(episode["versions"])
        self._done = done

    def _see(self, observation: dict[str, Any]) -> Observation:
        self._last = from_json(self._instruction, observation)
        return self._last

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        raise AssertionError("worlds are on the server")

    def _call(self, call: ToolCall) -> Outcome:
        raise AssertionError("worlds are on the server")

    def _state_key(self) -> str:
        raise AssertionError("worlds are on the server")

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        state: Any = rng.bit_generator.state
        numbers, buffer = ("state", "inc"), ("has_uint32", "uinteger")
        generator = {name: str(state["state"][name]) for name in numbers} | {name: state[name] for name in buffer}
        proposal = self._session.propose(generator)
        after = proposal["generator"]
        inner = {name: int(after[name]) for name in numbers}
        rng.bit_generator.state = {**state, "state": inner, **{name: after[name] for name in buffer}}
        return ToolCall(proposal["call"]["name"], proposal["call"]["arguments"])


def _first_description(session: RemoteSession) -> EnvDescription:
    """Returns the description of the environment by the first server that answers."""
    silent: ServerUnreachable | None = None
    if not session.url:
        session.move(session.places.some()[0])
    for url in session.in_turn():
        try:
            return describe_environment(url, session.env_id, session.arguments, session.servers)
        except ServerUnreachable as error:
            silent = error
    assert silent is not None
    raise silent
