"""The player that the base model imitates."""

import itertools
import re
import string

import pytest
from teaching import played

from envsuite.core.errors import UsageError
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.player import CraftPlanner, label, outline, say


@pytest.fixture(scope="module")
def env() -> TextCraft:
    return TextCraft(source="generated", book_seed=5, goals=400)


def test_a_player_who_errs_plans_anew_until_it_succeeds(env: TextCraft) -> None:
    failures = 0
    for task in env.tasks.ids("train"):
        turns = played(env, task, CraftPlanner(careless=0.3, hasty=0.1), 3000)
        assert turns[-1].info["success"]
        for turn, after in itertools.pairwise(turns):
            if not turn.info["valid"]:
                failures += 1
                assert after.thought.startswith(f"{task.replace('_', ' ')}: A craft")
    assert failures > 100


def test_who_is_rash_for_an_episode_says_nothing_and_fails_at_all_that_takes_more_than_one_craft(
    env: TextCraft,
) -> None:
    rash = 0
    for task in env.tasks.ids("train"):
        turns = played(env, task, CraftPlanner(rash=0.5), seed=f"0 {task}")
        assert turns[-1].info["success"] == bool(turns[0].thought)
        if turns[0].thought:
            continue
        rash += 1
        commands = [turn.argument for turn in turns]
        around = commands.index(next(command for command in commands if command.startswith("craft"))) + 1
        assert commands == [*itertools.islice(itertools.cycle(commands[:around]), 100)]
        assert not any(turn.thought for turn in turns)
    assert 100 < rash < 220


@pytest.mark.parametrize("source", ["builtin", "generated"])
def test_a_careful_player_solves_every_task_names_every_craft_with_its_times_and_gets_what_a_recipe_shows(
    source: str,
) -> None:
    env = TextCraft(source=source, goals=400)
    for task in env.tasks.ids("train"):
        observation, _ = env.reset(options={"task_id": task})
        clauses = say(outline(env.world.book, env.world.goal)).split(". ")
        recipes = [re.search(r"craft [^;]+", clause).group() for clause in clauses if "craft " in clause]
        labels = re.findall(r": ([A-Z]) craft", ". ".join(clauses))
        assert labels == list(string.ascii_uppercase[: len(recipes)])
        assert set(recipes) <= set(observation["task"].splitlines())
        turns = played(env, task, CraftPlanner(), 300)
        assert turns[-1].info["success"] and all(turn.info["valid"] for turn in turns)
        times = [int(found) for clause in clauses for found in re.findall(r"; (\d+) times", clause)]
        assert sum(times) + 1 == sum(turn.argument.startswith("craft") for turn in turns)
        parts = {part for line in observation["task"].splitlines() for part in line.split(" using ")[-1].split(", ")}
        assert {turn.argument.removeprefix("get ") for turn in turns if turn.argument.startswith("get ")} <= parts


def test_labels_never_run_out() -> None:
    assert [label(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_a_goal_that_nothing_makes_is_refused() -> None:
    with pytest.raises(UsageError, match="oak logs"):
        outline(TextCraft().book, "minecraft:oak_logs")
