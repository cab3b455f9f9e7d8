"""Checks of any registered environment, those of other packages too.

    import pytest
    from envsuite.testing import checks

    @pytest.mark.parametrize("check", checks("Dial-v0"), ids=str)
    def test_it_keeps_the_contract(check):
        check()

``check_environment("Dial-v0")`` runs all of them. A failed check raises an ``AssertionError`` that names the check, the
environment, the seed or task id, what was expected, and what came.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env, data_equivalence

from envsuite.core import Action, ToolCall, ToolEnv
from envsuite.core.env import StepInfo
from envsuite.core.registration import ENVIRONMENTS, EnvSpec, register
from envsuite.remote.making import make_player
from envsuite.vector.milestones import REACHED, TOTAL, UNGUIDED, MilestoneFactory

SEEDS = (0, 1, 2)
OF_TEAMS = {"agent", "rewards"}
"""Keys of infos of environments of several agents."""
STEPS = 4
"""Sampled actions of an episode."""
Env = gymnasium.Env[Any, Action]


@dataclass(frozen=True)
class Check:
    """One check of one environment; calling it runs it."""

    env_id: str
    run: Callable[[Check], None]
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``."""
    made: list[Env] = field(default_factory=list, repr=False)
    """Environments that are closed after the check."""

    def __str__(self) -> str:
        made = [self.env_id, *(f"{name}={value}" for name, value in self.kwargs.items())]
        return f"{' '.join(made)}-{self.run.__name__}"

    def __call__(self) -> None:
        """Runs the check.

        Raises:
            AssertionError: The environment fails it.
        """
        try:
            self.run(self)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the environments that the check has made."""
        while self.made:
            self.made.pop().close()

    def make(self, **more: Any) -> Env:
        """Makes the environment, without Gymnasium's passive checker."""
        env: Env = gymnasium.make(self.env_id, disable_env_checker=True, **{**self.kwargs, **more})
        self.made.append(env)
        return env

    def same(self, where: str, expected: object, came: object) -> None:
        """Asserts that two values are equal, arrays in them too."""
        assert data_equivalence(expected, came), f"{self}, {where}: expected {expected!r}, got {came!r}"


def check_environment(environment: str | EnvSpec, **kwargs: Any) -> None:
    """Runs all checks on an environment, made with ``kwargs``.

    Raises:
        AssertionError: It fails one.
    """
    for check in checks(environment, **kwargs):
        check()


def checks(environment: str | EnvSpec, **kwargs: Any) -> list[Check]:
    """Returns the checks that apply to an environment, made with ``kwargs``; a specification is registered first."""
    if isinstance(environment, EnvSpec):
        register(environment)
        environment = environment.id
    spec = ENVIRONMENTS[environment]
    runs = [contract, splits, episodes, invalid_actions, snapshots, rendering]
    runs += [expert] if "expert" in spec.players else []
    runs += [milestones] if spec.milestones and "expert" in spec.players else []
    runs += [server] if find_spec("waitress") is not None and "url" not in kwargs else []
    return [Check(environment, run, kwargs) for run in runs]


def contract(check: Check) -> None:
    """Gymnasium's checker finds nothing, and infos have the keys of the contract."""
    _gymnasium_finds_nothing(check, check.make(render_mode="ansi"))
    _, info = check.make().reset(seed=SEEDS[0])
    missing = StepInfo.__annotations__.keys() - OF_TEAMS - info.keys()
    assert not missing, f"{check}, seed {SEEDS[0]}: info lacks {sorted(missing)}"


def splits(check: Check) -> None:
    """Task ids are in one split each, have a type, and are the same each time."""
    tasks, again = _world(check.make()).tasks, _world(check.make()).tasks
    check.same("hash of the tasks", tasks.hash, again.hash)
    ids = [task for split in tasks.splits.values() for task in split]
    check.same("number of different task ids", len(ids), len(set(ids)))
    for split, members in tasks.splits.items():
        for task in members[:1]:
            check.same(f"split of task {task!r}", split, check.make().reset(options={"task_id": task})[1]["split"])


def episodes(check: Check) -> None:
    """A seed, or the id of its task, gives the same episode in each environment; sampled actions fit the space."""
    for seed in SEEDS:
        one, other = check.make(), check.make()
        first = one.reset(seed=seed)
        check.same(f"seed {seed}, reset", first, other.reset(seed=seed))
        task = first[1]["task_id"]
        check.same(f"task {task!r}, reset", first, check.make().reset(options={"task_id": task}))
        one.action_space.seed(seed)
        for step in range(STEPS):
            action = one.action_space.sample()
            where = f"task {task!r}, step {step}, {action!r}"
            assert one.action_space.contains(action), f"{check}, {where}: the sample is not in the action space"
            result = one.step(action)
            check.same(where, _seen(result), _seen(other.step(action)))
            if result[2] or result[3]:
                break


