"""Players: each client has one, with an environment of its own from its first reset on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import gymnasium
import orjson

from envsuite.core import Observation, StepInfo, TaskSet, Tool, ToolCall, ToolEnv, UsageError
from envsuite.core.boundary import CodeError, reason
from envsuite.core.errors import EnvsuiteError, WorkerLost, unknown
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.schemas import object_schema
from envsuite.remote.making import horizon_of

log = logging.getLogger("envsuite.serving.bridges")
T = TypeVar("T")
RESET = Tool(
    "reset",
    "Starts an episode, and ends the running one. Returns the task and the first observation. "
    "Without arguments, starts the next task.",
    object_schema(
        {
            "task_id": {"type": "string", "description": "The task to start, by its id."},
            "seed": {
                "type": "integer",
                "minimum": 0,
                "maximum": 2**53,
                "description": "Chooses the task: the same seed gives the same episode everywhere.",
            },
        },
        optional=("task_id", "seed"),
    ),
)
"""The tool that a client needs besides those of an environment."""
NOT_BEGUN = "no episode is running: call reset to start one"
ENDED = "the episode has ended: call reset to start another one"


class BridgeFull(EnvsuiteError):
    """Raised when the maximum number of environments are in use; one must be closed first."""


@dataclass(frozen=True)
class BridgeOffer:
    """An environment that a bridge offers."""

    env_id: str
    urls: tuple[str, ...]
    """Addresses of the servers that play it; empty if it is played here."""
    tools: tuple[Tool, ...]
    tools_change: bool
    """Whether some of them can be called at some times only."""
    horizon: int | None
    """Steps after which an episode is truncated."""
    quick: bool
    """Whether its steps take microseconds, less than handing them to a thread."""
    tasks: TaskSet
    """Its tasks, of all splits."""

    @property
    def about(self) -> str:
        """Describes the environment and how it is played, in a few sentences."""
        tools = ", ".join(tool.name for tool in self.tools)
        limit = "" if self.horizon is None else f" It has at most {self.horizon} steps."
        return (
            f"{self.env_id}, an environment of tasks in text. reset starts an episode and tells the task; the tools "
            f"({tools}) act in it, one step each, until the answer says that the episode has ended.{limit} A step "
            "that makes no sense changes nothing, and its answer says why."
        )


def make(env_id: str, urls: tuple[str, ...]) -> ToolEnv:
    """Makes an environment, without time limit.

    Raises:
        EnvsuiteError: It cannot be made.
    """
    where: dict[str, Any] = {"url": urls} if urls else {}
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=-1, **where).unwrapped
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
        raise unknown("environment", env_id, ENVIRONMENTS) from error
    if not isinstance(env, ToolEnv):
        raise UsageError(f"{env_id} is not a ToolEnv but a {type(env).__name__}")
    return env


def offer(env_id: str, urls: tuple[str, ...] = ()) -> BridgeOffer:
    """Returns the offer of ``env_id``; makes the environment once to read its tools.

    Raises:
        EnvsuiteError: It cannot be made, or has a tool called ``reset``.
    """
    with closing(make(env_id, urls)) as env:
        if any(tool.name == RESET.name for tool in env.tools):
            raise UsageError(f"{env_id} has a tool {RESET.name!r}, the name of what starts an episode in MCP")
        quick = not urls and env_id in ENVIRONMENTS and ENVIRONMENTS[env_id].inline
        return BridgeOffer(env_id, urls, env.tools, env.tools_change, horizon_of(env_id), quick, env.tasks)


@dataclass(frozen=True)
class BridgeTurn:
    """The result of a reset or a step, as JSON values."""

    task: str
    """The instruction."""
    text: str
    """The world's current text."""
    commands: list[str]
    tools: list[str] | None
    """Names of the tools that can be called now; ``None`` where they do not change."""
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the info and the state of the episode."""
        return {**self.info, "terminated": self.terminated, "truncated": self.truncated}


_Fields = tuple[str, str, list[str], list[str] | None, dict[str, Any]]


def _plain(observation: Observation, info: StepInfo) -> _Fields:
    """Returns the first fields of a :class:`BridgeTurn`.

    Raises:
        TypeError: A value of the world is not JSON.
    """
    fields = orjson.loads(orjson.dumps({**observation, "info": info}, option=orjson.OPT_SERIALIZE_NUMPY))
    return fields["task"], fields["text"], fields["commands"], fields.get("tools"), fields["info"]


class Seats:
    """Limits the number of environments of all players.

    Args:
        most: Maximum number of concurrent environments.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        # As many threads as seats: a world that is slow, or hangs, does not block others.
        self._threads = anyio.CapacityLimiter(most)

    async def take(self, offer: BridgeOffer) -> ToolEnv:
        """Makes an environment.

        Raises:
            BridgeFull: No seat is free.
            EnvsuiteError: It cannot be made.
        """
        if self.taken >= self.most:
            raise BridgeFull(f"all {self.most} seats are taken; try again when somebody has left")
        self.taken += 1
        try:
            return await self.run(lambda: make(offer.env_id, offer.urls))
        except BaseException:
            self.taken -= 1
            raise

    async def free(self, env: ToolEnv) -> None:
        """Closes an environment of :meth:`take`."""
        try:
            await self.run(env.close)
        except Exception:  # a bug of the world: the environment is dropped in any case
            log.exception("closing %s failed", type(env).__name__)
        finally:
            self.taken -= 1

    async def run(self, call: Callable[[], T]) -> T:
        """Runs ``call``, which may take long, in a thread; once begun it is not cancelled."""
        return await anyio.to_thread.run_sync(call, limiter=self._threads)


