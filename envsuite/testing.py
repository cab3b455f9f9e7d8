"""Checks of any registered environment, those of other packages too.

    import pytest
    from envsuite.testing import checks

    @pytest.mark.parametrize("check", checks("Dial-v0"), ids=str)
    def test_dial_keeps_the_contract(check):
        check()

:func:`check_environment` runs all of them. A check that fails raises an ``AssertionError`` that names the check, the
environment, the seed or task id, what was expected, and what came. Neither pytest nor Hypothesis is needed.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import product
from threading import Barrier
from typing import Any, get_args

import gymnasium
from gymnasium.utils.env_checker import check_env, data_equivalence

from envsuite.core import Action, Observation, ToolCall, ToolEnv
from envsuite.core.env import StepInfo
from envsuite.core.errors import EnvsuiteError
from envsuite.core.naming import spec_of
from envsuite.core.processes import Child, frame, receive
from envsuite.core.registration import ENVIRONMENTS, EnvSpec, register
from envsuite.core.tools import Tool, UnparsedAction
from envsuite.remote.making import make_player
from envsuite.vector.milestones import REACHED, TOTAL, UNGUIDED, Kind, MilestoneFactory

SEEDS = (0, 1, 2)
STEPS = 4
"""Sampled actions of an episode."""
THREADS = 4
Env = gymnasium.Env[Observation, Action]


@dataclass(frozen=True)
class Check:
    """One check of one environment; calling it runs it."""

    env_id: str
    run: Callable[[Check], None]
    """One of the functions of this module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``."""
    opened: list[Env] = field(default_factory=list, init=False, repr=False)
    """Environments that the check has made, and closes."""

    def __str__(self) -> str:
        made = ", ".join(f"{name}={value}" for name, value in self.kwargs.items())
        return f"{self.env_id}{made and f'({made})'}-{self.run.__name__}"

    def __call__(self) -> None:
        """Runs the check.

        Raises:
            AssertionError: The environment fails it.
        """
        try:
            self.run(self)
        finally:
            while self.opened:
                self.opened.pop().close()

    def make(self, **more: Any) -> Env:
        """Makes the environment, without Gymnasium's passive checker; it is closed after the check."""
        env: Env = gymnasium.make(self.env_id, disable_env_checker=True, **{**self.kwargs, **more})
        self.opened.append(env)
        assert isinstance(env.unwrapped, ToolEnv), f"{self}: expected a ToolEnv, got {type(env.unwrapped).__name__}"
        return env

    def world(self, **more: Any) -> ToolEnv:
        """Makes the environment, without wrappers."""
        return self.make(**more).unwrapped  # type: ignore[return-value]

    def same(self, where: str, expected: object, came: object) -> None:
        """Asserts that two values are equal, also arrays in them."""
        assert data_equivalence(expected, came), f"{self}, {where}: expected {expected!r}, got {came!r}"

    def refuses(self, what: str, call: Callable[[], object]) -> str:
        """Asserts that a call raises an error of envsuite; returns its message."""
        try:
            came = call()
        except EnvsuiteError as error:
            return str(error)
        raise AssertionError(f"{self}: expected {what} to raise an EnvsuiteError, got {came!r}")


def check_environment(environment: str | EnvSpec, **kwargs: Any) -> None:
    """Runs all checks on an environment.

    Args:
        environment: Id of a registered environment; or a specification, or the path of a file, which is registered.
        kwargs: Arguments of ``gymnasium.make``.

    Raises:
        AssertionError: The environment fails a check.
    """
    for check in checks(environment, **kwargs):
        check()


def checks(environment: str | EnvSpec, **kwargs: Any) -> list[Check]:
    """Returns the checks that apply to an environment; arguments as of :func:`check_environment`."""
    if isinstance(environment, EnvSpec):
        register(environment)
        environment = environment.id
    spec = spec_of(environment)
    environment = spec.id
    runs = [*ANYWHERE, *(() if "url" in kwargs else (processes,))]
    if spec.players:
        runs.append(players)
    if spec.milestones and "expert" in spec.players:
        runs.append(milestones)
    if find_spec("flask") is not None and "url" not in kwargs:
        runs.append(server)
    return [Check(environment, run, kwargs) for run in runs]


