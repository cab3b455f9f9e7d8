"""Reads the pages of the generated encyclopaedia: the sentences of :mod:`~envsuite.searchqa.pages`, backwards."""

from __future__ import annotations

import re
from functools import cache

from envsuite.searchqa.entities import table

_PRONOUNS = {
    **{"He": "He|She", "he": "he|she", "His": "His|Her", "his": "his|her"},
    **{"wife": "wife|husband", "him_or_her": "him|her"},
}
_TITLE = re.compile(r"(.*) \(([^()]*)\)")


def stated(text: str, relation: str) -> str | None:
    """Returns the value of a relation as a page's text words it; ``None`` if no sentence states it."""
    for sentence in re.split(r"(?<=[.!?]) ", text):
        for form in _forms(relation):
            if (found := form.fullmatch(sentence)) is not None:
                return found["value"]
    return None


def spoken(title: str) -> str:
    """Returns how questions speak of the entity of a page, without its article."""
    found = _TITLE.fullmatch(title)
    if found is None:
        return title
    name, descriptor = found.groups()
    return f"town of {name}" if descriptor == "town" else f"{descriptor} {name}"


def speaks_of(mention: str, title: str) -> bool:
    """Whether a name, as a question or a page writes it, is that of the page ``title``."""
    names = (title, spoken(title))
    return mention in names or mention.removeprefix("the ").removeprefix("The ") in names


@cache
def _forms(relation: str) -> tuple[re.Pattern[str], ...]:
    texts = [text for kind in table("pages").values() for text in kind.get(relation, ())]
    return tuple(re.compile(_pattern(text)) for text in dict.fromkeys(texts))


def _pattern(template: str) -> str:
    parts = re.split(r"\{(\w+)\}", template)
    for place in range(1, len(parts), 2):
        name = parts[place]
        parts[place] = "(?P<value>.+)" if name == "value" else f"(?:{_PRONOUNS.get(name, '.+')})"
    return "".join(part if place % 2 else re.escape(part) for place, part in enumerate(parts))
