"""Reads products and wishes from the official files, cleaned as in the original."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.data.part import sha256_of
from envsuite.data.places import data_root
from envsuite.webshop.json_stream import elements, members
from envsuite.webshop.products import Review

LONGEST_ASIN = 10
UNPRICED = 100.0
"""Price in dollars of a product without one."""
UNKNOWN_ATTRIBUTE = "DUMMY_ATTR"
"""The attribute of a product that the attribute file does not have."""
NEEDED = (
    *("asin", "name", "category", "query", "product_category", "full_description", "small_description"),
    *("customization_options", "images"),
)
"""Required fields of an entry in the product file."""
HUMAN = "items_human_ins.json"
"""The instructions of people, for the products of either set."""


class OfficialSet(NamedTuple):
    """One of the two sets of files that the authors publish."""

    suffix: str
    """Ending of the names of its product and attribute file."""
    data_set: str
    """Its name in ``envsuite data fetch``."""


SETS = {"official-1k": OfficialSet("_1000", "webshop"), "official-full": OfficialSet("", "webshop-full")}
"""The official sets, as ``source`` names them: 1,000 and 1.18 million products."""
WHICH = "Give source= 'official-1k' (1,000 products) or 'official-full' (1.18 million)"
"""Remedy where the set is not said."""


@dataclass(frozen=True, slots=True)
class RawProduct:
    """A cleaned product from the file; its price is still to be drawn."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    option_images: Mapping[str, str]
    category: str
    query: str
    product_category: str
    prices: tuple[float, ...]
    """One or two prices, in dollars."""
    price_tag: str
    image: str
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    """The official files have none, as in the original."""


class Stock(Protocol):
    """The input of a catalogue."""

    @property
    def title(self) -> str:
        """Title, in a few words, written into the catalogue."""

    @property
    def family(self) -> int:
        """Number of neighbouring products that are nearly alike and share a split; 0 with published splits."""

    def raw_products(self, skip: int = 0) -> Iterator[RawProduct]:
        """Yields the products after the first ``skip``, in order; ASINs are unique."""

    def known_attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields ASIN and ``attributes``; for some also ``instruction`` and ``instruction_attributes``."""

    def wishes_of_people(self) -> dict[str, list[dict[str, Any]]]:
        """Returns ASIN -> instructions, each with ``instruction_attributes`` and ``instruction_options``."""

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of the content."""


@dataclass(frozen=True, slots=True)
class CatalogueFiles:
    """The official files of one catalogue: a :class:`Stock`."""

    products: Path
    attributes: Path
    human: Path | None = None

    @property
    def title(self) -> str:
        """The names of the files."""
        return ", ".join(path.name for path in (self.products, self.attributes, self.human) if path is not None)

    @property
    def family(self) -> int:
        """0: the official goals have published splits."""
        return 0

    def raw_products(self, skip: int = 0) -> Iterator[RawProduct]:
        """See :func:`products_of`."""
        return products_of(self.products, skip)

    def known_attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """See :func:`attributes_of`."""
        return attributes_of(self.attributes)

    def wishes_of_people(self) -> dict[str, list[dict[str, Any]]]:
        """See :func:`wishes_of`; none without the file."""
        return {} if self.human is None else wishes_of(self.human)

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of the content of the files.

        Raises:
            DataError: A file is missing.
        """
        total = hashlib.sha256()
        for path in (self.products, self.attributes, self.human):
            if path is None:
                total.update(hashlib.sha256().digest())
            else:
                with file_errors(path):
                    total.update(bytes.fromhex(sha256_of(path)))
        return total.hexdigest()


def official_files(source: str | Path | None = None) -> CatalogueFiles:
    """Returns the official files of a set, or those in a folder.

    Args:
        source: One of :data:`SETS`, in the folder ``webshop`` of the data root; or a folder with the files of one set.
            ``None`` is that folder of the data root.

    Raises:
        DataError: The files are not there, or the folder has both sets and ``source`` does not say which.
    """
    is_set_name = isinstance(source, str) and source in SETS
    place = data_root() / "webshop" if is_set_name or source is None else Path(source)
    names = [name for name in SETS if not is_set_name or name == source]
    sets = [files for name in names if (files := _files(place, name)) is not None]
    if len(sets) == 1:
        return sets[0]
    if sets:
        hint = WHICH if source is None else "Give a folder with one of them, or build a catalogue of each (--products)"
        raise DataError(f"{place}: has both sets of WebShop's files. {hint}")
    needs = " or ".join(f"{' and '.join(_names(name))} ({name})" for name in names)
    fetch = " or ".join(f"`envsuite data fetch {SETS[name].data_set}`" for name in names)
    raise DataError(
        f"{place}: no WebShop data. It needs {needs}, and {HUMAN} for the instructions of people. {fetch} gets them; "
        "or give source= the folder or the catalogue file you have"
    )


def has_official(folder: Path) -> bool:
    """Whether the official files of a set are in ``folder``."""
    return any(_files(folder, name) is not None for name in SETS)


def set_named(products: str) -> str:
    """Returns the official set whose product file has this name; ``"official"`` for other files in that layout."""
    return next((name for name in SETS if _names(name)[0] == products), "official")


def _names(official: str) -> tuple[str, str]:
    return f"items_shuffle{SETS[official].suffix}.json", f"items_ins_v2{SETS[official].suffix}.json"


def _files(place: Path, official: str) -> CatalogueFiles | None:
    products, attributes = (place / name for name in _names(official))
    if not (products.is_file() and attributes.is_file()):
        return None
    human = place / HUMAN
    return CatalogueFiles(products, attributes, human if human.is_file() else None)


def products_of(path: Path, skip: int = 0) -> Iterator[RawProduct]:
    """Yields the products of a product file after the first ``skip``, in order.

    Skips the entries that the original drops: ASINs that are ``"nan"``, longer than 10 characters, or repeated.

    Raises:
        DataError: The file is missing, truncated or not a product file, or an entry is not a product.
    """
    asins: set[str] = set()
    for number, entry in enumerate(elements(path)):
        where = f"{path}, entry {number}"
        if not isinstance(entry, dict):
            raise DataError(f"{where}: a product was expected, not {type(entry).__name__}")
        if missing := [name for name in NEEDED if name not in entry]:
            raise DataError(f"{where}: not an entry of WebShop's product file (without {', '.join(missing)})")
        asin = _text(entry["asin"], where, "asin")
        if not asin or asin == "nan" or len(asin) > LONGEST_ASIN or asin in asins:
            continue
        asins.add(asin)
        if len(asins) > skip:
            yield _product(asin, entry, f"{where} ({asin})")


def attributes_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ASIN and entry of an attribute file (``attributes``; some ``instruction``, ``instruction_attributes``).

    Raises:
        DataError: The file is missing, truncated or foreign.
    """
    for asin, entry in members(path):
        where = f"{path}, entry {asin!r}"
        if not isinstance(entry, dict):
            raise DataError(f"{where}: an object was expected, not {type(entry).__name__}")
        clean: dict[str, Any] = {}
        for name in ("attributes", "instruction_attributes"):
            if entry.get(name) is not None:
                clean[name] = _texts(entry[name], where, name)
        if entry.get("instruction") is not None:
            clean["instruction"] = _text(entry["instruction"], where, "instruction")
        yield _valid(asin), clean


