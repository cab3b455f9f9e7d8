"""Environments by their ids: those of envsuite in Gymnasium, and those of another package."""

from __future__ import annotations

import gc
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from driving import answers
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.wrappers import (
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    RecordVideo,
    TimeAwareObservation,
)
from third_party import files_of_new, install

import envsuite
from envsuite.core import ToolCall, UnparsedAction, UsageError
from envsuite.core.errors import UnknownName
from envsuite.core.registration import BUILTIN, ENVIRONMENTS, EnvSpec
from envsuite.core.tools import shorten_reason
from envsuite.serving.bridges.settings import BridgeSettings as BridgeSettings
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from envsuite.testing import check_environment, checks
from envsuite.vector import EnvFactory, make_vector

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
    "TextWorld-v0": ("game_seed", {"games": 40, "level": "custom/w2-o3-q4"}),
    **dict.fromkeys(
        ("Wordle-v0", "Countdown-v0", "TextFrozenLake-v0", "Game2048-v0", "RushHour-v0"), ("game_seed", {})
    ),
}
"""The argument that determines generated tasks, and those that make a few of them."""

WHAT_IMPORTING_LOADS = """
import json, sys
import gymnasium
before = set(sys.modules)
import envsuite
print(json.dumps([sorted(set(sys.modules) - before), sorted(set(gymnasium.registry))]))
"""


def test_importing_envsuite_registers_the_ids_and_loads_nothing_more():
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
def test_wrappers_of_gymnasium_take_the_observations(wrap, env_id):
    images = {"observation": "both"} if env_id == "Sokoban-v0" else {}
    env = wrap(gymnasium.make(env_id, **SMALL.get(env_id, {}), **images))
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    observation, *_ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_flat_observations_and_actions_are_those_that_were_flattened(env_id):
    env = gymnasium.make(env_id, **SMALL.get(env_id, {}))
    for space, value in ((env.observation_space, env.reset(seed=0)[0]), (env.action_space, env.action_space.sample())):
        flat = flatten(space, value)
        assert flat == value and flat in flatten_space(space) and unflatten(space, flat) == value
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_a_video_is_recorded_of_what_has_images_and_refused_of_the_rest(env_id, tmp_path):
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
def test_what_an_agent_says_is_not_repeated_at_any_length(env_id, where):
    env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=-1, **SMALL.get(env_id, {}), **where)
    env.reset(seed=0)
    long = "y" * 1_000_000
    wrong: list[Any] = [(ToolCall(long, {}),), UnparsedAction(long)]
    for tool in env.unwrapped.tools:
        for name in tool.parameters["properties"]:
            wrong += [(ToolCall(tool.name, {name: said}),) for said in (long, f"get 1 {long}", {long: long}, [long])]
    for action in wrong:
        if env.unwrapped.done:  # type: ignore[attr-defined]
            env.reset(seed=0)
        observation, _, _, _, info = env.step(action)
        assert len(observation["text"]) < 10_000 and len(info["state_key"]) < 10_000
        assert info["error"] is None or len(info["error"]) <= 1_000
    env.reset(seed=0)
    _, _, _, _, info = env.step(UnparsedAction(f"no action in {long}"))
    assert info["error"].startswith("no action in yyy") and "… (1,000,013 characters) …yyy" in info["error"]


@pytest.mark.parametrize("env_id", IDS)
def test_an_argument_that_an_environment_does_not_have_is_named_with_the_nearest_and_the_known_ones(env_id, where):
    with pytest.raises(UnknownName) as caught:
        gymnasium.make(env_id, splitt="train", **where)
    told = str(caught.value)
    assert f"unknown argument of {env_id} 'splitt'. Nearest: 'split'. Known: split, " in told
    assert "source" in told and "\n" not in told


def test_gymnasium_finds_ids_by_the_name_of_the_package_alone():
    code = f"import gymnasium; print([gymnasium.make('envsuite:' + env_id).spec.id for env_id in {IDS}])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(IDS)


@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id != "BFCL-v0"])  # which has its package's alone
def test_the_source_generated_is_made_from_a_seed_in_every_environment(env_id, where):
    assert env_id in MADE, "enter the seed of its source 'generated' into MADE"
    seed, small = MADE[env_id]
    one, same, other = (
        gymnasium.make(env_id, source="generated", **small, **{seed: number}, **where).unwrapped.tasks  # type: ignore[attr-defined]
        for number in (1, 1, 2)
    )
    assert one == same and one.hash == same.hash != other.hash
    assert one.types.keys().isdisjoint(other.types)


