"""The players to imitate and the vocabulary, for each environment."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core import ToolCall
from envsuite.core.errors import unknown
from envsuite.prompting import make_codec
from trainers.imitation.play import Player
from trainers.imitation.vocabulary import WORDS, Spelling


@dataclass(frozen=True)
class Practice:
    """The player to imitate and the vocabulary of an environment."""

    player: Callable[..., Player]
    """Makes the player to imitate, from the arguments of a game in the mixture."""
    texts: Callable[[], list[str]]
    """Returns texts with every word of the environment at least once, and every kind of sentence."""
    fresh: str = ""
    """Argument of the environment that is increased every few hundred games, for a new world; empty if the number of
    tasks is an argument, too."""
    spelling: Spelling = WORDS
    """How the words are cut into tokens."""


def practice(env_id: str) -> Practice:
    """Returns the player and vocabulary for the environment ``env_id``.

    Raises:
        UnknownName: The environment has no player to imitate.
    """
    if env_id not in _PRACTICES:
        raise unknown("environment to imitate a player of", env_id, _PRACTICES)
    return _PRACTICES[env_id]()


def _textcraft() -> Practice:
    from envsuite.textcraft.player import Planner

    return Practice(Planner, textcraft_texts, fresh="book_seed")


def _alfworld() -> Practice:
    from envsuite.alfworld.player import Planner

    return Practice(Planner, alfworld_texts)


def _webshop() -> Practice:
    from envsuite.webshop.player import Shopper

    return Practice(Shopper, webshop_texts, spelling=Spelling(codes=True))


def _sokoban() -> Practice:
    from envsuite.sokoban.player import Pusher

    return Practice(Pusher, sokoban_texts, fresh="level_seed")


def _mathematics() -> Practice:
    from envsuite.mathematics.player import Calculator

    return Practice(Calculator, mathematics_texts, fresh="problem_seed", spelling=Spelling(codes=True))


def _papersearch() -> Practice:
    from envsuite.papersearch.player import Scholar

    spelling = Spelling(codes=True, splits=papersearch_splits(), key="P")
    return Practice(Scholar, papersearch_texts, fresh="corpus_seed", spelling=spelling)


def _searchqa() -> Practice:
    from envsuite.searchqa.player import Reader

    return Practice(Reader, searchqa_texts, fresh="corpus_seed", spelling=Spelling(parts=searchqa_syllables()))


_PRACTICES: Mapping[str, Callable[[], Practice]] = {
    "TextCraft-v0": _textcraft,
    "ALFWorld-v0": _alfworld,
    "WebShop-v0": _webshop,
    "Sokoban-v0": _sokoban,
    "PythonMath-v0": _mathematics,
    "PaperSearch-v0": _papersearch,
    "SearchQA-v0": _searchqa,
}


def textcraft_texts() -> list[str]:
    """Returns the texts of TextCraft: all words of its recipe books, and every kind of sentence."""
    from envsuite.textcraft.env import TextCraft
    from envsuite.textcraft.source import vocabulary

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
    return [*texts, *_codec_errors(env.tools), *commands, "Crafted minecraft:", "Invalid action", *_HISTORY]


def alfworld_texts() -> list[str]:
    """Returns the texts of ALFWorld: all types of objects, and every kind of sentence."""
    from envsuite.alfworld import vocabulary
    from envsuite.alfworld.env import ALFWorld
    from envsuite.alfworld.placement import PROBABILITIES
    from envsuite.alfworld.reading import INTRODUCTION, NOTHING_HAPPENS
    from envsuite.alfworld.sentences import FORMS

    kinds = {kind.lower() for row in (vocabulary.CONTAINS, *vocabulary.CONTAINS.values()) for kind in row}
    kinds |= {
        *PROBABILITIES,
        *(kind for row in PROBABILITIES.values() for kind in row),
        *map(str.lower, vocabulary.FIXED),
    }
    return [
        " ".join(sorted(kinds - {"*"})),
        *(form for _, _, form in FORMS),
        INTRODUCTION,
        NOTHING_HAPPENS,
        *_HOUSE.splitlines(),
        *_codec_errors(ALFWorld.tools),
        "Invalid action",
        *_HISTORY,
    ]


_HOUSE = """
Your task is to: find two x and put them in y. Commands: close x 1 | use x 1 | help
You are in the middle of a room. Looking quickly around you, you see a x 1, and a y 1. Next to it, you see nothing.
You are facing the x 1. You arrive at x 1. On the x 1, you see nothing. The x 1 is closed. The x 1 is open. In it, you
You open the x 1. You close the x 1. You pick up the x 1 from the y 1. You move the x 1 to the y 1.
You are carrying: a x 1. You are not carrying anything. You turn on the x 1. You turn off the x 1. any switch
You heat the x 1 using the y 1. You cool the x 1 using the y 1. You clean the x 1 using the y 1. You sliced the x 1.
There's nothing special about x 1. This is a normal x 1. This is a hot, cold, cool and clean sliced x 1. This x 1 is off
go to, take, examine, look, inventory, slice x 1 with y 1. x 1: clean in y 1, put in y 1. use x in y
find x and y: A x 1, B y 1, C x 2, D y 2, E x 3, F y 3. x none. B
Available commands: look around your current location; check your current inventory; move to a receptacle (object)
open a receptacle; close; take an object from a receptacle; place an object in or on a receptacle; (something)
examine a receptacle or an object; use; heat an object using a receptacle; slice an object using a sharp object
"""


def webshop_texts() -> list[str]:
    """Returns the texts of the built-in shop without brand names, of which there are too many."""
    from envsuite.webshop import prompts
    from envsuite.webshop.assortment import facets, kinds, options
    from envsuite.webshop.env import WebShop
    from envsuite.webshop.generate import ASIN_LETTERS
    from envsuite.webshop.wording import sentences

    pairs = [one + other for one in ASIN_LETTERS for other in ASIN_LETTERS]
    facts = [fact for facet in facets().values() for fact in facet]
    return [
        *(f"{pair}12{pair}" for pair in pairs),
        *(f"1{number:02} .{number:02} x{number:02}" for number in range(100)),
        *(text for kind in kinds() for text in (kind.query, kind.name, kind.one, kind.department, kind.path, kind.use)),
        *(text for fact in facts for text in (fact.attribute, fact.label, *fact.asked, fact.told)),
        *(text for name, values in options().values() for text in (name, *values)),
        *sentences(),
        *_SHOP.splitlines(),
        prompts.EMPTY_QUERY,
        *(prompts.refused(element, page) for element in ("x", "x…") for page in ("search", "item")),
        *_codec_errors(WebShop.tools, "brackets"),
        *_HISTORY,
    ]


def sokoban_texts() -> list[str]:
    """Returns the texts of Sokoban in all styles, whose symbols are words of their own only in ``spaced``."""
    from envsuite.sokoban import prompts
    from envsuite.sokoban.env import SokobanEnv
    from envsuite.sokoban.level import DIRECTIONS

    texts = [prompts.SOLVED, prompts.LOST, *DIRECTIONS, "# _ O X √ P S . $ * @ +"]
    for style in prompts.STYLES:
        observation, _ = SokobanEnv(style=style).reset(seed=0)
        texts += [observation["task"], observation["text"]]
    texts += [prompts.blocked(direction, box) for direction in DIRECTIONS for box in (False, True)]
    return [*texts, *_codec_errors(SokobanEnv.tools, "brackets"), "Invalid action", *_HISTORY]


def mathematics_texts() -> list[str]:
    """Returns the texts of PythonMath: every wording and code of its families, and numbers below 10,000 in parts."""
    from envsuite.core.draws import Draw
    from envsuite.mathematics import prompts
    from envsuite.mathematics.env import PythonMathEnv
    from envsuite.mathematics.kinds import FAMILIES

    problems = [
        family.problem(family.draw(Draw(f"{family.name} {wording}")), wording)
        for family in FAMILIES
        for wording in range(len(family.wordings))
    ]
    return [
        *(re.sub("[0-9]{3,}", "10", text) for problem in problems for text in (problem.text, problem.code)),
        *(f"1{number:02}" for number in range(100)),
        *(prompts.START, prompts.NOTHING_PRINTED, prompts.CHECK, prompts.NO_ANSWER, prompts.RIGHT, prompts.WRONG),
        *_PYTHON.splitlines(),
        *_codec_errors(PythonMathEnv.tools, "brackets"),
        *_HISTORY,
    ]


def papersearch_texts() -> list[str]:
    """Returns the texts of the generated literature without abstracts: its words, parts of invented ones, sentences."""
    from envsuite.papersearch import prompts
    from envsuite.papersearch.env import PaperSearchEnv
    from envsuite.papersearch.literature import PAIRS
    from envsuite.papersearch.vocabulary import table
    from envsuite.papersearch.world import LONGEST_QUERY

    lists, sentences = table("words"), table("sentences")
    why = (prompts.EMPTY_QUERY, prompts.REPEATED_SEARCH, prompts.REPEATED_EXPANSION, prompts.NOT_THERE)
    return [
        *(" ".join(lists[name]) for name in ("adjectives", "nouns", "tasks", "devices", "media")),
        *(f"{onset}a{onset}aban" for onset in lists["onsets"]),
        *(f"b{vowel}ban" for vowel in lists["vowels"]),
        *(f"ba{coda}" for coda in lists["codas"]),
        *(re.sub(r"\{\w+\}", "x", line) for kind in ("titles", *PAIRS) for line in sentences[kind]),
        *(f"P{number}000000 19{number:02} {number:02}" for number in range(100)),
        prompts.task("x", 20000101),
        prompts.view([prompts.paper("P1", 20000101, "x", "x", 1, 1)], 2, [prompts.searched("x", 1, 1)]),
        prompts.NO_PAPERS,
        prompts.expanded("P1", 1, 1),
        *(prompts.refused("expand", "x", reason) for reason in (*why, prompts.too_long(2, LONGEST_QUERY))),
        "The search expand[x] [expanded] Invalid action: x. Tools: x, x.",
        *_codec_errors(PaperSearchEnv.tools, "brackets"),
        *_HISTORY,
    ]


def searchqa_texts() -> list[str]:
    """Returns the texts of the generated encyclopaedia without the names that are made of syllables."""
    from envsuite.searchqa import prompts
    from envsuite.searchqa.entities import DATES, LINKED, PROFESSIONS, table
    from envsuite.searchqa.env import SearchQAEnv
    from envsuite.searchqa.pages import MONTHS

    names = {name: texts for name, texts in table("names").items() if name not in _ENDINGS}
    return [
        *(re.sub(r"\{\w*\}", " ", text) for text in _strings([names, table("pages"), table("questions")])),
        *(noun.lower() for noun in names["nouns"]),
        *(*MONTHS, *LINKED, *LINKED.values(), *DATES, *(profession for profession, _ in PROFESSIONS)),
        *(prompts.task("x", True), prompts.NOTHING, prompts.EMPTY_QUERY, prompts.EMPTY_ANSWER),
        *(prompts.searched("x", 3, 2, again=True), prompts.refused("search", "x", "x"), prompts.view(["[x]"], 3, "x")),
        *_ENCYCLOPAEDIA.splitlines(),
        *_codec_errors(SearchQAEnv.tools, "brackets"),
        *_HISTORY,
    ]


def papersearch_splits() -> str:
    """Returns where keys, numbers and invented words are split: ``P 3 16 62 67``, ``20 23``, ``l o br e tor``.

    An invented word has one or two pairs of onset and vowel, then an ending.
    """
    from envsuite.papersearch.vocabulary import table

    onset, vowel, coda = ("|".join(table("words")[name]) for name in ("onsets", "vowels", "codas"))
    end, pair = f"(?:{coda})(?![a-z])", f"(?:{onset})(?:{vowel})"
    return (
        rf"(?<=P)(?=[0-9])|(?<=[0-9])(?=(?:[0-9]{{2}})+(?![0-9]))"
        rf"|(?<=[aeiouy])(?=(?:{pair})?{end})|(?<=[a-z])(?=(?:{vowel})(?:{pair})?{end})"
    )


def searchqa_syllables() -> list[str]:
    """Returns the syllables of the encyclopaedia's names, but for the first ones, which are words."""
    from envsuite.searchqa.entities import table

    return [syllable for name in _ENDINGS for syllable in table("names")[name]]