def wishes_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns ASIN -> the instructions that people wrote for it, from ``items_human_ins.json``.

    Raises:
        DataError: The file is missing, truncated or foreign.
    """
    wishes: dict[str, list[dict[str, Any]]] = {}
    for asin, entries in members(path):
        where = f"{path}, entry {asin!r}"
        if not isinstance(entries, list):
            raise DataError(f"{where}: a list was expected, not {type(entries).__name__}")
        wishes[_valid(asin)] = [_wish(entry, where) for entry in entries]
    return wishes


def _wish(entry: Any, where: str) -> dict[str, Any]:
    names = ("instruction", "instruction_attributes", "instruction_options")
    if not isinstance(entry, dict) or not all(name in entry for name in names):
        raise DataError(f"{where}: not an entry of WebShop's instructions (needs {', '.join(names)})")
    return {
        "instruction": _text(entry["instruction"], where, "instruction"),
        "instruction_attributes": _texts(entry["instruction_attributes"], where, "instruction_attributes"),
        "instruction_options": _texts(entry["instruction_options"], where, "instruction_options"),
    }


def _product(asin: str, entry: Mapping[str, Any], where: str) -> RawProduct:
    bullets = entry["small_description"]
    prices, tag = _prices(entry.get("pricing"), where)
    options, option_images = _options(entry["customization_options"], where)
    images = entry["images"]
    return RawProduct(
        asin=asin,
        title=_text(entry["name"], where, "name"),
        description=_text(entry["full_description"], where, "full_description"),
        bullets=_texts(bullets if isinstance(bullets, list) else [bullets], where, "small_description"),
        options=options,
        option_images=option_images,
        category=_text(entry["category"], where, "category"),
        query=_text(entry["query"], where, "query").lower().strip(),
        product_category=_text(entry["product_category"], where, "product_category"),
        prices=prices,
        price_tag=tag,
        image=_text(images[0], where, "images") if isinstance(images, list) and images else "",
    )


def _prices(pricing: Any, where: str) -> tuple[tuple[float, ...], str]:
    """Returns the prices after the dollar signs of a text, and the tag that shows them."""
    if not pricing:
        return (UNPRICED,), f"${UNPRICED}"
    try:
        prices = [float(re.sub(r"[^\d.]", "", part)) for part in pricing.split("$")[1:]]
        tag = f"${prices[0]}" if len(prices) == 1 else f"${prices[0]} to ${prices[1]}"
    except (AttributeError, ValueError, IndexError) as error:
        raise DataError(f"{where}: pricing {pricing!r} names no price; expected e.g. '$18.50' or '$3 - $5'") from error
    return tuple(prices[:2]), tag


def _options(customization: Any, where: str) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Returns options by lower-case name; of names equal in lower case, the last one counts."""
    options: dict[str, tuple[str, ...]] = {}
    images: dict[str, str] = {}
    if not customization:
        return options, images
    if not isinstance(customization, dict):
        raise DataError(f"{where}: customization_options is {type(customization).__name__}, not an object")
    for name, contents in customization.items():
        if contents is None:
            continue
        values = []
        for content in contents if isinstance(contents, list) else [contents]:
            if not isinstance(content, dict) or not isinstance(content.get("value"), str):
                raise DataError(f"{where}: option {name!r} has an entry without a value: {str(content)[:80]}")
            value = _valid(content["value"]).strip().replace("/", " | ").lower()
            values.append(value)
            if isinstance(image := content.get("image"), str):
                images[value] = _valid(image)
        options[_valid(name).lower()] = tuple(values)
    return options, images


def _texts(values: Any, where: str, name: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise DataError(f"{where}: {name} is {type(values).__name__}, not a list")
    return tuple(_text(value, where, name) for value in values)


def _text(value: Any, where: str, name: str) -> str:
    """Returns a text; empty for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is {type(value).__name__}, not text")
    return _valid(value)


def _valid(text: str) -> str:
    """Returns ``text`` with a replacement character for each unpaired surrogate, which no file can store."""
    try:
        orjson.dumps(text)
    except orjson.JSONEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