@pytest.mark.parametrize(("mode", "env_id"), [*(("sync", env_id) for env_id in IDS), ("async", "TextCraft-v0")])
def test_gymnasiums_own_vectors_play_every_environment(env_id, mode, where):
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


def test_a_vector_of_processes_leaves_nothing_behind(tmp_path, monkeypatch):
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on Python's path, with the package."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, files_of_new(tmp_path_factory.mktemp("new"), "errand", "--package"))
    return folder


@pytest.fixture(scope="module")
def errand(site: Path) -> Iterator[str]:
    """The id of the environment, registered in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        importlib.invalidate_caches()
        envsuite.register_envs()
        yield "Errand-v0"
        del ENVIRONMENTS["Errand-v0"], gymnasium.registry["Errand-v0"]


@pytest.fixture(scope="module")
def there(errand: str) -> Iterator[dict[str, Any]]:
    """Arguments of ``gymnasium.make`` that play it on a server with a worker, over real sockets."""
    with serving(ServerSettings((errand,), port=0, workers=1)) as running:
        yield {"url": running.url}


def go(place: Any) -> tuple[ToolCall, ...]:
    return (ToolCall("go", {"place": place}),)


@pytest.mark.parametrize("first", ["envsuite", "errand.env", "gymnasium"])
def test_an_installed_package_is_registered_by_importing_envsuite_whatever_was_imported_before(site, first):
    code = (
        f"import {first}, sys, envsuite; assert 'errand.env' not in sys.modules or {first!r} == 'errand.env'\n"
        "import gymnasium; print(gymnasium.make('Errand-v0').reset(options={'task_id': 'lamp-mill-castle'})[0]['task'])"
    )
    path = ":".join([str(site), *sys.path])
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path}, check=False)
    assert run.stdout == "Bring the lamp from the mill to the castle.\n", run.stderr


def test_it_passes_the_checker(errand):
    assert "server" in {check.run.__name__ for check in checks(errand)}
    check_environment(ENVIRONMENTS[errand])


@pytest.mark.parametrize(("workers", "remote"), [(1, False), (0, True)])
def test_it_is_played_by_a_vector(errand, there, workers, remote):
    with make_vector([EnvFactory(errand, there if remote else {})], 3, workers) as vector:
        for slot in range(3):
            vector.reset(slot, 0, task_id="lamp-mill-castle")
        assert set(answers(vector, 3)) == {0, 1, 2}
        vector.step(0, go("mill"))
        vector.refuse(1, "no call")
        vector.step(2, (ToolCall("put", {}),))
        events = answers(vector, 3)
        assert [events[slot].observation["text"] for slot in range(3)] == [
            "You are at the mill.", "Invalid action: no call. Tools: go, take, put.", "You carry nothing.",
        ]  # fmt: skip


def test_the_command_line_lists_it_and_its_tasks(errand, console):
    shown, _ = console("envs list")
    assert re.search(r"^Errand-v0 +6  errand$", shown, re.MULTILINE) and all(env_id in shown for env_id in ENVIRONMENTS)
    assert console(f"envs tasks {errand} --split test")[0].splitlines()[0] == "test\tparcel\tbread-bakery-castle"


def test_another_environment_of_the_same_id_is_refused_and_the_same_again_is_not(errand):
    envsuite.register(ENVIRONMENTS[errand])
    with pytest.raises(
        UsageError, match=r"other.env:Errand cannot be registered as Errand-v0, which is errand.env:Errand"
    ):
        envsuite.register(EnvSpec(errand, "other.env:Errand", 20))
    assert ENVIRONMENTS[errand].entry_point == "errand.env:Errand"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("BROKEN = 1 / 0", "ZeroDivisionError"),
        ("OTHER = 1", "AttributeError"),
        ("BROKEN = 'Broken-v0'", "it is a str, not an envsuite.core.registration.EnvSpec"),
        ("from envsuite import EnvSpec\nBROKEN = EnvSpec('WebShop-v0', 'broken.env:Shop', 5)", "choose another id"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_told_of_and_takes_no_other_along(tmp_path, site, spec, said):
    pyproject = '[project]\nname = "aaa"\nversion = "1"\n[project.entry-points."envsuite.environments"]\n'
    install(tmp_path, {"broken.py": spec, "pyproject.toml": pyproject + 'broken = "broken:BROKEN"\n'})
    code = "import envsuite, gymnasium; print({'Errand-v0', 'WebShop-v0'} <= set(gymnasium.registry))"
    path = ":".join([str(tmp_path), str(site), *sys.path])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert run.stdout == "True\n"
    assert "the entry point broken = 'broken:BROKEN' of envsuite.environments" in run.stderr and said in run.stderr
