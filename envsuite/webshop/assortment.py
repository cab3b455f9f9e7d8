"""The assortment of the built-in shop: kinds of products, their possible attributes and options.

Kinds, facets and options are tables in the text files of the folder ``tables``. A product has one value of each of some
facets of its kind; the values of one facet exclude each other, which makes products near misses of each other. The
reward accepts no value for another one, in any kind: ``tests/webshop/test_webshop_assortment.py`` checks this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SMALL = ("a", "and", "at", "of", "the", "to")
"""Words in lower case within titles."""
FOLDER = Path(__file__).parent / "tables"
SEPARATOR = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


@dataclass(frozen=True, slots=True)
class Fact:
    """A possible attribute of a product, with its wordings."""

    attribute: str
    """The attribute, hidden from the customer: ``"easy clean"``."""
    label: str
    """The wording in titles and bullets: ``"Easy to Clean"``."""
    phrases: tuple[str, ...]
    """Other wordings in instructions, which follow a noun: ``"that wipes clean"``."""
    sentence: str
    """Its sentence in descriptions."""


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A kind of product."""

    query: str
    """Its plural in lower case, as a search query."""
    name: str
    """Its name in titles."""
    phrase: str
    """With its article, as in instructions: ``"a pair of hiking boots"``."""
    department: str
    path: str
    """Path of categories."""
    cents: tuple[int, int]
    """The usual lowest and highest price, in cents."""
    facets: tuple[tuple[Fact, ...], ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and all values of each possible option, the deciding one first."""
    use: str
    """Its purpose, to follow "for"."""
    words: tuple[tuple[str, str], ...]
    """Replacements of the placeholders in texts about it."""

    @property
    def use_title(self) -> str:
        """Returns :attr:`use` in title case."""
        return self.words[-1][1]


@cache
def facets() -> Mapping[str, tuple[Fact, ...]]:
    """Returns the values of each facet, by its name."""
    by_name: dict[str, list[Fact]] = {}
    for name, line in _sections("facets.txt"):
        attribute, label, wordings, sentence = (part.strip() for part in line.split("|"))
        ways = tuple(way.strip() for way in wordings.split(";"))
        by_name.setdefault(name, []).append(Fact(attribute, label, ways, sentence))
    return {name: tuple(facts) for name, facts in by_name.items()}


@cache
def options() -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Returns name and values of each option, by the name of its table."""
    by_name = {}
    for name, line in _sections("options.txt"):
        label, values = line.split("|")
        by_name[name] = label.strip(), tuple(value.strip() for value in values.split(","))
    return by_name


@cache
def kinds() -> tuple[ProductKind, ...]:
    """Returns all kinds, department by department."""
    product_kinds = []
    for department, line in _sections("kinds.txt"):
        query, name, phrase, path, prices, facet_names, option_names, use = (part.strip() for part in line.split("|"))
        phrase = phrase or f"{'an' if name[0] in 'AEIOU' else 'a'} {name.lower()}"
        low, high = (int(price) * 100 for price in prices.split("-"))
        kind = ProductKind(
            query=query,
            name=name,
            phrase=phrase,
            department=department,
            path=f" {SEPARATOR} ".join(part.strip() for part in path.split(">")),
            cents=(low, high),
            facets=tuple(facets()[facet] for facet in facet_names.split()),
            options=tuple(options()[option] for option in option_names.split()),
            use=use,
            words=(
                *(("{name}", name.lower()), ("{query}", query), ("{one}", phrase)),
                *(("{upper}", use.upper()), ("{use}", use)),
                ("{title}", " ".join(word if word in _SMALL else word.capitalize() for word in use.split())),
            ),
        )
        product_kinds.append(kind)
    return tuple(product_kinds)


@cache
def kind_of(query: str) -> ProductKind | None:
    """Returns the kind whose query is ``query``; ``None`` if the shop does not sell it."""
    return next((kind for kind in kinds() if kind.query == query), None)


def _sections(name: str) -> Iterator[tuple[str, str]]:
    """Yields the lines of a table with their ``[section]``; skips blank lines and ``#`` comments."""
    section = ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            yield section, line
