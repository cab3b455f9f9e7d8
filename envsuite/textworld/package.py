"""The package ``textworld``: imported without its interpreter of compiled games, and asked for games by level and seed.

Its dependency ``jericho``, which it imports at once, is compiled for minutes, and only plays what Inform 7 compiled.
Nothing here plays that, so where it is not installed an empty module has its place during the import.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from envsuite.core.errors import UsageError, require_extra

ENV_ID = "TextWorld-v0"
PACKAGE = "textworld==1.7.0"
"""How pip installs the package, without the dependencies that its games do not need."""


class InterpreterWarning(UserWarning):
    """The warnings of ``jericho``, which nobody issues."""


jericho = ModuleType("jericho")
vars(jericho).update(UnsupportedGameWarning=InterpreterWarning, TruncatedInputActionWarning=InterpreterWarning)
if find_spec("jericho") is None:
    sys.modules["jericho"] = jericho
try:
    with require_extra(f"{ENV_ID} needs {PACKAGE}: pip install --no-deps {PACKAGE}, and what it imports", "textworld"):
        import textworld
        from textworld.challenges import CHALLENGES
        from textworld.generator.chaining import QuestGenerationError
        from textworld.generator.data import KnowledgeBase
        from textworld.generator.game import GameProgression as GameProgression
        from textworld.generator.inform7 import Inform7Game as Inform7Game
finally:
    if sys.modules.get("jericho") is jericho:
        del sys.modules["jericho"]

VERSION = f"textworld-{metadata.version('textworld')}"
FAILURES = (QuestGenerationError, ValueError)
"""Errors by which the package says that it makes no game of a seed."""
LEVELS = {
    r"custom/w([1-9]|1\d|20)-o([1-9]|[1-4]\d|50)-q([1-9]|1[0-6])": "",
    r"coin/([1-9]\d?|1[0-4]\d|150|20[1-9]|2[12]\d|23[0-3])": "tw-coin_collector",
    r"treasure/([1-9]|1[0-5])": "tw-treasure_hunter",
    r"cooking/recipe([1-5])(\+take[1-5])?(\+cook)?(\+cut)?(\+open)?\+go(1|6|9|12)": "tw-cooking",
}
"""The levels, as regular expressions -> the name in the package of games that have one."""
FORMS = (
    "custom/w2-o3-q4 (1 to 20 rooms, 1 to 50 objects, quest of 1 to 16 commands), coin/5 (1 to 150, 201 to 233), "
    "treasure/5 (1 to 15) and cooking/recipe2+take1+cook+cut+open+go6 (1 to 5 ingredients, no more to take; 1, 6, 9 or "
    "12 rooms; all but recipe and go may be left out)"
)


def read_level(level: str) -> tuple[str, dict[str, Any]]:
    """Returns the package's name of a level's games, and the parts of the level by their names: numbers, or ``True``.

    Raises:
        UsageError: There is no such level.
    """
    name = next((name for pattern, name in LEVELS.items() if re.fullmatch(pattern, level)), None)
    parts = re.findall(r"([a-z]+)(\d*)", level.partition("/")[2]) or [("level", level.partition("/")[2])]
    settings: dict[str, Any] = {part: int(number) if number.isdecimal() else True for part, number in parts}
    if name is None or settings.get("take", 0) > settings.get("recipe", 5):
        raise UsageError(f"level={level!r} is no level of {ENV_ID}; there are: {FORMS}")
    return name, settings


def make_game(level: str, seed: int, split: str) -> Any:
    """Returns the game, a ``textworld.Game``, that ``tw-make`` makes.

    Args:
        level: A level.
        seed: From 0 to 2³² - 1.
        split: ``"train"``, ``"valid"`` or ``"test"``; the package's own cooking games differ in foods and preparations.

    Raises:
        UsageError: There is no such level.
        QuestGenerationError, ValueError: There is no such game of this seed.
    """
    (name, settings), options = read_level(level), textworld.GameOptions()
    options.seeds = seed
    if name:
        return CHALLENGES[name][1]({"recipe_seed": 0, "split": split, **settings}, options)
    options.nb_rooms, options.nb_objects, options.quest_length = settings["w"], settings["o"], settings["q"]
    return textworld.generator.make_game(options)


def name_actions(writer: Any, actions: Sequence[Any]) -> dict[str, Any]:
    """Returns the actions by the commands that players type; of several with one command the first."""
    return dict(reversed([*zip(writer.gen_commands_from_actions(actions), actions, strict=True)]))


def _set_walkthrough(maker: Any, commands: Sequence[str]) -> None:
    """Does what ``GameMaker.set_walkthrough`` does, which compiles the game by Inform 7 and plays it on ``jericho``.

    Each event that wins a quest gets the actions up to it; a command that does nothing counts as the last action again.
    """
    game, actions = maker.build(), list[Any]()
    writer, progress = Inform7Game(game), GameProgression(game)
    pending = [event for quest in progress.quest_progressions for event in quest.win_events]
    for number, command in enumerate(commands, 1):
        valid = sorted(progress.valid_actions, key=lambda action: -len(action.preconditions))
        if (action := name_actions(writer, valid).get(command)) is not None:
            progress.update(action)
        actions.append(action or actions[-1])
        for event in [event for event in pending if event.triggered]:
            event.event.actions, event.event.commands = [*actions], commands[:number]
            pending.remove(event)


textworld.GameMaker.set_walkthrough = _set_walkthrough
KnowledgeBase.load = staticmethod(cache(KnowledgeBase.load))  # it parses the rules for longer than most games take
