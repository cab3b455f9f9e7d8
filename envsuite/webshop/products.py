"""The products of the shop, for pages, goals and reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Review:
    """A customer's review of a product."""

    title: str
    score: str
    """Stars, as shown, e.g. ``"4.0"``."""
    body: str


@dataclass(frozen=True, slots=True)
class Card:
    """A product on a page of results."""

    asin: str
    title: str
    price_tag: str


@dataclass(frozen=True, slots=True)
class Product:
    """One product."""

    asin: str
    """Unique id, at most 10 characters."""
    title: str
    description: str
    bullets: tuple[str, ...]
    """The lines of the page Features."""
    options: Mapping[str, tuple[str, ...]]
    """Name of an option -> its values, lower-case, in the order of the page."""
    attributes: tuple[str, ...]
    """Its attributes, e.g. ``"gluten free"``; hidden from the agent."""
    category: str
    """Department: beauty, garden, grocery, electronics, fashion."""
    query: str
    """The query that found it when the data were collected, lower-case: its kind; hidden from the agent."""
    product_category: str
    """Path of categories, joined by a single right-pointing angle quotation mark; hidden from the agent."""
    price_tag: str
    """The price as shown: ``"$18.5"``, or a range."""
    price: float
    """Its price in dollars: drawn once from the range where the tag is one."""
    image: str = ""
    """Address of the picture."""
    option_images: Mapping[str, str] = field(default_factory=dict)
    """Value of an option -> address of its picture, where it has one."""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    nouns: tuple[str, ...] = ()
    """The nouns of the title, lower-case, with repetitions; the reward compares titles by them."""


_IN_COLUMNS = ("asin", "title", "price_tag")
_IN_BODY = tuple(field.name for field in fields(Product) if field.name not in _IN_COLUMNS)


def pack(product: Product) -> bytes:
    """Encodes all fields that are not columns of the catalogue, as JSON."""
    return orjson.dumps({name: getattr(product, name) for name in _IN_BODY})


def unpack(asin: str, title: str, price_tag: str, body: bytes) -> Product:
    """Decodes a product that :func:`pack` encoded as ``body``."""
    fields: dict[str, Any] = orjson.loads(body)
    fields["options"] = {name: tuple(values) for name, values in fields["options"].items()}
    fields["reviews"] = tuple(Review(**review) for review in fields["reviews"])
    for name in ("bullets", "attributes", "nouns"):
        fields[name] = tuple(fields[name])
    return Product(asin=asin, title=title, price_tag=price_tag, **fields)
