"""The player that a base model imitates in ALFWorld."""

import re

import pytest
from teaching import played

from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.player import LABELS, ALFWorldPlanner
from envsuite.core import ToolEnv

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


def test_a_careful_player_wins_every_game_and_each_name_stands_in_its_plan_its_thought_or_the_last_answer(
    env: ToolEnv,
) -> None:
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


def test_a_plan_names_few_places_and_is_followed_in_its_order(env: ToolEnv) -> None:
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
def test_a_player_who_errs_needs_longer_or_is_refused_at_times_and_still_wins(env: ToolEnv, slip: str) -> None:
    players = (ALFWorldPlanner(), ALFWorldPlanner(**{slip: 1.0 if slip == "careless" else 0.3}))
    steps, refused = [0, 0], 0
    for task_id in env.tasks.ids("train"):
        for number, player in enumerate(players):
            turns = played(env, task_id, player, 600)
            assert turns[-1].info["success"] and all(turn.info["valid"] or turn.slip for turn in turns)
            refused += sum(not turn.info["valid"] for turn in turns)
            steps[number] += len(turns)
    assert refused > 20 if slip in ("clumsy", "dreamy") else not refused and steps[1] > 1.2 * steps[0]


def test_a_player_who_is_rash_for_an_episode_says_nothing_and_wins_where_nothing_is_to_be_done_to_one_thing(
    env: ToolEnv,
) -> None:
    spoken = 0
    for task_id in env.tasks.ids("train"):
        turns = played(env, task_id, ALFWorldPlanner(rash=0.5), 120)
        easy = env.tasks.types[task_id] in ("pick_and_place_simple", "look_at_obj_in_light")
        assert turns[-1].info["success"] == (easy or bool(turns[0].thought))
        assert turns[0].thought or not any(turn.thought for turn in turns)
        spoken += bool(turns[0].thought)
    assert 0.25 < spoken / len(env.tasks.ids("train")) < 0.75
