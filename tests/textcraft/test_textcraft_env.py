"""TextCraft-v0: observations, states and stocks, its page, and the player to imitate."""

from __future__ import annotations

import itertools
import re
import string

import pytest
from teaching import Acting, played

from envsuite.core import ToolCall
from envsuite.core.errors import UsageError
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.expert import TextCraftExpert
from envsuite.textcraft.player import CraftPlanner, label, outline, say
from envsuite.textcraft.tasks import load

BASE = [name.removeprefix("minecraft:").replace("_", " ") for name in sorted(TextCraft().book.base)]


def act(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("env_step", {"command": command}),)


def test_a_reset_shows_the_recipes_needed_and_at_most_ten_others():
    env = TextCraft()
    for task_id in env.tasks.ids("validation"):
        observation, _ = env.reset(options={"task_id": task_id})
        head, _, tail = observation["task"].partition("\n\n")
        assert tail == f"Goal: craft {task_id.replace('_', ' ')}."
        lines = head.removeprefix("Crafting commands:\n").split("\n")
        needed = {recipe.text for recipe in env.book.needed_recipes(env.world.goal)}
        assert needed <= set(lines) and len(set(lines)) == len(lines) <= len(needed) + 10
        assert observation["text"] == "You are not carrying anything." and observation["commands"] == ()


def test_a_variant_of_a_task_is_another_episode_of_the_same_goal():
    first, info = TextCraft().reset(options={"task_id": "cyan_banner"})
    variant, other = TextCraft().reset(options={"task_id": "cyan_banner#7"})
    assert variant["task"] != first["task"] and variant["task"].endswith("Goal: craft cyan banner.")
    assert [other[name] for name in ("task_id", "split", "task_type")] == [
        "cyan_banner#7",
        info["split"],
        info["task_type"],
    ]


@pytest.mark.parametrize("show_inventory", [False, True])
def test_the_state_key_tells_inventories_apart_and_not_their_orders(show_inventory):
    env = TextCraft(show_inventory=show_inventory)
    keys = []
    for first, second in ((0, 1), (1, 0), (1, 1)):
        env.reset(seed=0)
        env.step(act(f"get 1 {BASE[first]}"))
        env.step(act(f"get 1 {BASE[second]}"))
        keys.append(env.step(act("dance"))[4]["state_key"])
    assert keys[0] == keys[1] != keys[2]


def test_the_state_key_tells_texts_and_stocks_apart_over_the_same_inventory():
    env = _limited(3)
    _, info = env.reset(seed=0)
    keys = {info["state_key"], *(env.step(act(command))[4]["state_key"] for command in ("dance", "sing", "inventory"))}
    assert len(keys) == 4
    assert env.step(act("dance"))[4]["state_key"] in keys
    assert env.world.stock is not None
    env.world.stock[next(iter(env.world.stock))] -= 1
    assert env.step(act("dance"))[4]["state_key"] not in keys


def test_what_is_sampled_are_the_recipes_that_are_shown_their_ingredients_and_looks_at_the_inventory():
    env = TextCraft()
    env.action_space.seed(0)
    drawn = [env.action_space.sample()[0].arguments["command"] for _ in range(50)]
    book = {recipe.text for ways in env.book.recipes.values() for recipe in ways}
    assert {command for command in drawn if command.startswith("craft ")} <= book, "before the first reset"
    observation, _ = env.reset(options={"task_id": "cyan_banner"})
    recipes = {line for line in observation["task"].split("\n") if line.startswith("craft ")}
    parts = {part.split(" ", 1)[1] for line in recipes for part in line.split(" using ")[1].split(", ")}
    env.action_space.seed(0)
    drawn = [env.action_space.sample()[0].arguments["command"] for _ in range(400)]
    crafted = [command for command in drawn if command.startswith("craft ")]
    got = [command.split(" ", 2)[1:] for command in drawn if command.startswith("get ")]
    assert set(crafted) == recipes and {item for _, item in got} == parts
    assert {int(count) for count, _ in got} == set(range(1, 9))
    assert 20 < drawn.count("inventory") < 80 and len(crafted) + len(got) + drawn.count("inventory") == 400
    assert 150 < len(crafted) < 250


def test_snapshots_are_equal_only_if_the_inventory_is_in_the_same_order():
    env, tokens, said = TextCraft(), [], []
    for first, second in (("get 1 oak log", "get 1 end stone"), ("get 1 end stone", "get 1 oak log")):
        env.reset(options={"task_id": "end_stone_brick_slab"})
        for command in (first, second, "fly"):
            env.step(act(command))
        tokens.append(env.snapshot())
        said.append(env.step(act("inventory"))[0]["text"])
    assert said[0] != said[1] and tokens[0] != tokens[1]


