"""The teacher to imitate on TextCraft, and the words that it takes."""

from __future__ import annotations

import string

from envsuite.core.practice import Practice
from envsuite.core.tools import ToolCall
from envsuite.prompting.phrases import phrases
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.player import CraftPlanner
from envsuite.textcraft.source import vocabulary


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(CraftPlanner, texts, fresh="book_seed")


def texts() -> list[str]:
    """Returns the texts of TextCraft: all words of its recipe books, and every kind of sentence."""
    env = TextCraft()
    observation, _ = env.reset(seed=0)
    texts = [" ".join(vocabulary()), observation["task"], observation["text"]]
    commands = (
        "inventory",
        "get 1 planks",
        "get 1 string",
        "inventory",
        "craft 1 white wool using 4 string",
        "craft x using y",
        "craft 1 x using 1 y",
        "craft 1 stick using 1 string",
        "fly",
    )
    for command in commands:
        texts.append(env.step((ToolCall("env_step", {"command": command}),))[0]["text"])
    texts.append(env.step(())[0]["text"])
    texts.append("1 stick: get. 2 stick: B craft; 2 times. B 1 of 2")
    texts.append(" ".join(string.ascii_uppercase))
    return [*texts, *phrases(env.tools, "tags"), *commands, "Crafted minecraft:", "Invalid action"]
