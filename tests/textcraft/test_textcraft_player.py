"""The player that the base model imitates."""

import random

import pytest

from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.stepwise import StepwiseExpert


def play(env: TextCraft, task_id: str, slip: float, steps: int) -> tuple[bool, list[str]]:
    rng = random.Random(task_id)
    env.action_space.seed(rng.randrange(2**31))
    env.reset(options={"task_id": task_id})
    commands = []
    for _ in range(steps):
        action = env.action_space.sample() if rng.random() < slip else StepwiseExpert().act(env)
        commands.append(action[0].arguments["command"])
        _, _, done, _, info = env.step(action)
        if done:
            return info["success"], commands
    return False, commands


@pytest.mark.parametrize("source", ["builtin", "generated"])
def test_it_solves_every_training_task(source: str) -> None:
    env = TextCraft(source=source, goals=400)
    assert all(play(env, task, slip=0.0, steps=200)[0] for task in env.tasks.ids("train"))


def test_it_finds_its_way_after_random_actions() -> None:
    env = TextCraft(source="generated", book_seed=5, goals=400)
    assert all(play(env, task, slip=0.3, steps=2000)[0] for task in env.tasks.ids("train"))


def test_every_amount_it_fetches_stands_in_a_recipe_shown() -> None:
    env = TextCraft(source="generated", book_seed=3, goals=300)
    for task in env.tasks.ids("test"):
        _, commands = play(env, task, slip=0.0, steps=200)
        observation, _ = env.reset(options={"task_id": task})
        parts = {part for line in observation["task"].splitlines() for part in line.split(" using ")[-1].split(", ")}
        assert {command.removeprefix("get ") for command in commands if command.startswith("get ")} <= parts


def test_its_thought_names_the_recipes_it_will_use_from_the_goal_down() -> None:
    env = TextCraft(source="generated", book_seed=4, goals=300)
    for task in env.tasks.ids("train"):
        observation, _ = env.reset(options={"task_id": task})
        lines = StepwiseExpert().think(env).split(". ")
        shown = observation["task"].splitlines()
        assert set(lines) <= set(shown)
        assert f" {task.replace('_', ' ')} using " in lines[0]
        _, commands = play(env, task, slip=0.0, steps=200)
        used = [command.split(" using ")[0] for command in commands if command.startswith("craft")]
        assert {line.split(" using ")[0] for line in lines} == set(used)
        assert used[0] == lines[-1].split(" using ")[0]
