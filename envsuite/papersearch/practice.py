"""The teacher to imitate on PaperSearch, and the words that it takes."""

from __future__ import annotations

import re

from envsuite.core.practice import Practice, Spelling
from envsuite.papersearch import prompts
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.literature import PAIRS
from envsuite.papersearch.player import Scholar
from envsuite.papersearch.vocabulary import table
from envsuite.papersearch.world import LONGEST_QUERY
from envsuite.prompting.phrases import phrases


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(Scholar, texts, fresh="corpus_seed", spelling=Spelling(codes=True, splits=splits(), key="P"))


def texts() -> list[str]:
    """Returns the texts of the generated literature without abstracts: its words, parts of invented ones, sentences."""
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
        prompts.view([prompts.paper("P1", 20000101, "x", "x", 1, 1)], 2, [prompts.describe_search("x", 1, 1)]),
        prompts.NO_PAPERS,
        prompts.describe_expansion("P1", 1, 1),
        *(prompts.describe_refusal("expand", "x", reason) for reason in (*why, prompts.too_long(2, LONGEST_QUERY))),
        "The search expand[x] [expanded] Invalid action: x. Tools: x, x.",
        *phrases(PaperSearchEnv.tools),
    ]


def splits() -> str:
    """Returns where keys, numbers and invented words are split: ``P 3 16 62 67``, ``20 23``, ``l o br e tor``.

    An invented word has one or two pairs of onset and vowel, then an ending.
    """
    onset, vowel, coda = ("|".join(table("words")[name]) for name in ("onsets", "vowels", "codas"))
    end, pair = f"(?:{coda})(?![a-z])", f"(?:{onset})(?:{vowel})"
    return (
        rf"(?<=P)(?=[0-9])|(?<=[0-9])(?=(?:[0-9]{{2}})+(?![0-9]))"
        rf"|(?<=[aeiouy])(?=(?:{pair})?{end})|(?<=[a-z])(?=(?:{vowel})(?:{pair})?{end})"
    )