def _strings(texts: Any) -> Iterator[str]:
    """Yields the strings in lists and mappings."""
    if isinstance(texts, str):
        yield texts
        return
    for one in texts.values() if isinstance(texts, dict) else texts:
        yield from _strings(one)


_ENDINGS = ("middle", "surnames", "towns", "rivers", "countries")
_ENCYCLOPAEDIA = """
search[x] answer[x] 1,234 km "x" (x) & He he She she His his Her her him wife husband an a's
year founded population length currency town person country river university company film song novel museum
Invalid action: unknown tool 'x'; known: search, answer. Tools: search, answer. unanswerable Doc 1(Title: "x")
"""
_PYTHON = """
python[print(1+2)] answer[-3/4] 1.5 x=(1) timeout: stopped after 5 s. Ellipsis None True False
stderr: Traceback (most recent call last): File "<cell 1>", line 1, in <module> ~~^~~
NameError: name 'x' is not defined ZeroDivisionError: division by zero ValueError TypeError Error
SyntaxError: '(' was never closed unmatched ')' invalid syntax. Perhaps you forgot a comma? unexpected EOF
Invalid action: unknown tool 'x'; known: python, answer. Tools:
"""
_SHOP = """
Search page. Search for a product with the tool `search`.
Results 1-10 of 50 for 'x': gh12gh $1.00 to $2.00: No more results for "x" (page 6, 50 in all).
Description Features Reviews of x: - (none) Price: $1.00. Rating: N.A. color: [red], blue
Chosen with color = red. Chosen: nothing. No options. Bought x. Score: 1.000 of 1. Nothing happened: Invalid action
search[x; y] click[back to search] click[< prev] click[next >] click[buy now] gh 20 > 10. kd 5 < 10
and price lower than 40.00 dollars
"""
_HISTORY = ("[1 earlier steps left out]", "Observation: Action: none")


def _codec_errors(tools: Any, name: str = "tags") -> list[str]:
    codec = make_codec(name, think=False)
    return [codec.parse(text, tools, 1).error or "" for text in ("", "<action>", "a")]
