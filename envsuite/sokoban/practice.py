"""The teacher to imitate on Sokoban, and the words that it takes."""

from __future__ import annotations

from envsuite.core.practice import Practice
from envsuite.prompting.phrases import phrases
from envsuite.sokoban import prompts
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.level import DIRECTIONS
from envsuite.sokoban.player import Pusher


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(Pusher, texts, fresh="level_seed")


def texts() -> list[str]:
    """Returns the texts of Sokoban in all styles, whose symbols are words of their own only in ``spaced``."""
    texts = [prompts.SOLVED, prompts.LOST, *DIRECTIONS, "# _ O X √ P S . $ * @ +"]
    for style in prompts.STYLES:
        observation, _ = SokobanEnv(style=style).reset(seed=0)
        texts += [observation["task"], observation["text"]]
    texts += [prompts.blocked_text(direction, box) for direction in DIRECTIONS for box in (False, True)]
    return [*texts, *phrases(SokobanEnv.tools), "Invalid action"]
