"""What the built-in shop can sell: kinds of products, what may be true of them, and the options they come in.

Kinds, facets and options are tables in the text files of the folder ``tables``, so that a shop-keeper can read
them. A product has one value of each of some facets of its kind; values of one facet exclude each other, which is what
makes a product a near miss of another. No value counts as another one in the reward, in no kind:
``tests/webshop/test_webshop_assortment.py`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SMALL = ("a", "and", "at", "of", "the", "to")
"""Words that titles write small."""
FOLDER = Path(__file__).parent / "tables"
SEPARATOR = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that may be true of a product."""

    attribute: str
    """As the shop knows it, hidden from the customer: ``"easy clean"``."""
    label: str
    """As titles and bullets say it: ``"Easy to Clean"``."""
    asked: tuple[str, ...]
    """How people ask for it in other words, to follow the name of a thing: ``"that wipes clean"``."""
    told: str
    """A sentence about it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product."""

    query: str
    """Its plural, in lower case: what people search for."""
    name: str
    """As titles write it."""
    one: str
    """With its article, as people ask for it: ``"a pair of hiking boots"``."""
    department: str
    path: str
    """Of categories."""
    cents: tuple[int, int]
    """The usual lowest and highest price."""
    facets: tuple[tuple[Fact, ...], ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and all values of each option it may have, the deciding one first."""
    use: str
    """What it is for, to follow "for"."""
    words: tuple[tuple[str, str], ...]
    """What stands for the marks in the texts about it."""

    @property
    def use_title(self) -> str:
        """:attr:`use` as titles write it."""
        return self.words[-1][1]


@cache
def facets() -> Mapping[str, tuple[Fact, ...]]:
    """The values of each facet, by its name."""
    found: dict[str, list[Fact]] = {}
    for name, line in _sections("facets.txt"):
        attribute, label, asked, told = (part.strip() for part in line.split("|"))
        ways = tuple(way.strip() for way in asked.split(";"))
        found.setdefault(name, []).append(Fact(attribute, label, ways, told))
    return {name: tuple(facts) for name, facts in found.items()}


@cache
def options() -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Name and values of each option, by the name of its table."""
    found = {}
    for name, line in _sections("options.txt"):
        label, values = line.split("|")
        found[name] = label.strip(), tuple(value.strip() for value in values.split(","))
    return found


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds, department by department."""
    found = []
    for department, line in _sections("kinds.txt"):
        query, name, one, path, prices, its_facets, its_options, use = (part.strip() for part in line.split("|"))
        one = one or f"{'an' if name[0] in 'AEIOU' else 'a'} {name.lower()}"
        low, high = (int(price) * 100 for price in prices.split("-"))
        found.append(
            Kind(
                query=query,
                name=name,
                one=one,
                department=department,
                path=f" {SEPARATOR} ".join(part.strip() for part in path.split(">")),
                cents=(low, high),
                facets=tuple(facets()[facet] for facet in its_facets.split()),
                options=tuple(options()[option] for option in its_options.split()),
                use=use,
                words=(
                    ("{name}", name.lower()),
                    ("{query}", query),
                    ("{one}", one),
                    ("{upper}", use.upper()),
                    ("{use}", use),
                    ("{title}", " ".join(word if word in _SMALL else word.capitalize() for word in use.split())),
                ),
            )
        )
    return tuple(found)


@cache
def kind_of(query: str) -> Kind | None:
    """The kind that people find by ``query``; ``None`` if the shop does not sell it."""
    return next((kind for kind in kinds() if kind.query == query), None)


def _sections(name: str) -> Iterator[tuple[str, str]]:
    """The lines of a table with the ``[section]`` that they are in; blank lines and ``#`` comments are none."""
    section = ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            yield section, line
