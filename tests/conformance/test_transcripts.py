"""The transcript of each environment's page is an episode that can be played."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import gymnasium
import pytest

import envsuite  # noqa: F401  (registers the ids)
from envsuite.core import ToolCall

TRANSCRIPTS: dict[str, tuple[str, dict[str, Any], str, list[tuple[str, str, tuple[str | int, ...]]]]] = {
    "alfworld": ("ALFWorld-v0", {"source": "builtin", "split": "valid_seen"},
        "pick_heat_then_place_in_recep-Egg-None-Fridge-21/trial_T72499318_100045_468248", [
            ("env_step", "command", (command,)) for command in (
                "go to countertop 1", "put egg 2 in fridge 1", "take egg 2 from countertop 1", "go to microwave 1",
                "heat egg 2 with microwave 1", "inventory", "go to fridge 1", "open fridge 1", "move egg 2 to fridge 1",
            )]),
    "babyai": ("BabyAI-v0", {"level": "PutNextLocalS5N3"}, "PutNextLocalS5N3/1239", [
        ("act", "command", (command,)) for command in (
            "go forward", "go forward", "turn right", "pick up", "turn right", "go forward", "drop")]),
    "bfcl": ("BFCL-v0", {"split": "test"}, "miss_func_115", [
        ("get_stock_info", "symbol", ("AMZN",)), ("reply", "text", ("It trades at 3300 dollars.",)),
        ("add_to_watchlist", "stock", ("AMZN",)), ("reply", "text", ("I have no function for that.",)),
        ("add_to_watchlist", "stock", ("AMZN",)), ("reply", "text", ("It is on your watchlist.",)),
        ("get_order_details", "order_id", (12446,)), ("reply", "text", ("It sells 5 of GOOG, and is pending.",))]),
    "bifurcation": ("Bifurcation-v0", {"horizon": 4, "decisions": 2, "mistake": "recoverable"}, "test-2", [
        ("take", "command", (door,)) for door in ("red", "blue", "red", "red", "green", "blue")]),
    "classics#0": ("Wordle-v0", {}, "test-2", [("guess", "command", (word,)) for word in ("heart", "sweet", "upset")]),
    "classics#1": ("Countdown-v0", {}, "test-2", [
        ("calculate", "command", (command,)) for command in ("5 + 4", "25 + 9", "50 + 34")]),
    "classics#2": ("TextFrozenLake-v0", {}, "test-0", [("move", "command", ("down",))]),
    "classics#3": ("Game2048-v0", {"size": 3, "goal": 16}, "test-8", [
        ("slide", "command", (direction,)) for direction in ("right",)]),
    "classics#4": ("RushHour-v0", {}, "test-0", [
        ("drive", "command", (command,)) for command in ("F left 1", "G left 1", "L down 1", "A right 1")]),
    "mathematics": ("PythonMath-v0", {}, "lattice-2/test#2", [
        ("python", "code", (
            "n, r = 13517, 117\ncount = sum(x*x + y*y <= n for x in range(-r, r+1) for y in range(-r, r+1))",)),
        ("python", "code", ("count",)), ("answer", "text", (r"\boxed{42{,}473}",))]),
    "papersearch": ("PaperSearch-v0", {"split": "test", "shown": 2, "snippet": 60}, "10000-0/test#0", [
        ("search", "query", ("signal and vortex detection", "fracture mines")),
        ("expand", "paper_id", ("P3166267", "P5293672"))]),
    "searchqa": ("SearchQA-v0", {"results": 1, "observation": "new"}, "0/composition-2/train#0", [
        ("search", "query", ("University of Belheim",)), ("search", "query", ("Josefa Artarin",)),
        ("answer", "text", ("Zoltan Delescu",))]),
    "sokoban": ("Sokoban-v0", {"max_calls": 15}, "boxes-2/test#35", [
        ("move", "direction", tuple("up up right right up right down left left left up right right".split()))]),
    "textcraft": ("TextCraft-v0", {"max_distractors": 2}, "cyan_wool", [
        ("env_step", "command", (command,)) for command in (
            "get 1 cyan dye", "get 1 lapis lazuli", "craft 1 blue dye using 1 lapis lazuli", "get 1 green dye",
            "craft 2 cyan dye using 1 blue dye, 1 green dye", "get 4 string", "craft 1 white wool using 4 string",
            "craft 1 cyan wool using 1 cyan dye, 1 white wool")]),
    "textworld": ("TextWorld-v0", {"split": "test"}, "custom/w2-o3-q4/457", [
        ("act", "command", (command,)) for command in (
            "go north", "take keycard from chair", "go east", "go south", "unlock chest with keycard")]),
    "webshop": ("WebShop-v0", {"source": "builtin", "split": "dev", "mode": "structured"}, "BD57PM12DX/human-0", [
        ("search", "query", ("men's t-shirts linen blend office work yellow",)),
        ("click", "element", ("BD57PM12DX",)), ("click", "element", ("Yellow",)), ("click", "element", ("Buy Now",))]),
}  # fmt: skip
"""Page and number of a transcript on it -> environment, its options, task, tool, argument and values of each step."""


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_transcript_on_a_page_is_the_episode(name, root):
    page, _, place = name.partition("#")
    text = (root / f"docs/environments/{page}.md").read_text(encoding="utf-8")
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[int(place or 0)].splitlines()
    env_id, options, task_id, steps = TRANSCRIPTS[name]
    with closing(gymnasium.make(env_id, **options)) as env:
        seen, info = env.reset(options={"task_id": task_id})
        told, typed = [*seen["task"].splitlines(), *seen["text"].splitlines()], list[str]()
        for tool, argument, values in steps:
            seen, reward, _, _, info = env.step([ToolCall(tool, {argument: value}) for value in values])
            values = tuple(map(str, values))
            typed += [value.strip() for value in values] + [f"{tool}[{values[0]}]", f"{tool}({values[0]!r})"]
            typed += [f"{tool} {value}" for value in values] + [" ".join(values)]
            told += [*seen["text"].splitlines(), info["error"], f"reward {reward:g}, recall {info['score']:.2f}"]
    told.append(f"reward {reward:g}, success {info['success']}")
    order = iter(told)
    lines = [line for line in shown if line and not line.startswith(("> ", "…"))]
    if lines[-1].startswith("reward"):  # a figure of the environment's own may follow
        assert (last := lines.pop()).startswith(told[-1]) or last.startswith(told[-1].partition(",")[0])
    assert [line for line in lines if line not in order] == []
    assert [line for line in shown if line.startswith("> ") and line[2:] not in typed] == []