def contract(check: Check) -> None:
    """Gymnasium's checker warns of nothing, and infos have the keys of the contract."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(check.world(render_mode="ansi"))
    _, info = check.make().reset(seed=SEEDS[0])
    required = {name for name, kind in StepInfo.__annotations__.items() if "NotRequired" not in str(kind)}
    missing = required - info.keys()
    assert not missing, f"{check}, seed {SEEDS[0]}: expected all keys of StepInfo, {sorted(missing)} are missing"


def splits(check: Check) -> None:
    """A task is in one split, the tasks are the same each time, and are drawn from their split, in its order."""
    tasks, again = check.world(split=None).tasks, check.world(split=None).tasks
    check.same("hash of the tasks", tasks.hash, again.hash)
    ids = [task for members in tasks.splits.values() for task in members]
    check.same("number of different task ids", len(ids), len(set(ids)))
    check.same("ids with a type", set(ids), set(tasks.types))
    for split, members in tasks.splits.items():
        env = check.make(split=split)
        for expected in members[:2]:
            _, info = env.reset()
            where = f"reset of {split!r}"
            check.same(where, (expected, split, tasks.types[expected]), _task_facts(info))


def goals(check: Check) -> None:
    """The goal of a task is told without starting it, and its identity is plain JSON."""
    env, other, third = check.world(), check.world(), check.world()
    for seed in SEEDS:
        observation, info = env.reset(seed=seed)
        task = info["task_id"]
        (told,) = other.identify_tasks([task])
        check.same(f"goal of task {task!r}", observation["task"], told.goal)
        check.same(f"identity of task {task!r}", json.loads(json.dumps(told.identity)), third.identity(task))


def episodes(check: Check) -> None:
    """A seed, or the id of its task, gives the same episode in each environment; all of it fits the spaces."""
    for seed in SEEDS:
        one, other, third = check.make(), check.make(), check.make()
        first = one.reset(seed=seed)
        task = first[1]["task_id"]
        check.same(f"seed {seed}, reset", first, other.reset(seed=seed))
        check.same(f"task {task!r}, reset", first, third.reset(options={"task_id": task}))
        for where, action in _sample_actions(check, one, seed, task):
            result = one.step(action)
            assert result[0] in one.observation_space, f"{check}, {where}: expected its space, got {result[0]!r}"
            for env in (other, third):
                check.same(where, _comparable(result), _comparable(env.step(action)))
            if result[2] or result[3]:
                break


def malformed_actions(check: Check) -> None:
    """A malformed action costs a step, changes nothing, and the text says why it was refused."""
    for malformed in _unfit_actions(check.world()):
        env, untouched = check.make(max_episode_steps=2), check.make(max_episode_steps=2)
        begun, info = env.reset(seed=SEEDS[0])
        untouched.reset(seed=SEEDS[0])
        where = f"task {info['task_id']!r}, {malformed!r}"
        observation, reward, terminated, truncated, info = env.step(malformed)
        came = (reward, terminated, truncated, info["valid"], observation["commands"])
        expected = (0.0, False, False, False, begun["commands"])
        check.same(f"{where}: reward, terminated, truncated, valid, commands", expected, came)
        assert info["error"] and info["error"] in observation["text"], (
            f"{check}, {where}: expected the error {info['error']!r} in the text, got {observation['text']!r}"
        )
        for at, action in _sample_actions(check, env, SEEDS[0], info["task_id"], 1):
            result = env.step(action)
            check.same(f"{at}, after {malformed!r}", _comparable(untouched.step(action))[:3], _comparable(result)[:3])
            check.same(f"{where} counts as a step: ended after 2", True, result[2] or result[3])


def any_actions(check: Check, count: int = 200) -> None:
    """Random actions of any form raise nothing, and are answered within the spaces and with a text that is not endless.

    Args:
        check: The check.
        count: Number of actions.
    """
    env, draw = check.world(), random.Random(SEEDS[0])
    for step in range(count):
        if env.done:
            _, info = env.reset(seed=step)
        action = _random_action(env.tools, draw)
        where = f"task {info['task_id']!r}, random action {step}, {action!r:.200}"
        observation, _, _, _, info = env.step(action)
        assert observation in env.observation_space, f"{check}, {where}: expected its space, got {observation!r}"
        check.same(f"{where}, valid without an error", info["error"] is None, info["valid"])
        check.same(f"{where}, score in [0, 1]", True, 0 <= info["score"] <= 1)
        check.same(f"{where}, error of at most 1,000 characters", True, len(info["error"] or "") <= 1_000)


def changing_tools(check: Check) -> None:
    """Observations name the tools that can be called, where these change; another one is refused as unknown."""
    env = check.world()
    for seed in SEEDS:
        observation, info = env.reset(seed=seed)
        for where, action in _sample_actions(check, env, seed, info["task_id"]):
            check.same(f"{where}, observation names its tools", env.tools_change, "tools" in observation)
            names = [tool.name for tool in env.offered]
            check.same(f"{where}, offered tools", [*observation.get("tools", [tool.name for tool in env.tools])], names)
            check.same(f"{where} is of the offered tools", True, {call.name for call in action} <= {*names})
            if absent := [tool.name for tool in env.tools if tool.name not in names]:
                _, _, _, _, info = env.step((ToolCall(absent[0], {}),))
                check.same(f"{absent[0]!r}, not offered", True, f"unknown tool {absent[0]!r}" in (info["error"] or ""))
            observation, _, _, _, info = env.step(action)
            if env.done:
                break


def misuse(check: Check) -> None:
    """A mistake of the program raises an error of envsuite, and does not end the episode."""
    env = check.world()
    check.refuses("step before reset", lambda: env.step(()))
    check.refuses("snapshot before reset", env.snapshot)
    observation, info = env.reset(seed=SEEDS[0])
    for task in ("no such task", "", f"{info['task_id']}#x", f"{info['task_id']}/x"):
        check.refuses(f"reset of the task {task!r}", partial(env.reset, options={"task_id": task}))
    check.refuses("an unknown option of reset", lambda: env.reset(options={"no such option": 1}))
    check.refuses("goal of a task that does not exist", lambda: env.goal("no such task"))
    check.refuses("restore of something else", lambda: env.restore({}))
    check.refuses("an unknown split", lambda: check.make(split="no such split"))
    check.refuses("an unknown render mode", lambda: check.make(render_mode="no such mode").reset())
    check.same("observation after refused calls", observation, env.observation)


def snapshots(check: Check) -> None:
    """A restored episode goes on as the one that the snapshot was taken of, in any environment made alike.

    It does so whenever the same snapshot is restored, and wherever the expert, if it plays here, has led meanwhile.
    """
    here = "url" not in check.kwargs and "expert" in ENVIRONMENTS[check.env_id].players
    for seed in SEEDS:
        env, other = check.world(), check.world()
        if not env.restorable:
            check.refuses("snapshot of what is not restorable", env.snapshot)
            return
        _, info = env.reset(seed=seed)
        for where, action in _sample_actions(check, env, seed, info["task_id"]):
            before, token = env.observation, env.snapshot()
            result = env.step(action)
            for place, again in ((other, pickle.loads(pickle.dumps(token))), (env, token), (env, token)):
                check.same(f"{where}, restored", before, place.restore(again))
                check.same(f"{where}, restored", _comparable(result), _comparable(place.step(action)))
            if here and not env.done:
                with suppress(EnvsuiteError):  # it may have no way from here
                    env.step(make_player(check.env_id, "expert").act(env))
            if env.done:
                break


def rendering(check: Check) -> None:
    """``render_mode="ansi"`` gives text once an episode has begun; without it there is none."""
    env, silent = check.make(render_mode="ansi"), check.world()
    env.reset(seed=SEEDS[0])
    silent.reset(seed=SEEDS[0])
    text: object = env.render()
    assert isinstance(text, str) and text, f"{check}, seed {SEEDS[0]}: expected text, got {text!r}"
    check.same("render() without render_mode", None, silent.render())


def pickles(check: Check) -> None:
    """A pickled copy begins the episodes of the environment, and goes on with one that can be restored."""
    env = check.make()
    for seed in SEEDS:
        copy: Env = pickle.loads(pickle.dumps(env))
        check.opened.append(copy)
        first = env.reset(seed=seed)
        check.same(f"seed {seed}, reset of a copy", first, copy.reset(seed=seed))
        for where, action in _sample_actions(check, env, seed, first[1]["task_id"]):
            result = env.step(action)
            check.same(f"{where}, of a copy", _comparable(result), _comparable(copy.step(action)))
            if result[2] or result[3]:
                break
            if env.unwrapped.restorable:  # type: ignore[attr-defined]
                copy = pickle.loads(pickle.dumps(copy))
                check.opened.append(copy)


def threads(check: Check) -> None:
    """Episodes that are played in several threads at once are those that are played alone."""
    episodes, pool = _episodes_of(check, check.make()), ThreadPoolExecutor(THREADS)
    envs, barrier = [check.make() for _ in range(THREADS)], Barrier(THREADS)

    def play(env: Env) -> list[Any]:
        barrier.wait()
        return _episodes_of(check, env)

    with pool:
        for came in pool.map(play, envs):
            check.same("episodes beside others in threads", episodes, came)


ANYWHERE = (
    *(contract, splits, goals, episodes, malformed_actions, any_actions, changing_tools, misuse, snapshots),
    *(rendering, pickles, threads),
)
"""Checks of every environment, here and on a server."""


def processes(check: Check) -> None:
    """A fresh process with another seed of Python's hashes has the same tasks and episodes."""
    order = pickle.dumps((ENVIRONMENTS[check.env_id], check.kwargs))
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    child = Child("envsuite.testing:play_apart", {"PYTHONHASHSEED": other_seed})
    try:
        child.socket.sendall(frame([order]))
        (answer,) = receive(child.socket)
    except (EOFError, OSError) as error:
        raise AssertionError(f"{check}: expected episodes of a fresh process, but it {child.stop(5.0)}") from error
    finally:
        child.stop()
    check.same("hash of the tasks in a fresh process", check.world().tasks.hash, answer[0])
    for seed, (here, there) in enumerate(zip(_episodes_of(check, check.make()), answer[1], strict=True)):
        check.same(f"seed {SEEDS[seed]}, episode in a fresh process", here, there)


