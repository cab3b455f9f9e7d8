"""TextCraft-v0 against recorded episodes and a recorded recipe book.

python -m benchmarks.parity textcraft --recipes DIR --episodes FILE... [--tree FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.parity_report import Report, read
from envsuite.core import ToolCall, ToolEnv
from envsuite.textcraft import prompts
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.source import folder_book
from envsuite.textcraft.world import NAMESPACE, Crafting, RecipeBook, spoken_name


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--recipes", type=Path, required=True, help="folder of Minecraft recipe files")
    parser.add_argument("--episodes", type=Path, required=True, nargs="+", help="recorded episodes (JSON)")
    parser.add_argument("--tree", type=Path, help="recorded recipe book; tree.json beside the episodes by default")


def run(args: argparse.Namespace) -> Report:
    """Compare what the options name."""
    beside = args.episodes[0].parent / "tree.json"
    tree = args.tree or (beside if beside.is_file() else None)
    report = compare(args.recipes, args.episodes, tree)
    if tree is None:
        sys.stdout.write("recipe book: not compared (no tree.json beside the episodes, and no --tree)\n")
    return report


def compare(
    recipes: Path, episodes: Sequence[Path], tree: Path | None = None, make: Callable[..., ToolEnv] = TextCraft
) -> Report:
    """Compare TextCraft with recordings.

    Args:
        recipes: Folder of the recipe files of the recorded world.
        episodes: Files with a list of episodes: goal, depth, reset, steps of action, obs, reward, terminated.
        tree: The recorded recipe book: craftable, depth, groups, base; ``None`` leaves it out.
        make: Makes the environment from its arguments; may be one on a server.
    """
    report = Report()
    book = folder_book(recipes)
    if tree is not None:
        _book(report, book, read(tree))
    env = make(source=str(recipes))
    for path in episodes:
        for number, episode in enumerate(read(path)):
            where = f"{path.name}, episode {number} ({episode['goal']})"
            report.same("depths of goals", where, book.depth.get(episode["goal"]), episode["depth"])
            _reset(report, book, where, episode["goal"], episode["reset"], "recorded")
            _world(report, book, where, episode)
            if episode["goal"].removeprefix(NAMESPACE) in env.tasks.types:
                _environment(report, env, book, where, episode)
    return report


def _book(report: Report, book: RecipeBook, recorded: Mapping[str, Any]) -> None:
    for item in sorted(book.recipes.keys() | recorded["craftable"].keys()):
        ours = [{"count": r.count, "inputs": [[i.count, i.name] for i in r.inputs]} for r in book.recipes.get(item, ())]
        report.same("craftable items with their recipes", item, ours, recorded["craftable"].get(item, []))
    for item in sorted(book.depth.keys() | recorded["depth"].keys()):
        report.same("depths", item, book.depth.get(item), recorded["depth"].get(item))
    for kind, names, key in (("families", book.families, "groups"), ("base items", book.base, "base")):
        for name in sorted(names | set(recorded[key])):
            report.same(kind, name, name in names, name in recorded[key])


def _reset(report: Report, book: RecipeBook, where: str, goal: str, text: str, whose: str) -> None:
    """``text`` is one that a reset for ``goal`` could give."""
    lines = text.removeprefix("Crafting commands:\n").split("\n\n")[0].split("\n")
    report.same(f"{whose} reset texts, layout and goal", where, prompts.task(lines, spoken_name(goal)), text)
    needed = book.needed_recipes(goal)
    missing = sorted({recipe.text for recipe in needed} - set(lines))
    report.same(f"{whose} reset texts: recipes needed but not shown", where, missing, [])
    extra = set(lines) - {recipe.text for recipe in needed}
    foreign = sorted(extra - {recipe.text for recipe in book.distractors(needed)})
    report.same(f"{whose} reset texts: recipes shown that use nothing needed", where, foreign, [])
    report.same(f"{whose} reset texts: at most 10 distractors", where, len(extra) <= 10, True)
    report.same(f"{whose} reset texts: no line twice", where, len(lines), len(set(lines)))


def _world(report: Report, book: RecipeBook, where: str, episode: Mapping[str, Any]) -> None:
    world = Crafting(book, episode["goal"])
    for number, step in enumerate(episode["steps"]):
        text, _, done = world.do(step["action"])
        recorded = (step["obs"], step["reward"], step["terminated"])
        report.same(
            "steps of the world", f"{where}, step {number} {step['action']!r}", (text, int(done), done), recorded
        )


def _environment(report: Report, env: ToolEnv, book: RecipeBook, where: str, episode: Mapping[str, Any]) -> None:
    """The same through the environment, whose own instruction must keep to the same rules."""
    first, _ = env.reset(options={"task_id": episode["goal"].removeprefix(NAMESPACE)})
    _reset(report, book, where, episode["goal"], first["task"], "our")
    for number, step in enumerate(episode["steps"]):
        place = f"{where}, step {number} {step['action']!r}"
        observation, reward, done, _, info = env.step((ToolCall("env_step", {"command": step["action"]}),))
        recorded = (step["obs"], step["reward"], step["terminated"])
        report.same("steps of the environment", place, (observation["text"], reward, done), recorded)
        refused = step["obs"].startswith(("Could not ", "Wrong item format: "))
        report.same("verdicts on actions", place, info["valid"], not refused)
        if done:
            break
