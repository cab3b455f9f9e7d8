"""The catalogue: the whole shop in one read-only SQLite file, which all sessions and processes share.

It is opened immutable and memory-mapped, so that processes share its pages and a session adds next to no memory.
:mod:`envsuite.webshop.build` builds it.

Tables: ``meta`` (description of the file), ``products`` (in the order of the source; columns for the fields on a page
of results, ``body`` for the rest), ``wishes`` (the common part of several goals, by the number of the first) and
``orders`` (the shuffled numbers of the goals of a kind, unsigned 32-bit). The search index, memory-mapped by
``envsuite.retrieval``, follows SQLite's pages in the same file.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from envsuite.core.errors import DataError, unknown
from envsuite.core.tasks import TaskSet
from envsuite.data.places import cache_root
from envsuite.data.room import hold
from envsuite.retrieval.index import Index
from envsuite.webshop.goals import DEV, Option, ShoppingGoal, Wish, choose
from envsuite.webshop.products import Card, Product, unpack

ENV_ID = "WebShop-v0"
FORMAT = 2
"""Format of the file; increased with every change of its meaning."""
APPLICATION = 0x57425348
"""Application id in SQLite's header, which distinguishes a catalogue from other databases."""
REMEDY = "Build it anew: envsuite data build webshop --out CATALOGUE"
KINDS = ("human", "synthetic")
"""Goals written by people, and goals composed of the options of a product."""