def play_apart(channel: socket.socket) -> None:
    """The main function of the fresh process: plays the episodes of an environment, and tells what came."""
    spec, kwargs = receive(channel)[0]
    register(spec)
    check = Check(spec.id, processes, kwargs)
    channel.sendall(frame([pickle.dumps((check.world().tasks.hash, _episodes_of(check, check.make())))]))
    for env in check.opened:
        env.close()


def players(check: Check) -> None:
    """Each player ends its episodes, the same way each time; the expert, which plays here only, solves them.

    It refuses to play where no episode is running.
    """
    for name in ENVIRONMENTS[check.env_id].players.keys() - ({"expert"} if "url" in check.kwargs else set()):
        for seed in SEEDS:
            played = [(action, info["score"]) for action, info in _play(check, check.make(), seed, name)]
            again = [(action, info["score"]) for action, info in _play(check, check.make(), seed, name)]
            check.same(f"seed {seed}, player {name!r}", played, again)
        player = make_player(check.env_id, name)
        check.refuses(f"player {name!r} before reset", partial(player.act, check.make()))
        ended = check.make()
        for _ in _play(check, ended, SEEDS[0], name):
            pass
        if ended.unwrapped.done:  # type: ignore[attr-defined]
            check.refuses(f"player {name!r} after the end", partial(player.act, ended))