class BridgePlayer:
    """Plays one environment, one episode at a time; concurrent calls are executed one after another.

    Args:
        offer: The environment.
        seats: Source of environments.
    """

    def __init__(self, offer: BridgeOffer, seats: Seats) -> None:
        self.offer, self.seats = offer, seats
        self.steps = 0
        """Number of steps in the episode so far."""
        self.info: dict[str, Any] | None = None
        """Info of the last turn; ``None`` before the first."""
        self._env: ToolEnv | None = None
        self._over: str | None = NOT_BEGUN
        """Why no step can be taken; ``None`` if one can."""
        self._lock = anyio.Lock()
        self._used = anyio.current_time()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that can be called now; all of the environment's before the first episode."""
        return self.offer.tools if self._env is None else self._env.offered

    async def reset(self, seed: int | None = None, task_id: str | None = None) -> BridgeTurn:
        """Starts an episode.

        Raises:
            BridgeFull: No seat is free.
            UnknownTask: The task does not exist; a running episode goes on.
            WorkerLost: The world failed.
        """
        async with self._lock:
            if self._env is None:
                self._env = await self.seats.take(self.offer)
            env, options = self._env, None if task_id is None else {"task_id": task_id}
            turn = BridgeTurn(*await self._play(lambda: _plain(*env.reset(seed=seed, options=options)), quick=False))
            self.steps, self._over, self.info = 0, None, turn.info
            return turn

    async def step(self, call: ToolCall) -> BridgeTurn:
        """Takes a step; the environment answers an invalid action.

        Raises:
            UsageError: No episode is running.
            WorkerLost: The world failed.
        """
        async with self._lock:
            if self._over is not None or self._env is None:
                raise UsageError(self._over or NOT_BEGUN)
            env = self._env

            def step() -> tuple[_Fields, float, bool, bool]:
                observation, reward, terminated, truncated, info = env.step((call,))
                return _plain(observation, info), float(reward), terminated, truncated

            fields, reward, terminated, cut = await self._play(step, self.offer.quick)
            self.steps += 1
            out_of_steps = self.offer.horizon is not None and self.steps >= self.offer.horizon
            truncated = not terminated and (cut or out_of_steps)
            turn = BridgeTurn(*fields, reward, terminated, truncated)
            self.info = turn.info
            if turn.done:
                self._over = ENDED
            return turn

    async def close(self, why: str = NOT_BEGUN) -> None:
        """Frees the seat after the running call; a reset takes another one."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                env, self._env, self._over = self._env, None, why
                if env is not None:
                    await self.seats.free(env)

    async def rest(self, idle_seconds: float) -> None:
        """Frees the seat if there was no call for ``idle_seconds``."""
        if self._env is None or self._lock.locked() or anyio.current_time() - self._used < idle_seconds:
            return
        await self.close(f"nobody called for {idle_seconds:g} s, and the episode was ended: call reset to start one")

    async def _play(self, call: Callable[[], T], quick: bool) -> T:
        self._used = anyio.current_time()
        try:
            return call() if quick else await self.seats.run(call)
        except WorkerLost as error:
            self._over = f"{error}: call reset to start another episode"
            raise
        except Exception as error:  # a bug in one world must not end the games of the others
            if isinstance(error, EnvsuiteError) and not isinstance(error, CodeError):
                raise
            log.exception("%s failed", self.offer.env_id)
            self._over = f"the world failed: {reason(error)}; call reset to start another episode"
            raise WorkerLost(self._over) from error
        finally:
            self._used = anyio.current_time()