class Catalogue:
    """A catalogue file, opened for reading.

    Args:
        path: The file.

    Raises:
        DataError: It is missing, truncated, not a catalogue, or of another version; the message says what to type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection, self.index_at = _open_catalogue(path)
        """Size of the tables in bytes: the offset of the search index."""
        self.meta: Mapping[str, str] = dict(self._rows("SELECT key, value FROM meta"))
        try:
            self._products = int(self.meta["products"])
            self._goals = {kind: int(self.meta[f"{kind} goals"]) for kind in KINDS}
            self.family = int(self.meta["family"])
            """Number of neighbouring products that are nearly alike and share a split; 0 with published splits."""
            self.version = f"{self._products} products {self.meta['digest'][:12]}, nouns by {self.meta['tagger']}"
            """Version of content and tagger, for results."""
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(error) from error
        self._index: Index | None = None
        self._product = lru_cache(maxsize=64)(self._read)

    def __len__(self) -> int:
        """Number of products."""
        return self._products

    def _rows(self, statement: str, *values: str) -> list[Any]:
        """Returns all rows that ``statement`` selects.

        Raises:
            DataError: The file is damaged.
        """
        try:
            return self._connection.execute(statement, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: Exception) -> DataError:
        return DataError(f"{self.path}: damaged ({type(error).__name__}: {error}). {REMEDY}")

    @property
    def index(self) -> Index:
        """Returns the search index after the tables; opened on first use.

        Raises:
            DataError: The index is truncated or damaged.
        """
        if self._index is None:
            self._index = Index(self.path, self.index_at, remedy=REMEDY)
        return self._index

    def search(self, query: str, k: int) -> list[str]:
        """Returns the ASINs of the ``k`` products that match ``query`` best, best first, as Lucene ranks them."""
        return [hit.key for hit in self.index.search(query, k)]

    def product(self, asin: str) -> Product:
        """Returns the product ``asin``.

        Raises:
            DataError: The catalogue has no such product.
        """
        return self._product(asin)

    def _read(self, asin: str) -> Product:
        rows = self._rows("SELECT asin, title, price_tag, body FROM products WHERE asin = ?", asin)
        if not rows:
            raise DataError(
                f"{self.path}: no product {asin!r} among {len(self):,}; if it was listed, the file is damaged. {REMEDY}"
            )
        return self._unpack_product(rows[0])

    def _unpack_product(self, row: Sequence[Any]) -> Product:
        try:
            return unpack(*row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._corrupt(error) from error

    def products(self) -> Iterator[Product]:
        """Yields all products, in the order of the source.

        Raises:
            DataError: The catalogue is damaged.
        """
        for number in range(1, len(self) + 1):
            for row in self._rows("SELECT asin, title, price_tag, body FROM products WHERE number = ?", str(number)):
                yield self._unpack_product(row)

    def cards(self, asins: Sequence[str]) -> list[Card]:
        """Returns the entries of a page of results for ``asins``, in their order; skips unknown ASINs."""
        marks = ", ".join("?" * len(asins))
        rows = self._rows(f"SELECT asin, title, price_tag FROM products WHERE asin IN ({marks})", *asins)
        cards = {row[0]: Card(*row) for row in rows}
        return [cards[asin] for asin in asins if asin in cards]

    def __contains__(self, asin: str) -> bool:
        """Whether the catalogue has this product."""
        return bool(self._rows("SELECT 1 FROM products WHERE asin = ?", asin))

    def goals(self, kind: str) -> int:
        """Returns the number of goals of a kind in :data:`KINDS`."""
        return self._goals[kind]

    @property
    def default_kind(self) -> str:
        """Returns ``"human"`` for a generated shop, or where there are enough for both splits; else ``"synthetic"``."""
        return "human" if self.family or self.goals("human") >= 2 * DEV else "synthetic"

    def goal(self, task_id: str) -> ShoppingGoal:
        """Returns the goal of a task.

        Raises:
            DataError: The catalogue has no such task, or is damaged.
        """
        asin, _, ending = task_id.partition("/")
        kind, _, number = ending.partition("-")
        if kind in KINDS and number.isdecimal():
            for first, wish, count in self._wishes(kind, asin):
                if 0 <= int(number) - first < count:
                    return self._goal(asin, wish, int(number) - first)
        raise DataError(
            f"{self.path}: no goal {task_id!r}; ids look like B07HRFSNL4/synthetic-12. If it was listed, the file "
            f"is damaged. {REMEDY}"
        )

    def goals_of(self, asin: str, kind: str) -> Iterator[ShoppingGoal]:
        """Yields the goals of a kind whose target is the product ``asin``, in the order of their numbers."""
        for _, wish, count in self._wishes(kind, asin):
            for number in range(count):
                yield self._goal(asin, wish, number)

    def _wishes(self, kind: str, asin: str) -> Iterator[tuple[int, Wish, int]]:
        """Yields each wish with the number of its first goal among the product's, and its number of goals."""
        rows = self._rows(
            "SELECT instruction, attributes, options, price_upper, goals FROM wishes "
            "WHERE kind = ? AND asin = ? ORDER BY first",
            *(kind, asin),
        )
        first = 0
        for instruction, attributes, options, limit, goals in rows:
            try:
                wish_options = None if options is None else tuple(orjson.loads(options))
                wish = Wish(str(instruction), tuple(orjson.loads(attributes)), wish_options, float(limit))
                count = int(goals)
            except (TypeError, ValueError) as error:
                raise self._corrupt(error) from error
            yield first, wish, count
            first += count

    def _goal(self, asin: str, wish: Wish, number: int) -> ShoppingGoal:
        product = self.product(asin)
        try:
            instruction, options = choose(wish, product.options, number)
        except (ArithmeticError, IndexError) as error:
            raise self._corrupt(error) from error
        return goal_for(product, instruction, wish.attributes, options, wish.price_upper)

    def tasks(self, kind: str, source: str) -> TaskSet:
        """Returns the goals of a kind as tasks, in the published order.

        Of the official goals the first 500 are ``dev``, the rest ``train``. In a generated shop a tenth of the product
        families is ``dev`` and another tenth ``test``. An id is the ASIN and the number of the goal among those of its
        product; the type is the department.

        Raises:
            UnknownName: The kind does not exist.
            DataError: The catalogue has no goals of that kind.
        """
        if kind not in KINDS:
            raise unknown("kind of goals", kind, KINDS)
        if not self.goals(kind):
            names = ", ".join(k for k in KINDS if self.goals(k)) or "none"
            raise DataError(f"{self.path}: has no {kind} goals (it has: {names})")
        ids: list[str] = []
        types: dict[str, str] = {}
        owners: dict[str, int] = {}
        counts: Counter[str] = Counter()
        rows = self._rows(
            "SELECT asin, goals, wishes.category, number FROM wishes JOIN products USING (asin) "
            "WHERE kind = ? ORDER BY first",
            kind,
        )
        blobs = self._rows("SELECT numbers FROM orders WHERE kind = ?", kind)
        try:
            order = np.frombuffer(blobs[0][0], dtype=np.uint32)
            # Before any id is made: a damaged number of goals may be larger than the memory.
            if min(row[1] for row in rows) < 1 or sum(row[1] for row in rows) != len(order):
                raise ValueError("the order names more or fewer goals than there are")
            if not np.array_equal(np.sort(order), np.arange(len(order))):
                raise ValueError("the order of goals is not a permutation")
            for asin, goals, category, product in rows:
                for number in range(counts[asin], counts[asin] + goals):
                    ids.append(f"{asin}/{kind}-{number}")
                    types[ids[-1]] = category
                    owners[ids[-1]] = product - 1
                counts[asin] += goals
        except (IndexError, ValueError, TypeError) as error:
            raise self._corrupt(error) from error
        task_ids = tuple(ids[number] for number in order)
        if not self.family:
            return TaskSet(ENV_ID, source, self.version, {"dev": task_ids[:DEV], "train": task_ids[DEV:]}, types)
        splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
        for task_id in task_ids:
            splits[_split(owners[task_id] // self.family)].append(task_id)
        return TaskSet(ENV_ID, source, self.version, {name: tuple(group) for name, group in splits.items()}, types)


def _split(family: int) -> str:
    """Returns the split of a product family: of each ten, one is ``dev`` and one ``test``, never the first."""
    ten, place = divmod(family, 10)
    roll = int.from_bytes(hashlib.sha256(f"families {ten}".encode()).digest()[:8], "big")
    dev, offset = roll % 9, 1 + roll // 9 % 8
    return {dev: "dev", (dev + offset) % 9: "test"}.get(place - 1, "train")


def goal_for(
    product: Product, instruction: str, attributes: Iterable[str], options: Iterable[Option], price_upper: float
) -> ShoppingGoal:
    """Returns a goal whose target is ``product``."""
    return ShoppingGoal(
        asin=product.asin,
        instruction=instruction,
        attributes=tuple(attributes),
        options=tuple(options),
        price_upper=price_upper,
        query=product.query,
        product_category=product.product_category,
        category=product.category,
        nouns=product.nouns,
    )


def shops_folder() -> Path:
    """Returns the folder of the cache with generated shops, which is kept within a limit."""
    return cache_root() / "webshop" / "generated"


def open_catalogue(path: Path) -> Catalogue:
    """Returns the catalogue at ``path``, opened once per process."""
    return _open(path.resolve(), os.getpid())


@lru_cache(maxsize=8)
def _open(path: Path, _: int) -> Catalogue:
    catalogue = Catalogue(path)
    if path.parent == shops_folder().resolve():
        hold(path, catalogue)
    return catalogue


def _open_catalogue(path: Path) -> tuple[sqlite3.Connection, int]:
    """Opens a complete catalogue of this version read-only; returns the connection and the size of its tables."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise DataError(f"{path}: no catalogue there ({error.strerror}). {REMEDY}") from error
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise DataError(f"{path}: not a catalogue (no SQLite file). {REMEDY}")
    application = int.from_bytes(header[68:72], "big")
    version = int.from_bytes(header[60:64], "big")
    page = int.from_bytes(header[16:18], "big")
    tables = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if application != APPLICATION:
        raise DataError(f"{path}: not a WebShop catalogue, but another SQLite file. {REMEDY}")
    if version != FORMAT:
        raise DataError(f"{path}: a catalogue of format {version}; this version reads {FORMAT}. {REMEDY}")
    if size < tables:
        raise DataError(f"{path}: truncated ({size:,} bytes instead of {tables:,} or more). {REMEDY}")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA mmap_size = {1 << 40}")
        connection.execute("SELECT count(*) FROM meta").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        connection.close()
        raise DataError(f"{path}: corrupt ({error}). {REMEDY}") from error
    return connection, tables