def invalid_actions(check: Check) -> None:
    """A malformed action costs a step, changes nothing, and is answered with the reason."""
    name = _world(check.make()).tools[0].name
    for action in ((), None, "words", (ToolCall("no such tool", {}),), (ToolCall(name, {"no such argument": 1}),)):
        env, untouched = check.make(max_episode_steps=2), check.make(max_episode_steps=2)
        _, info = env.reset(seed=SEEDS[0])
        untouched.reset(seed=SEEDS[0])
        where = f"task {info['task_id']!r}, {action!r}"
        observation, reward, terminated, truncated, info = env.step(action)  # type: ignore[arg-type]
        came = (reward, terminated, truncated, info["valid"])
        check.same(f"{where}: reward, terminated, truncated, valid", (0.0, False, False, False), came)
        assert info["error"] and info["error"] in observation["text"], f"{check}, {where}: the text gives no reason"
        env.action_space.seed(0)
        call = env.action_space.sample()
        result = env.step(call)
        check.same(f"{where}, then {call!r}", _seen(untouched.step(call))[:3], _seen(result)[:3])
        assert result[2] or result[3], f"{check}, {where}: the step was not counted"


def snapshots(check: Check) -> None:
    """A restored episode goes on as the one that the snapshot was taken of."""
    env, other = check.make(), check.make()
    if not _world(env).restorable:
        return
    _, info = env.reset(seed=SEEDS[0])
    world, twin = _world(env), _world(other)
    env.action_space.seed(SEEDS[0])
    env.step(env.action_space.sample())
    if world.done:
        return
    seen, token = world.observation, world.snapshot()
    check.same(f"task {info['task_id']!r}, restored", seen, twin.restore(token))
    action = env.action_space.sample()
    result = world.step(action)
    check.same(f"task {info['task_id']!r}, {action!r}", _seen(result), _seen(twin.step(action)))


def rendering(check: Check) -> None:
    """``render_mode="ansi"`` gives text, once an episode has begun."""
    env = check.make(render_mode="ansi")
    env.reset(seed=SEEDS[0])
    text: object = env.render()
    assert isinstance(text, str) and text, f"{check}, seed {SEEDS[0]}: expected text, got {text!r}"


def expert(check: Check) -> None:
    """The expert's actions fit the action space, and solve a task that the seeds draw."""
    ends = {seed: _play(check, check.make(), seed)[-1] for seed in SEEDS}
    scores = {seed: info["score"] for seed, info in ends.items()}
    assert any(info["success"] for info in ends.values()), f"{check}: the expert solves none; scores by seed: {scores}"


def milestones(check: Check) -> None:
    """The expert reaches a milestone of each task that has any, and the count of them is right."""
    for seed in SEEDS:
        reached = 0
        check.made.append(MilestoneFactory(check.env_id, check.kwargs).make())
        for info in _play(check, check.made[-1], seed):
            reached += info[REACHED]
            total = info["metrics"][TOTAL]
            assert total >= reached, (
                f"{check}, seed {seed}: {reached} steps reached a milestone, but {TOTAL} is {total}"
            )
            unguided = info["metrics"][UNGUIDED]
        assert reached or unguided or not total, f"{check}, seed {seed}: the expert reached no milestone of {total}"


def server(check: Check) -> None:
    """The same episode is played over HTTP."""
    from envsuite.serving.server import serving
    from envsuite.serving.settings import Settings

    with serving(Settings((check.env_id,), port=0, workers=0)) as running:
        here, there = check.make(), check.make(url=running.url)
        check.same(f"seed {SEEDS[0]}, reset", here.reset(seed=SEEDS[0]), there.reset(seed=SEEDS[0]))
        here.action_space.seed(SEEDS[0])
        for _ in range(STEPS):
            action = here.action_space.sample()
            result = here.step(action)
            check.same(f"seed {SEEDS[0]}, {action!r}", _seen(result), _seen(there.step(action)))
            if result[2] or result[3]:
                break
        _gymnasium_finds_nothing(check, there)
        check.close()


def _gymnasium_finds_nothing(check: Check, env: Env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check_env(env.unwrapped)
        except (AssertionError, Warning) as error:
            raise AssertionError(f"{check}: {error}") from error


def _world(env: Env) -> ToolEnv:
    world = env.unwrapped
    assert isinstance(world, ToolEnv), f"{type(world).__name__} is not a ToolEnv"
    return world


def _seen(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what must be equal of a step's result: metrics may hold times."""
    return (*result[:4], result[4]["valid"], result[4]["error"], result[4]["score"], result[4]["state_key"])


def _play(check: Check, env: Env, seed: int) -> list[dict[str, Any]]:
    """Has the expert solve a task; returns the info of each step."""
    player, infos, ended = make_player(check.env_id, "expert"), [], False
    task = env.reset(seed=seed)[1]["task_id"]
    while not ended:
        action = player.act(env)
        assert env.action_space.contains(action), f"{check}, task {task!r}: {action!r} is not in the action space"
        _, _, terminated, truncated, info = env.step(action)
        infos.append(info)
        ended = terminated or truncated
    return infos
