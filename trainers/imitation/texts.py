"""What is said in an environment: the words that a small model must know to play it."""

from __future__ import annotations

import re
import string
from importlib.resources import files

from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.prompts import GOAL
from envsuite.alfworld.sentences import FORMS
from envsuite.alfworld.vocabulary import ROOMS
from envsuite.core import ToolCall
from envsuite.prompting import make_codec
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.source import vocabulary

_PROMPTING = ["Invalid action", "[1 earlier steps left out]", "Observation: Action: none"]


def textcraft() -> list[str]:
    """Everything that is said in TextCraft: all words of its recipe books, and one of each kind of sentence."""
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
    texts += [make_codec("tags", think=False).parse(text, env.tools, 1).error or "" for text in ("", "<action>", "a")]
    return [*texts, *commands, "Crafted minecraft:", *_PROMPTING]


def alfworld() -> list[str]:
    """Everything that is said in ALFWorld: kinds of things and receptacles, what tasks are, what the game answers."""
    kinds = {thing.kind for room in ROOMS for thing in room.things}
    kinds |= {kind for room in ROOMS for kind, _ in room.receptacles}
    grammar = files("envsuite.alfworld").joinpath("templates", "grammar.twl2").read_text(encoding="utf-8")
    said = re.findall(r'(?:"rhs"|template ::|feedback ::)\s*:?\s*"([^"]*)"', grammar)
    return [
        " ".join(kinds).lower(),
        *(sentence for _, _, sentence in FORMS),
        GOAL,
        *(re.sub(r"#.*?#|\[.*?\]|\{.*?\}|\\n", " ", text) for text in said),
        "Nothing happens.",
        "find cup: fridge 1, cabinet 2. take cup 1 in fridge 1. cup 1: clean in sinkbasin 1, put in cabinet 2",
        *(make_codec("tags", think=False).parse(text, ALFWorld.tools, 1).error or "" for text in ("", "<action>", "a")),
        *_PROMPTING,
    ]
