from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.wrappers import (
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    RecordVideo,
    TimeAwareObservation,
)

from envsuite.core import ToolCall, UnparsedAction
from envsuite.core.errors import UnknownName
from envsuite.core.registration import BUILTIN, ENVIRONMENTS
from envsuite.core.tools import shorten_reason

IDS = list(ENVIRONMENTS)
SMALL = {
    "ALFWorld-v0": {"games": 18},
    "WebShop-v0": {"products": 100},
    "PaperSearch-v0": {"papers": 2_000},
    "PaperSearchTeam-v0": {"papers": 2_000},
}
"""Arguments of environments whose defaults make a lot on first use."""
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "TextCraft-v0": ("book_seed", {"goals": 40}),
    "ALFWorld-v0": ("scene_seed", SMALL["ALFWorld-v0"]),
    "WebShop-v0": ("shop_seed", SMALL["WebShop-v0"]),
    "PaperSearch-v0": ("corpus_seed", SMALL["PaperSearch-v0"]),
    "PaperSearchTeam-v0": ("corpus_seed", SMALL["PaperSearch-v0"]),
    "Sokoban-v0": ("level_seed", {"levels": 40}),
    "Bifurcation-v0": ("map_seed", {}),
    "PythonMath-v0": ("problem_seed", {"problems": 40}),
    "SearchQA-v0": ("corpus_seed", {"entities": 100, "questions": 20}),
    "BabyAI-v0": ("world_seed", {"worlds": 40}),
}
"""The argument that determines generated tasks, and those that make a few of them."""

WHAT_IMPORTING_LOADS = """
import json, sys
import gymnasium
before = set(sys.modules)
import envsuite
print(json.dumps([sorted(set(sys.modules) - before), sorted(set(gymnasium.registry))]))
"""


def test_importing_envsuite_registers_the_ids_and_loads_nothing_more() -> None:
    run = subprocess.run([sys.executable, "-c", WHAT_IMPORTING_LOADS], capture_output=True, text=True, check=True)
    loaded, registered = json.loads(run.stdout)
    beyond = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert {"envsuite", "envsuite.exits", "envsuite.core.registration"} <= {*beyond}
    beside = [name for name in beyond if not name.startswith(("envsuite.core", "jsonschema_rs", "orjson"))]
    folders = {place.partition(":")[0] for place in BUILTIN}
    folders |= {module.removesuffix(".spec") for module in folders}
    mine = {name for name in beside if name.partition(".")[0] != "mutmut"}  # which is there when it tries a mutant
    assert mine == {"envsuite", "envsuite.exits", *folders}
    assert set(IDS) <= set(registered)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize(
    "wrap",
    [
        TimeAwareObservation,
        FlattenObservation,
        partial(FrameStackObservation, stack_size=2),
        partial(DelayObservation, delay=1),
    ],
)
def test_wrappers_of_gymnasium_take_the_observations(wrap: Callable[..., gymnasium.Env[Any, Any]], env_id: str) -> None:
    images = {"observation": "both"} if env_id == "Sokoban-v0" else {}
    env = wrap(gymnasium.make(env_id, **SMALL.get(env_id, {}), **images))
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    observation, *_ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_flat_observations_and_actions_are_those_that_were_flattened(env_id: str) -> None:
    env = gymnasium.make(env_id, **SMALL.get(env_id, {}))
    for space, value in ((env.observation_space, env.reset(seed=0)[0]), (env.action_space, env.action_space.sample())):
        flat = flatten(space, value)
        assert flat == value and flat in flatten_space(space) and unflatten(space, flat) == value
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_a_video_is_recorded_of_what_has_images_and_refused_of_the_rest(env_id: str, tmp_path: Path) -> None:
    if env_id != "Sokoban-v0":
        with pytest.raises(UnknownName, match=r"unknown render mode 'rgb_array'\. Known: ansi"):
            gymnasium.make(env_id, render_mode="rgb_array")
        return
    pytest.importorskip("moviepy")
    env = RecordVideo(gymnasium.make(env_id, render_mode="rgb_array"), str(tmp_path), episode_trigger=lambda _: True)
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]


