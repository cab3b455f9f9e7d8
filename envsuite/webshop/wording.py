"""The texts of the built-in shop: titles, descriptions, bullets, reviews, and instructions.

No text may name an attribute that its product does not have, since the reward searches these texts for attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.webshop.assortment import Fact, ProductKind
from envsuite.webshop.dice import Dice
from envsuite.webshop.products import Review

_STARTS = """
    ba be bo bra bri cal cor da del dra el fa fen fi ga gri ha hal jo ka kel la lor lu ma mer mo na nor o pa pel
    qui ra ren ro sa sel sho ta tor tri u va ven vi wa wes xa yo za zen
""".split()
_MIDDLES = "ba bi da den di do fa gi la len li lo ma mi na ne ni no ra ri ro sa shi so ta ti to va vi zo".split()
_ENDS = """
    bex co da dor dy fy gen jo ka kin la lex lia lo ly mar mo na nix no ra ria rix ro sa ta tec tia to va ven
    via vo xa zon
""".split()
_CODES = "ABCDEFGHJKLMNPQRSTUVWXYZ"

_INTROS = (
    "The {brand} {name} is made for {use}.",
    "Meet the new {name} by {brand}, for {use} and everything around it.",
    "{brand} has been making {query} in a small town for three generations.",
    "Whoever has {use} in mind will like this {name}.",
    "About this {name}: designed by {brand}, tried out by a hundred customers, meant for {use}.",
    "We at {brand} asked people what they miss in their {query}, and then listened.",
    "A {name} that does what a {name} should do, by {brand}.",
    "From {brand}: one of the {query} that our customers order a second time.",
)
_FILLER = (
    "Every order leaves our warehouse within a day.",
    "If anything is wrong, write to us and we will make it right.",
    "The colors on your display can differ a little from what you will hold in your hands.",
    "Please compare the measurements in the pictures before you order.",
    "More than a few reviewers bought a second one for a friend.",
    "It arrives in a plain carton without any plastic.",
    "Think of it for birthdays, graduations and housewarmings.",
    "{brand} stands behind it with a guarantee of two years.",
    "We test one in every hundred by hand.",
    "A manual in four languages and a number to call are inside.",
    "Not sure about the choice? Our team answers within a day.",
    "Since the first batch we have changed eleven details.",
    "There are many {query}; this is the one we use ourselves.",
    "Good for {use}, and for what comes afterwards.",
    "It was designed together with people who need a {name} every week.",
    "Thirty days are enough to try it, and sending it back costs nothing.",
)
_WANTED = (
    "Made for whoever looks for {one} {asked}.",
    "The right choice if you want {one} {asked}.",
    "Perhaps you have been after {one} {asked}: here it is.",
    "Customers tell us that they wanted {one} {asked}.",
)
_BULLETS = (
    "WHAT YOU GET: one {name} by {brand}, with a card that tells how to use it",
    "OUR PROMISE: ask for your money within thirty days and you will have it",
    "A GOOD IDEA FOR {upper}: and for anybody who thinks ahead",
    "ABOUT {shout}: a family business that sells {query} and little else",
    "PACKED WITH CARE: leaves us within a day, in a carton without plastic",
    "PLEASE NOTE: pictures are taken in daylight, so your display may show other tones",
    "QUESTIONS: our team answers within a day, on Sundays too",
    "TRIED OUT: a hundred customers used it for a month before we sold the first",
)
_REVIEWS = (
    ("As described", "Came on time and is what the pictures show."),
    ("Good for {use}", "I bought it for {use} and would do it again."),
    ("Second one already", "My sister took the first, so I ordered another {name}."),
    ("Does the job", "Nothing fancy, but the {name} does what it should."),
    ("Not quite for me", "I had imagined it differently. Sending it back was simple."),
    ("Very happy", "I have had three other {query} and this one is the best of them."),
    ("It is fine", "Fine for the price. The carton was dented."),
    ("Ask the seller", "I had a question and {brand} answered the same evening."),
    ("After two months", "Still like new, and I use it every day."),
    ("A present", "My father liked it so much that he called me twice."),
    ("Think about the choices", "Take your time with the options, I got the wrong one first."),
    ("Hm", "Others here are more enthusiastic than I am."),
)

_OPENINGS = (
    "i am looking for {}",
    "i'm looking for {}",
    "i need {}",
    "i want {}",
    "i want to buy {}",
    "i would like {}",
    "i'd like to order {}",
    "can you find me {}",
    "could you help me find {}",
    "please find me {}",
    "looking for {}",
    "show me {}",
    "get me {}",
    "hello, i am trying to find {}",
    "my sister needs {}",
    "for my dad i want {}",
    "i am shopping for {}",
    "i am in need of {}",
    "help me pick {}",
    "do you have {}",
)
_COMPOSED = ("Find me", "Show me", "Get me", "I need", "I want", "I am looking for", "Help me find", "Search for")
_OTHER_WORDS = {
    "xs": "extra small",
    "s": "small",
    "m": "medium",
    "l": "large",
    "xl": "extra large",
    "xxl": "double extra large",
    "3xl": "triple extra large",
    "4xl": "quadruple extra large",
    **dict(
        zip(
            "5 6 7 8 9 10 11 12 13".split(), "five six seven eight nine ten eleven twelve thirteen".split(), strict=True
        )
    ),
    "single": "just one of them",
    "trio": "three of them",
    "half dozen": "six of them",
}
"""Sizes and packs in the words of instructions."""
_OPTIONS = {
    "color": ("in {}", "in {} color", "{} colored"),
    "size": ("in size {}", "size {}", "the size should be {}"),
    "flavor": ("in {} flavor", "{} flavored", "with the flavor {}"),
    "scent": ("with {} scent", "{} scented", "the scent should be {}"),
    "length": ("{} long", "with a length of {}", "the length is {}"),
    "pack": ("as a {} pack", "in the {} pack"),
    "pattern": ("with a {} pattern", "the pattern is {}"),
}
"""Wordings of an option in instructions; ``in the {value} {name}`` for others."""


def sentences() -> list[str]:
    """Returns all sentences, with placeholders such as ``{brand}``: for building vocabularies."""
    tables: tuple[Sequence[str], ...] = (_INTROS, _FILLER, _WANTED, _BULLETS, _OPENINGS, _COMPOSED)
    return [
        *(text for table in tables for text in table),
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
    parts = [dice.choose(_INTROS)]
    for fact in facts:
        way, label = dice.below(4), fact.label[0].upper() + fact.label[1:]
        if way == 0:
            parts.append(f"{label}: {fact.sentence}")
        elif way == 1:
            parts.append(f"{dice.choose(_WANTED).replace('{asked}', dice.choose(fact.phrases))} {fact.sentence}")
        else:
            parts.append(f"{label}. {fact.sentence}")
    parts += dice.sample(_FILLER, dice.below(5))
    return _fill_marks(" ".join(parts), kind, maker)


def bullets(kind: ProductKind, maker: str, facts: Sequence[Fact], last: Sequence[Fact], dice: Dice) -> tuple[str, ...]:
    """Draws the lines of the page Features: one for each of ``facts`` and, not first, of ``last``, and others."""
    filler = dice.sample(_BULLETS, 1 + dice.below(3))
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
    text = dice.choose(_OPENINGS).format(phrase)
    if apart:
        opening = dice.choose(("i want it", "it should be", "please make it", "i would take it"))
        text += f". {opening} {_join_words(options)}"
    return text


def compose_instruction(kind: ProductKind, facts: Sequence[Fact], dice: Dice) -> str:
    """Draws the instruction to which the shop appends every combination of options."""
    before = [fact.attribute for fact in facts if not _follows(fact)]
    after = [fact.label for fact in facts if _follows(fact)]
    return " ".join((dice.choose(_COMPOSED), *([", ".join(before)] if before else []), kind.query, *after))


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
