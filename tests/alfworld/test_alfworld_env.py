"""ALFWorld-v0: its episodes on each engine, the figures on its page, and the player that a base model imitates."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import gymnasium
import orjson
import pytest
from teaching import played

from envsuite.alfworld.env import ALFWorld, refusal
from envsuite.alfworld.game_file import FAMILIES, GAME, read_game
from envsuite.alfworld.player import LABELS, ALFWorldPlanner
from envsuite.alfworld.reference import default_pool
from envsuite.alfworld.source import games_of
from envsuite.alfworld.tasks import PUBLISHED, load
from envsuite.core import DataError, ToolCall, ToolEnv, UnknownTask, UsageError
from envsuite.vector import EnvFactory, LocalVector

LAPTOP = "look_at_obj_in_light-Laptop-None-DeskLamp-328/trial_T20190908_201550_622420"
NOTHING = "Nothing happens."


@pytest.fixture(params=["native", pytest.param("textworld", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, games_root: Path) -> dict[str, Any]:
    """Arguments of an environment on the real games, with each engine."""
    if request.param == "textworld":
        try:
            installed("textworld"), installed("alfworld")
        except PackageNotFoundError as missing:
            pytest.skip(f'needs {missing.name}: pip install "envsuite[alfworld-reference]"')
    return {"source": games_root, "split": "valid_seen", "engine": request.param}


@pytest.fixture
def native(games_root: Path) -> dict[str, Any]:
    return {"source": games_root, "split": "valid_seen"}


def act(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("env_step", {"command": command}),)


OTHER = LAPTOP.replace("328", "329")


def walkthrough(games_root: Path, task_id: str = LAPTOP) -> tuple[str, ...]:
    return read_game(games_root / "json_2.1.1" / "valid_seen" / task_id / GAME).walkthrough


def copied(games_root: Path, to: Path, task_id: str = LAPTOP, old: bytes = b"", new: bytes = b"") -> Path:
    """A copy of a game, under an id, with another text in place of ``old``; returns its folder."""
    folder = to / "json_2.1.1" / "valid_seen" / task_id
    folder.mkdir(parents=True)
    for file in (games_root / "json_2.1.1" / "valid_seen" / LAPTOP).iterdir():
        content = file.read_bytes()
        (folder / file.name).write_bytes(content.replace(old, new) if old else content)
    return folder


@pytest.mark.seconds
def test_the_walkthrough_of_a_game_earns_one_and_ends_the_episode(made, games_root):
    env = gymnasium.make("ALFWorld-v0", **made)
    observation, info = env.reset(options={"task_id": LAPTOP})
    assert observation["task"] == "Your task is to: look at laptop under the desklamp."
    assert observation["text"].startswith("-= Welcome to TextWorld, ALFRED! =-\n\n")
    assert observation["text"].endswith(observation["task"])
    assert info["versions"]["engine"].startswith(made["engine"])
    assert info["versions"]["source"] == "official" and info["versions"]["data"].startswith("json_2.1.1-")
    commands = walkthrough(games_root)
    for number, command in enumerate(commands, 1):
        assert command in observation["commands"]
        observation, reward, terminated, truncated, info = env.step(act(command))
        last = number == len(commands)
        assert (reward, terminated, truncated, info["success"], info["score"]) == (last, last, False, last, last)
        assert (info["task_id"], info["task_type"]) == (LAPTOP, "look_at_obj_in_light")
        assert info["split"] == "valid_seen" and info["valid"] and info["error"] is None
    env.close()


def test_a_command_that_is_not_admissible_costs_a_step_and_is_explained_beside_the_games_text(made):
    env = ALFWorld(**made)
    first, _ = env.reset(options={"task_id": LAPTOP})
    for command in ("goto desk 1", "", "xyzzy", "fly " * 1000, "go to desk 1\ud800x", "Look"):
        observation, reward, terminated, _, info = env.step(act(command))
        assert (reward, terminated, info["valid"], observation["commands"]) == (0.0, False, False, first["commands"])
        if "\ud800" not in command:
            assert observation["text"] == NOTHING
            assert "is not an admissible command now" in info["error"] and len(info["error"]) < 400
    info = env.step(act("goto desk 1"))[4]
    assert "'go to desk 1'" in info["error"]
    observation, *_, info = env.step([ToolCall("env_stop", {})])
    assert info["error"] in observation["text"] and observation["commands"] == first["commands"]
    assert env.step(act("  look\n"))[4]["valid"]
    env.close()


def test_refusals_name_the_commands_that_share_most_words():
    commands = ("go to desk 1", "move mug 1 to desk 1", "take pen 1 from desk 1", "examine mug 1", "look")
    assert "Nearest: 'move mug 1 to desk 1', 'go to desk 1', 'examine mug 1';" in refusal(
        "put mug 1 to desk 1", commands
    )
    assert "Admissible are e.g. 'go to desk 1'" in refusal("dance 1", commands)


def test_an_episode_that_is_won_is_over_after_restoring_it(made, games_root):
    env = ALFWorld(**made)
    env.reset(options={"task_id": LAPTOP})
    for command in walkthrough(games_root):
        env.step(act(command))
    env.restore(env.snapshot())
    with pytest.raises(UsageError, match="after the episode has ended"):
        env.step(act("look"))
    env.close()
    with pytest.raises(UsageError):
        env.step(act("look"))


def test_a_game_that_does_not_say_its_task_is_named(made, games_root, tmp_path):
    copied(games_root, tmp_path, LAPTOP, b"Your task is to: ")
    env = ALFWorld(**(made | {"source": tmp_path}))
    with pytest.raises(DataError, match="does not state its task"):
        env.reset()


def test_a_game_that_is_marked_as_not_solvable_is_no_task_and_said_to_be_so(native, tmp_path, games_root):
    for task, solvable in ((LAPTOP, True), (OTHER, False)):
        game = copied(games_root, tmp_path, task) / GAME
        game.write_bytes(orjson.dumps(orjson.loads(game.read_bytes()) | {"solvable": solvable}))
    games_of.cache_clear()
    env = ALFWorld(**(native | {"source": tmp_path}))
    with pytest.raises(UnknownTask, match="is marked as not solvable"):
        env.reset(options={"task_id": OTHER})
    with pytest.raises(UnknownTask, match='Nearest:\n  "look_at_obj_in_light-Laptop'):
        env.reset(options={"task_id": LAPTOP + "1"})


def test_an_episode_whose_worker_dies_is_recorded_as_lost_and_the_slot_plays_on(made):
    if made["engine"] == "native":
        pytest.skip("the native engine has no worker")
    with LocalVector([EnvFactory("ALFWorld-v0", made)], slots=1) as vector:
        vector.reset(0, 0, task_id=LAPTOP)
        (first,) = vector.poll()
        for worker in default_pool().workers:
            worker.child.process.kill()
            worker.child.process.wait()
        vector.step(0, act("look"))
        (lost,) = vector.poll()
        assert lost.error is not None and lost.error.startswith("WorkerLost: ") and LAPTOP in lost.error
        vector.reset(0, 0, task_id=LAPTOP)
        (again,) = vector.poll()
        assert (again.observation, again.info) == (first.observation, first.info)


def test_both_engines_play_alike(made, native):
    if made["engine"] == "native":
        pytest.skip("compares the reference with the native engine")
    ours, theirs = ALFWorld(**native), ALFWorld(**made)

    def same(method: str, *arguments: Any, **more: Any) -> None:
        answers = [getattr(env, method)(*arguments, **more) for env in (ours, theirs)]
        for *_, info in answers:
            del info["versions"]
        assert answers[0] == answers[1]

    for task_id in (LAPTOP, ours.tasks.ids("valid_seen")[0]):
        same("reset", options={"task_id": task_id})
        ours.action_space.seed(0)
        for _ in range(10):
            same("step", ours.action_space.sample())
        same("step", act("help"))
    theirs.close()


@pytest.mark.seconds
def test_the_counts_and_families_on_the_page_are_those_of_the_task_sets(page):
    counts = {split: len(ids) for split, ids in load("builtin")[1].splits.items()}
    assert f"| source | {' | '.join(PUBLISHED)} |" in page
    assert f'| `"official"` | {" | ".join(f"{number:,}" for number in PUBLISHED.values())} |' in page
    assert f"games=600`) | {' | '.join(str(counts[split]) for split in PUBLISHED)} |" in page
    assert all(f"| `{family}` |" in page for family in FAMILIES)


FORMS = (
    r"find [a-z]+( and [a-z]+)?: [A-F] [a-z]+ \d+(, [A-F] [a-z]+ \d+)*",
    r"[a-z]+ none\. [B-F]",
    r"[a-z]+ \d+",
    r"[a-z]+ \d+: ((clean|heat|cool) in [a-z]+ \d+, )?put in [a-z]+ \d+",
    r"[a-z]+ \d+: use [a-z]+ \d+ in [a-z]+ \d+",
    r"take [a-z]+ \d+ in [a-z]+ \d+",
)
"""All that the player ever says."""


@pytest.fixture(scope="module")
def env() -> ToolEnv:
    return ALFWorld(source="builtin", scene_seed=3, games=60)


def test_a_careful_player_wins_every_game_and_each_name_stands_in_its_plan_its_thought_or_the_last_answer(env):
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, ALFWorldPlanner(), 60)
        assert turns[-1].info["success"] and all(turn.info["valid"] for turn in turns)
        said = shown = ""
        plan: dict[str, str] = {}
        for turn in turns:
            thought = turn.thought
            assert not thought or any(re.fullmatch(form, thought) for form in FORMS), thought
            said = thought or said
            if thought.startswith("find"):
                plan = dict(re.findall(r"([A-F]) ([a-z]+ \d+)", thought))
            elif " none. " in thought:
                said = plan[thought[-1]]
            for name in re.findall(r"[a-z]+ \d+", turn.argument):
                assert name in said or name in shown, (turn, said, shown)
            shown = turn.text


def test_a_plan_names_few_places_and_is_followed_in_its_order(env):
    for task_id in env.tasks.ids("train"):
        plan: list[str] = []
        for turn in played(env, task_id, ALFWorldPlanner(careless=0.5), 200):
            thought, command = turn.thought, turn.argument
            if thought and " none. " not in thought:
                plan = re.findall(r"[a-z]+ \d+", thought) if thought.startswith("find") else []
                assert len(plan) <= len(LABELS)
            place = command.removeprefix("go to ").removeprefix("open ")
            if place in plan:
                plan = plan[plan.index(place) :]
            else:
                assert not plan or not command.startswith("go to ")


@pytest.mark.parametrize("slip", ["careless", "idle", "hasty", "clumsy", "dreamy"])
def test_a_player_who_errs_needs_longer_or_is_refused_at_times_and_still_wins(env, slip):
    players = (ALFWorldPlanner(), ALFWorldPlanner(**{slip: 1.0 if slip == "careless" else 0.3}))
    steps, refused = [0, 0], 0
    for task_id in env.tasks.ids("train"):
        for number, player in enumerate(players):
            turns = played(env, task_id, player, 600)
            assert turns[-1].info["success"] and all(turn.info["valid"] or turn.slip for turn in turns)
            refused += sum(not turn.info["valid"] for turn in turns)
            steps[number] += len(turns)
    assert refused > 20 if slip in ("clumsy", "dreamy") else not refused and steps[1] > 1.2 * steps[0]


def test_a_player_who_is_rash_for_an_episode_says_nothing_and_wins_where_nothing_is_to_be_done_to_one_thing(env):
    spoken = 0
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, ALFWorldPlanner(rash=0.5), 120)
        easy = env.tasks.types[task_id] in ("pick_and_place_simple", "look_at_obj_in_light")
        assert turns[-1].info["success"] == (easy or bool(turns[0].thought))
        assert turns[0].thought or not any(turn.thought for turn in turns)
        spoken += bool(turns[0].thought)
    assert 0.25 < spoken / len(env.tasks.ids("train")) < 0.75