@pytest.mark.parametrize("env_id", IDS)
def test_what_an_agent_says_is_not_repeated_at_any_length(env_id: str, where: dict[str, Any]) -> None:
    env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=-1, **SMALL.get(env_id, {}), **where)
    env.reset(seed=0)
    long = "y" * 1_000_000
    wrong: list[Any] = [(ToolCall(long, {}),), UnparsedAction(long)]
    for tool in env.unwrapped.tools:
        for name in tool.parameters["properties"]:
            wrong += [(ToolCall(tool.name, {name: said}),) for said in (long, f"get 1 {long}", {long: long}, [long])]
    for action in wrong:
        observation, _, _, _, info = env.step(action)
        assert len(observation["text"]) < 10_000 and len(info["state_key"]) < 10_000
        assert info["error"] is None or len(info["error"]) <= 1_000
    env.reset(seed=0)
    _, _, _, _, info = env.step(UnparsedAction(f"no action in {long}"))
    assert info["error"].startswith("no action in yyy") and "… (1,000,013 characters) …yyy" in info["error"]


@pytest.mark.parametrize("env_id", IDS)
def test_an_argument_that_an_environment_does_not_have_is_named_with_the_nearest_and_the_known_ones(
    env_id: str, where: dict[str, Any]
) -> None:
    with pytest.raises(UnknownName) as caught:
        gymnasium.make(env_id, splitt="train", **where)
    told = str(caught.value)
    assert f"unknown argument of {env_id} 'splitt'. Nearest: 'split'. Known: split, " in told
    assert "source" in told and "\n" not in told


def test_gymnasium_finds_ids_by_the_name_of_the_package_alone() -> None:
    code = f"import gymnasium; print([gymnasium.make('envsuite:' + env_id).spec.id for env_id in {IDS}])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(IDS)


@pytest.mark.parametrize("env_id", IDS)
def test_the_source_generated_is_made_from_a_seed_in_every_environment(env_id: str, where: dict[str, Any]) -> None:
    assert env_id in MADE, "enter the seed of its source 'generated' into MADE"
    seed, small = MADE[env_id]
    one, same, other = (
        gymnasium.make(env_id, source="generated", **small, **{seed: number}, **where).unwrapped.tasks  # type: ignore[attr-defined]
        for number in (1, 1, 2)
    )
    assert one == same and one.hash == same.hash != other.hash
    assert one.types.keys().isdisjoint(other.types)


@pytest.mark.parametrize(("mode", "env_id"), [*(("sync", env_id) for env_id in IDS), ("async", "TextCraft-v0")])
def test_gymnasiums_own_vectors_play_every_environment(env_id: str, mode: str, where: dict[str, Any]) -> None:
    alone = [gymnasium.make(env_id, **SMALL.get(env_id, {}), **where) for _ in range(2)]
    envs = gymnasium.make_vec(env_id, num_envs=2, vectorization_mode=mode, **SMALL.get(env_id, {}), **where)
    try:
        seen, infos = envs.reset(seed=[3, 4])
        begun = [env.reset(seed=seed) for env, seed in zip(alone, (3, 4), strict=True)]
        for env in alone:
            env.action_space.seed(0)
        for _ in range(3):
            for name in ("task", "text", "commands"):
                assert list(seen[name]) == [observation[name] for observation, _ in begun]
            assert list(infos["state_key"]) == [info["state_key"] for _, info in begun]
            actions = [env.action_space.sample() for env in alone]
            taken = [env.step(action) for env, action in zip(alone, actions, strict=True)]
            before = seen
            seen, rewards, terminated, truncated, infos = envs.step(actions)
            assert [list(rewards), list(terminated), list(truncated)] == [
                [step[part] for step in taken] for part in (1, 2, 3)
            ]
            assert list(before["text"]) == [observation["text"] for observation, _ in begun], "a copy stays as it was"
            begun = [(step[0], step[4]) for step in taken]
    finally:
        envs.close()
        for env in alone:
            env.close()


def test_a_vector_of_processes_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    envs = gymnasium.make_vec("TextCraft-v0", 2, "async", vector_kwargs={"context": "spawn", "copy": False})
    seen, _ = envs.reset(seed=[1, 2])
    envs.step([(ToolCall("env_step", {"command": command}),) for command in ("x" * 100_000, "inventory")])
    texts = (shorten_reason("Could not execute " + "x" * 100_000), "Inventory: You are not carrying anything.")
    assert seen["text"][:] == texts and seen["text"][-1] == texts[1], "it is no copy, but what is there now"
    assert list(seen["commands"]) == [(), ()]
    assert list(tmp_path.iterdir())
    envs.close()
    del envs, seen
    gc.collect()
    assert not list(tmp_path.iterdir())