def test_observations_end_with_the_inventory_on_demand():
    plain, shown = TextCraft(), TextCraft(show_inventory=True)
    commands = ("get 1 oak logs", "get 2 bamboo", "craft 4 oak planks using 1 oak logs", "fly", "inventory")
    for env in (plain, shown):
        env.reset(options={"task_id": "oak_button"})
    assert shown.observation == plain.observation, "nothing is carried yet"
    texts = []
    for command in commands:
        (before, *_, info), (after, *_, same) = plain.step(act(command)), shown.step(act(command))
        assert info["valid"] == same["valid"] and info["error"] == same["error"]
        texts.append(after["text"].removeprefix(before["text"]))
    assert texts == [
        "\nInventory: [oak logs] (1)",
        "\nInventory: [bamboo] (2) [oak logs] (1)",
        "\nInventory: [bamboo] (2) [oak planks] (4)",
        "\nInventory: [bamboo] (2) [oak planks] (4)",
        "",
    ]
    assert shown.refuse("no action")[0]["text"].endswith("\nInventory: [bamboo] (2) [oak planks] (4)")
    token, last = shown.snapshot(), shown.observation
    shown.step(act("get 1 bamboo"))
    assert shown.restore(token) == last


def _limited(spare: int) -> TextCraft:
    return TextCraft(source="generated", goals=60, max_distractors=3, tasks=["depth-2", "depth-3"], spare=spare)


@pytest.mark.parametrize("spare", [0, 2])
def test_a_limited_stock_suffices_for_the_expert_and_is_in_every_observation(spare):
    env = _limited(spare)
    for task in env.tasks.ids("train"):
        assert "\nLeft to get: " in env.reset(options={"task_id": task})[0]["text"]
        turns = played(env, task, Acting(TextCraftExpert()))
        for turn in turns:
            assert turn.info["valid"] and turn.text.splitlines()[-1].startswith("Left to get: ")
        assert turns[-1].info["success"]


def test_nothing_more_can_be_got_than_is_left():
    env = _limited(0)
    observation, _ = env.reset(options={"task_id": env.tasks.ids("train")[0]})
    first = observation["text"].splitlines()[-1].removeprefix("Left to get: ").split(", ")[0]
    count, item = first.split(" ", 1)
    info = env.step(act(f"get {int(count) + 1} {item}"))[4]
    assert info["error"] == f"Could not get {int(count) + 1} {item}: {count} left"
    observation, *_, info = env.step(act(f"get {count} {item}"))
    assert info["valid"] and first not in observation["text"].splitlines()[-1].removeprefix("Left to get: ").split(", ")
    assert env.step(act(f"get 1 {item}"))[4]["error"] == f"Could not get 1 {item}: 0 left"
    assert env.step(act("get 1 lava"))[4]["valid"] is False


@pytest.mark.parametrize("source", ["builtin", "generated"])
def test_the_counts_on_the_page_are_those_of_the_task_sets(page, source):
    tasks = load(source)[1]
    for split, ids in tasks.splits.items():
        depths = [sum(tasks.types[name] == f"depth-{depth}" for name in ids) for depth in (2, 3, 4)]
        assert f"| {split} | {len(ids)} | {' | '.join(map(str, depths))} |" in page


@pytest.fixture(scope="module")
def env() -> TextCraft:
    return TextCraft(source="generated", book_seed=5, goals=400)


def test_a_player_who_errs_plans_anew_until_it_succeeds(env):
    failures = 0
    for task in env.tasks.ids("train"):
        turns = played(env, task, CraftPlanner(careless=0.3, hasty=0.1), 3000)
        assert turns[-1].info["success"]
        for turn, after in itertools.pairwise(turns):
            if not turn.info["valid"]:
                failures += 1
                assert after.thought.startswith(f"{task.replace('_', ' ')}: A craft")
    assert failures > 100


def test_who_is_rash_for_an_episode_says_nothing_and_fails_at_all_that_takes_more_than_one_craft(env):
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
def test_a_careful_player_solves_every_task_names_every_craft_with_its_times_and_gets_what_a_recipe_shows(source):
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


def test_labels_never_run_out():
    assert [label(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_a_goal_that_nothing_makes_is_refused():
    with pytest.raises(UsageError, match="oak logs"):
        outline(TextCraft().book, "minecraft:oak_logs")
