"""The texts of the built-in shop: titles, descriptions, bullets, reviews, and instructions.

Their sentences are in ``tables/texts.json``. No text may name an attribute that its product does not have, since the
reward searches these texts for attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from envsuite.webshop.assortment import FOLDER, Fact, ProductKind
from envsuite.webshop.dice import Dice
from envsuite.webshop.products import Review

_TABLE: Mapping[str, Any] = orjson.loads((FOLDER / "texts.json").read_bytes())
_STARTS: list[str] = _TABLE["starts"].split()
"""Syllables of brands."""
_MIDDLES: list[str] = _TABLE["middles"].split()
_ENDS: list[str] = _TABLE["ends"].split()
_CODES = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_TEXTS: Mapping[str, Sequence[str]] = _TABLE["texts"]
"""Texts by kind: of products, with placeholders such as ``{brand}``, and of instructions, with ``{}``."""
_REVIEWS: Sequence[tuple[str, str]] = _TABLE["reviews"]
"""Heads and texts."""
_OTHER_WORDS: Mapping[str, str] = _TABLE["other_words"]
"""Sizes and packs in the words of instructions."""
_OPTIONS: Mapping[str, Sequence[str]] = _TABLE["options"]
"""Wordings of an option in instructions; ``in the {value} {name}`` for others."""


def sentences() -> list[str]:
    """Returns all sentences, with placeholders such as ``{brand}``: for building vocabularies."""
    return [
        *(text for texts in _TEXTS.values() for text in texts),
        *(text for review in _REVIEWS for text in review),
        *(text for pair in _OTHER_WORDS.items() for text in pair),
        *(form for forms in _OPTIONS.values() for form in forms),
        "Model, Great for, Ideal for, Made with, in Mind, in the, and, of",
        "i want it, it should be, please make it, i would take it",
    ]


def brand(dice: Dice) -> str:
    """Draws the name of a brand."""
    middle = dice.choose(_MIDDLES) if dice.below(3) else ""
    return (dice.choose(_STARTS) + middle + dice.choose(_ENDS)).capitalize()


def title(kind: ProductKind, maker: str, facts: Sequence[Fact], dice: Dice) -> str:
    """Draws the title of a product that shows some ``facts``."""
    before = [fact.label for fact in facts if not _follows(fact)]
    after = [fact.label for fact in facts if _follows(fact)]
    code = f"{dice.choose(_CODES)}{dice.choose(_CODES)}{dice.below(9000) + 1000}"
    shape = dice.below(4)
    if shape == 0:
        parts = [" ".join((maker, *before[:1], kind.name, *after[:1])), *before[1:], *after[1:]]
        parts += [f"Great for {kind.use_title}", f"Model {code}"]
    elif shape == 1:
        parts = [f"{maker} {kind.name} {code}", *before, *after, f"Ideal for {kind.use_title}"]
    elif shape == 2:
        parts = [" ".join((maker, kind.name, *after[:1])), *before, *after[1:], f"for {kind.use_title} ({code})"]
    else:
        parts = [" ".join((maker, code, *before, kind.name, *after)), f"Made with {kind.use_title} in Mind"]
    return ", ".join(parts)


def description(kind: ProductKind, maker: str, facts: Sequence[Fact], dice: Dice) -> str:
    """Draws a description, which states ``facts``."""
    parts = [dice.choose(_TEXTS["intros"])]
    for fact in facts:
        way, label = dice.below(4), fact.label[0].upper() + fact.label[1:]
        if way == 0:
            parts.append(f"{label}: {fact.sentence}")
        elif way == 1:
            wanted = dice.choose(_TEXTS["wanted"]).replace("{asked}", dice.choose(fact.phrases))
            parts.append(f"{wanted} {fact.sentence}")
        else:
            parts.append(f"{label}. {fact.sentence}")
    parts += dice.sample(_TEXTS["filler"], dice.below(5))
    return _fill_marks(" ".join(parts), kind, maker)


def bullets(kind: ProductKind, maker: str, facts: Sequence[Fact], last: Sequence[Fact], dice: Dice) -> tuple[str, ...]:
    """Draws the lines of the page Features: one for each of ``facts`` and, not first, of ``last``, and others."""
    filler = dice.sample(_TEXTS["bullets"], 1 + dice.below(3))
    shout = dice.below(3)
    labels = [fact.label.upper() if shout else fact.label[0].upper() + fact.label[1:] for fact in (*facts, *last)]
    lines = [f"{label}: {fact.sentence}" for label, fact in zip(labels, (*facts, *last), strict=True)]
    if not facts:
        lines.insert(0, filler.pop())
    return tuple(_fill_marks(line, kind, maker) for line in (*lines, *filler))


def reviews(kind: ProductKind, maker: str, dice: Dice) -> tuple[str, tuple[Review, ...]]:
    """Draws the mean rating as shown, and reviews; often there are none."""
    number = max(0, dice.below(6) - 1)
    if not number:
        return "N.A.", ()
    stars = [max(1 + dice.below(5), 1 + dice.below(5), 1 + dice.below(5)) for _ in range(number)]
    texts = dice.sample(_REVIEWS, number)
    tenths = (sum(stars) * 20 + number) // (2 * number)
    entries = tuple(
        Review(_fill_marks(head, kind, maker), f"{score}.0", _fill_marks(body, kind, maker))
        for (head, body), score in zip(texts, stars, strict=True)
    )
    return f"{tenths // 10}.{tenths % 10}", entries


def wish(kind: ProductKind, facts: Sequence[Fact], picks: Sequence[tuple[str, str]], vagueness: int, dice: Dice) -> str:
    """Draws an instruction in the style of people.

    Args:
        kind: The kind of product.
        facts: The attributes asked for.
        picks: Name and value of the options asked for.
        vagueness: Percentage of facts, and of options with other wordings, that use another wording.
        dice: Source of randomness.
    """
    before: list[str] = []
    after: list[str] = []
    for fact in facts:
        if dice.chance(vagueness):
            after.append(dice.choose(fact.phrases))
        else:
            (after if _follows(fact) else before).append(fact.label.lower())
    options = [_option(name, value, vagueness, dice) for name, value in picks]
    apart = bool(options) and dice.chance(30)
    phrase = " ".join((_with_words(kind.phrase, before), *([_join_words(after)] if after else [])))
    if options and not apart:
        phrase += f"{',' if after else ''} {_join_words(options)}"
    text = dice.choose(_TEXTS["openings"]).format(phrase)
    if apart:
        opening = dice.choose(("i want it", "it should be", "please make it", "i would take it"))
        text += f". {opening} {_join_words(options)}"
    return text


def compose_instruction(kind: ProductKind, facts: Sequence[Fact], dice: Dice) -> str:
    """Draws the instruction to which the shop appends every combination of options."""
    before = [fact.attribute for fact in facts if not _follows(fact)]
    after = [fact.label for fact in facts if _follows(fact)]
    return " ".join((dice.choose(_TEXTS["composed"]), *([", ".join(before)] if before else []), kind.query, *after))


def _follows(fact: Fact) -> bool:
    """Whether its label follows the noun."""
    return fact.label.startswith(("for ", "with "))


def _option(name: str, value: str, vagueness: int, dice: Dice) -> str:
    if value in _OTHER_WORDS and dice.chance(vagueness):
        value = _OTHER_WORDS[value]
        if name == "pack":
            return value
    return dice.choose(_OPTIONS.get(name, (f"in the {{}} {name}", f"with {name} {{}}"))).format(value)


def _with_words(phrase: str, words: Sequence[str]) -> str:
    """Inserts ``words`` before the noun in ``phrase``, and adapts the article."""
    if not words:
        return phrase
    head, separator, noun = phrase.partition(" of ")
    if not separator:
        _, _, noun = phrase.partition(" ")
        head = "an" if words[0][0] in "aeiou" else "a"
    return f"{head}{separator or ' '}{', '.join(words)} {noun}"


def _join_words(parts: Sequence[str]) -> str:
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _fill_marks(text: str, kind: ProductKind, maker: str) -> str:
    if "{" not in text:
        return text
    for mark, word in kind.words:
        text = text.replace(mark, word)
    return text.replace("{brand}", maker).replace("{shout}", maker.upper())
