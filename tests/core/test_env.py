"""Episodes of any environment: calls, misuse, observations, and snapshots that go on nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from lamps import TASKS, Lamps
from test_registration import MADE

from envsuite.core import Pixels, ToolCall, ToolEnv, UnknownName, UnknownTask, UsageError
from envsuite.remote import RemoteEnv
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings

LOOK = ToolCall("look", {})


def switch(lamp: int) -> ToolCall:
    return ToolCall("switch", {"lamp": lamp})


Make = Callable[..., ToolEnv]


@pytest.fixture(scope="module")
def lamps(where: dict[str, Any]) -> Iterator[Make]:
    """Makes the environment, here or on a server."""
    if not where:
        yield Lamps
        return
    gymnasium.register("Lamps-v0", entry_point=Lamps, max_episode_steps=10)
    with serving(ServerSettings(("Lamps-v0",), port=0, workers=0)) as server:
        yield partial(RemoteEnv, server.url, "Lamps-v0")
    del gymnasium.registry["Lamps-v0"]


@pytest.fixture
def started(lamps: Make) -> Make:
    """Makes the environment and starts a task."""

    def start(task_id: str = "three") -> ToolEnv:
        env = lamps()
        env.reset(options={"task_id": task_id})
        return env

    return start


def seen(env: ToolEnv) -> str:
    """Which lamps are on."""
    return env.step([LOOK])[0]["text"]


@pytest.mark.parametrize("second", [ToolCall("switch", {}), ToolCall("nothing", {})], ids=str)
def test_where_one_call_is_malformed_none_is_executed(second, started):
    env = started()
    observation, _, _, _, info = env.step([switch(0), second])
    assert not info["valid"] and "switch, look" in observation["text"] and seen(env) == "..."


@pytest.mark.parametrize(
    ("calls", "text", "error", "shown"),
    [
        ([switch(7)], "No lamp 7 is off.", "no lamp 7 is off", "..."),
        ([switch(2), switch(0), LOOK], "..o\n\no.o\n\no.o", None, "o.o"),
        ([switch(0), switch(0), switch(1)], "o..\n\nNo lamp 0 is off.\n\noo.", "no lamp 0 is off", "oo."),
        ([switch(0), switch(1), LOOK], "o.\n\noo", None, "oo"),  # over, so nothing is looked at
    ],
    ids=["refused by the world", "all executed", "one refused", "ended"],
)
def test_calls_are_executed_in_order_to_the_end_and_one_that_is_refused_makes_the_step_invalid(
    calls, text, error, shown, started
):
    env, done = started("three" if len(shown) == 3 else "two"), "." not in shown
    observation, reward, terminated, _, info = env.step(calls)
    assert (observation["text"], reward, terminated, info["success"]) == (text, float(done), done, done)
    assert (info["valid"], info["error"]) == (error is None, error)
    if error is None:
        assert info["metrics"] == {"lamps_on": shown.count("o")} and info["score"] == shown.count("o") / len(shown)
    assert done or seen(env) == shown


def test_steps_and_the_observation_of_now_are_there_while_an_episode_is_under_way(lamps):
    env = lamps()
    with pytest.raises(UsageError, match=r"before reset; call reset\(\) first"):
        env.step([LOOK])
    with pytest.raises(UsageError, match=r"no running episode; call reset\(\) first"):
        _ = env.observation
    assert env.done
    observation, _ = env.reset(options={"task_id": "two"})
    assert env.observation == observation and not env.done
    observation, *_ = env.step([switch(1)])
    assert env.observation == observation and env.observation["text"] == ".o"
    env.step([switch(0)])
    assert env.done
    with pytest.raises(UsageError, match=r"after the episode has ended; call reset\(\) first"):
        env.step([LOOK])
    with pytest.raises(UsageError, match="no running episode"):
        _ = env.observation


def test_a_reset_without_seed_or_id_goes_through_the_split_in_its_order(lamps):
    env = lamps()
    assert [env.reset()[1]["task_id"] for _ in range(5)] == ["two", "three", "two", "three", "two"]
    env = lamps(split="test")
    assert [env.reset()[1]["task_id"] for _ in range(5)] == ["four", "five", "six", "four", "five"]
    after = {env.reset(seed=seed)[1]["task_id"]: env.reset()[1]["task_id"] for seed in range(20)}
    assert after == {"four": "five", "five": "six", "six": "four"}


def test_misuse_raises_and_says_what_exists(lamps):
    for error, said, call in (
        (UnknownTask, "three", lambda: lamps().reset(options={"task_id": "tree"})),
        (UsageError, r"\['task'\]; known: task_id", lambda: lamps().reset(options={"task": "two"})),
        (UnknownTask, "'train'", lambda: lamps(split="tran")),
        (UsageError, "'empty' of Lamps-v0 has no tasks; there are: ", lambda: lamps(split="empty").reset()),
        (UnknownName, "'ansi'", lambda: lamps(render_mode="human")),
    ):
        with pytest.raises(error, match=said):
            call()


def test_the_state_key_is_the_identity_of_the_state(started):
    one, other = started(), started()
    one.step([switch(0)])
    key = one.step([switch(1)])[4]["state_key"]
    other.step([switch(1)])
    assert other.step([LOOK])[4]["state_key"] != key
    assert other.step([switch(0)])[4]["state_key"] == key


def test_ansi_rendering_shows_the_task_and_where_the_episode_stands(lamps):
    env = lamps(render_mode="ansi")
    assert env.render() is None
    env.reset(options={"task_id": "two"})
    env.step([switch(1)])
    assert env.render() == "Switch two lamps on.\n\n.o"


class LampsInSight(Lamps):
    """Lamps that are shown, too: a pixel for each."""

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        ToolEnv.__init__(self, TASKS, split, render_mode, images=True)
        self.lamps = ()

    def _view(self) -> tuple[Pixels, ...]:
        return (np.repeat(np.array([[255 * lamp for lamp in self.lamps]], np.uint8)[:, :, None], 3, 2),)


def test_every_observation_shows_the_world_as_it_is_then_whatever_became_of_the_action():
    env = LampsInSight()
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(options={"task_id": "three"})
    for action, lamps in (
        ((), (0, 0, 0)),  # no call
        ((switch(1),), (0, 1, 0)),
        ((switch(1),), (0, 1, 0)),  # refused by the world
        ((switch(-1),), (0, 1, 0)),  # refused by the schema
        ((switch(0), switch(1), switch(2)), (1, 1, 1)),
    ):
        assert env.observation_space.contains(observation)
        observation, *_ = env.step(action)
        assert [int(pixel[0]) // 255 for pixel in observation["images"][0][0]] == list(lamps)


def test_an_environment_that_promises_images_and_has_none_says_so():
    class Blind(LampsInSight):
        _view = ToolEnv._view

    with pytest.raises(UsageError, match="Blind has no images"):
        Blind().reset(seed=0)


@pytest.fixture(scope="module")
def make_env(make_env: Callable[..., ToolEnv], where: dict[str, Any]) -> Callable[..., ToolEnv]:
    """Makes the environment of an id, here and on a server."""
    return partial(make_env, **where)


@pytest.mark.slow_remote
@pytest.mark.parametrize("env_id", MADE)
def test_a_snapshot_of_other_data_is_refused_and_the_episode_goes_on(env_id, make_env):
    seed, small = MADE[env_id]
    env, same, other = (make_env(env_id, source="generated", **small, **{seed: number}) for number in (1, 1, 2))
    env.reset(seed=0)
    env.action_space.seed(0)
    env.step(env.action_space.sample())
    begun, _ = other.reset(seed=0)
    token, before = env.snapshot(), other.episode
    assert same.restore(token) == env.observation
    with pytest.raises(UsageError, match=r"the snapshot is of data .*\(here .*the same arguments"):
        other.restore(token)
    assert other.episode == before and other.observation == begun
    other.step(other.action_space.sample())
    for one in (env, same, other):
        one.close()


def test_a_snapshot_of_another_search_or_environment_is_refused(make_env):
    gold, lexical = (make_env("PaperSearch-v0", papers=200, selector=name) for name in ("gold", "lexical"))
    team = make_env("PaperSearchTeam-v0", papers=200)
    for env, said in ((gold, r"selector 'gold' \(here 'lexical'\)"), (team, "environment 'PaperSearchTeam-v0'")):
        env.reset(seed=0)
        with pytest.raises(UsageError, match=f"the snapshot is of {said}"):
            lexical.restore(env.snapshot())
