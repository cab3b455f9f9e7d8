"""The text of a product that the search indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def documents(products: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields ASIN and text of each product, as in the original's index (WebShop, Yao et al. 2022).

    Skips a product whose ASIN is ``nan``, is longer than ten characters, or has occurred before.
    """
    asins = set()
    for product in products:
        asin = product["asin"]
        if asin != "nan" and len(asin) <= 10 and asin not in asins:
            asins.add(asin)
            yield asin, document(product)


def document(product: Mapping[str, Any]) -> str:
    """Returns the indexed text of a product: name, description, first bullet and options, in lower case.

    Args:
        product: A product of the official JSON: ``name``, ``full_description``, ``small_description`` (bullets as a
            list, or one text) and ``customization_options`` (lists of values by name). Each may be null or empty.
    """
    bullets = product["small_description"] or ()
    return text_of(
        product["name"] or "",
        product["full_description"] or "",
        [bullets] if isinstance(bullets, str) else bullets,
        options(product),
    )


def text_of(title: str, description: str, bullets: Sequence[str], options: Mapping[str, Sequence[str]]) -> str:
    """Returns the indexed text from cleaned fields; the options are lower-case values by name."""
    choices = ", and ".join([f"{name}: {', '.join(values)}" for name, values in options.items() if values])
    first = (bullets[0] if bullets else "") or ""
    return f"{title} {description} {first} {choices}".lower()


def options(product: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the values of each option in lower case, with `` | `` for a slash; skips options that are null."""
    choices = product["customization_options"] or {}
    return {
        name.lower(): [value["value"].strip().replace("/", " | ").lower() for value in values]
        for name, values in choices.items()
        if values
    }