def milestones(check: Check) -> None:
    """The expert reaches milestones, the last one with the solution; counting them changes nothing else."""
    for seed, of in product(SEEDS, get_args(Kind)):
        plain = check.make()
        plain.reset(seed=seed)
        total, last = 0.0, False
        env = MilestoneFactory(check.env_id, check.kwargs, of=of).make()
        for action, info in _play(check, env, seed, "expert"):
            where = f"task {info['task_id']!r}, {action!r}, milestones of the {of}"
            *_, expected = plain.step(action)
            added = {**expected, "metrics": info["metrics"], REACHED: info[REACHED]}
            check.same(where, added, info)
            last, before, total = info[REACHED], total, info["metrics"][TOTAL]
            check.same(f"{where}, {REACHED}", total > before, last)
        check.same(f"seed {seed}, the last step reaches a milestone", True, last or bool(info["metrics"][UNGUIDED]))


def server(check: Check) -> None:
    """An environment on a server passes the same checks, and plays the same episodes as one here."""
    from envsuite.serving.server import serving
    from envsuite.serving.settings import ServerSettings

    with serving(ServerSettings((check.env_id,), port=0, workers=0)) as running:
        remote = {**check.kwargs, "url": running.url}
        for run in (*ANYWHERE, players):
            Check(check.env_id, run, remote)()
        here, there = (check.make(render_mode="ansi", **where) for where in ({}, {"url": running.url}))
        check.same("hash of the tasks", check.world().tasks.hash, check.world(url=running.url).tasks.hash)
        for options in ({"task_id": "no such task"}, {"no such option": 1}):
            errors = [
                check.refuses(f"reset of {options}", partial(env.reset, options=options)) for env in (here, there)
            ]
            check.same(f"error of a reset of {options}", *errors)
        for seed in SEEDS:
            first = here.reset(seed=seed)
            check.same(f"seed {seed}, reset", first, there.reset(seed=seed))
            there.action_space.seed(seed)
            for where, action in _sample_actions(check, here, seed, first[1]["task_id"]):
                check.same(f"{where}, sampled on the server", action, there.action_space.sample())
                result = here.step(action)
                check.same(where, _comparable(result), _comparable(there.step(action)))
                check.same(f"{where}, rendered", here.render(), there.render())
                if result[2] or result[3]:
                    break
        for env in check.opened:
            env.close()


def _task_facts(info: dict[str, Any]) -> tuple[str, str, str]:
    return info["task_id"], info["split"], info["task_type"]


def _episodes_of(check: Check, env: Env) -> list[Any]:
    """Returns what the episodes of all seeds say and pay, with sampled actions."""
    result = []
    for seed in SEEDS:
        lines: list[Any] = [env.reset(seed=seed)]
        for _, action in _sample_actions(check, env, seed, lines[0][1]["task_id"]):
            lines.append((action, *_comparable(env.step(action))))
            if lines[-1][3] or lines[-1][4]:
                break
        result.append(lines)
    return result


def _comparable(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what must be equal of a step's result; metrics may hold times."""
    *start, info = result
    return (*start, {name: value for name, value in info.items() if name != "metrics"})


def _unfit_actions(env: ToolEnv) -> Iterator[Any]:
    """Yields actions that do not fit the tools of an environment."""
    yield from ((), None, "words", (ToolCall("no such tool", {}),), UnparsedAction("no call in the completion"))
    env.reset(seed=SEEDS[0])
    env.action_space.seed(SEEDS[0])
    (call, *_) = env.action_space.sample()
    yield (call,) * (env.max_calls + 1)
    (tool,) = (tool for tool in env.tools if tool.name == call.name)
    changed = [{**call.arguments, "no such argument": 1}]
    for name in call.arguments:
        changed.append({key: value for key, value in call.arguments.items() if key != name})
        changed.append({**call.arguments, name: {"no": "such value"}})
    for arguments in changed:
        if tool.problem(arguments) is not None:  # a schema may have optional arguments, or take any
            yield (ToolCall(call.name, arguments),)


def _random_action(tools: tuple[Tool, ...], draw: random.Random) -> Any:
    """Returns an action that may have any form: seldom one that can be executed."""
    words = ("", " ", "1", "\ud800", "\x00", "🙂" * 9, "y" * 100_000, "look", tools[0].name)
    anything: tuple[Any, ...] = (*words, 1, -1.5, True, None, [], {}, {"": ""}, object())
    names = [tool.name for tool in tools] + ["", "Look"]

    def call() -> Any:
        tool = draw.choice(tools)
        arguments = {key: draw.choice((*words, draw.choice(anything))) for key in tool.parameters.get("properties", {})}
        kind = draw.randrange(5)
        if kind == 0:
            return draw.choice(anything)
        if kind == 1:
            return ToolCall(draw.choice(names), draw.choice(anything))
        return ToolCall(tool.name if kind == 2 else draw.choice(names), arguments)

    return draw.choice(anything) if draw.random() < 0.1 else [call() for _ in range(draw.randrange(4))]


def _sample_actions(
    check: Check, env: gymnasium.Env[Any, Any], seed: int, task: str, count: int = STEPS
) -> Iterator[tuple[str, Action]]:
    """Yields actions that the space samples, one after the other, each with its place for messages."""
    env.action_space.seed(seed)
    for step in range(count):
        action = env.action_space.sample()
        where = f"task {task!r}, step {step}, {action!r}"
        assert env.action_space.contains(action), f"{check}, {where}: expected an action of the space"
        yield where, action


def _play(check: Check, env: Env, seed: int, name: str) -> Iterator[tuple[Action, dict[str, Any]]]:
    """Has a player play an episode; yields each action with its info. The expert must solve the task."""
    player, ended = make_player(check.env_id, name), False
    _, info = env.reset(seed=seed)
    while not ended:
        action = player.act(env)
        _, _, terminated, truncated, info = env.step(action)
        yield action, info
        ended = terminated or truncated
    if name == "expert":
        check.same(f"task {info['task_id']!r}, success of the expert", True, info["success"])
