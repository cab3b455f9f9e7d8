"""Fills the tables of a catalogue, in steps: a killed build resumes after the last finished step.

A second database, ``staged``, has the data that only the build needs: its progress, the attribute file by ASIN, and the
wishes whose price limits are still to be drawn. SQLite commits a transaction to both files or to neither, so that they
are always at the same step.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from envsuite.core.errors import DataError
from envsuite.data.progress import ProgressReceiver
from envsuite.retrieval.builder import IndexBuilder
from envsuite.webshop.catalogue import APPLICATION, FORMAT, KINDS
from envsuite.webshop.documents import text_of
from envsuite.webshop.goals import PRICE_SEED, Wish, composed_wish, count, draw_price, human_wish, order
from envsuite.webshop.nouns import Tagger
from envsuite.webshop.products import Product, pack, unpack
from envsuite.webshop.source import UNKNOWN_ATTRIBUTE, RawProduct, Stock

T = TypeVar("T")
BATCH = 1000
"""Number of products tagged and written at a time."""
STEP = 50
"""Number of batches in a step, after which the transaction is committed."""
STEPS = 2
"""Version of ``staged``; increased when a build must not resume from an earlier version."""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE products (
    number INTEGER PRIMARY KEY, asin TEXT NOT NULL, title TEXT NOT NULL, price_tag TEXT NOT NULL, body BLOB NOT NULL
);
CREATE TABLE wishes (
    kind TEXT, first INTEGER, goals INTEGER NOT NULL, asin TEXT NOT NULL, category TEXT NOT NULL,
    instruction TEXT NOT NULL, attributes TEXT NOT NULL, options TEXT, price_upper REAL NOT NULL,
    PRIMARY KEY (kind, first)
) WITHOUT ROWID;
CREATE TABLE orders (kind TEXT PRIMARY KEY, numbers BLOB NOT NULL);
CREATE TABLE staged.done (what TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE staged.attributes (asin TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE staged.composed (
    number INTEGER PRIMARY KEY, asin TEXT NOT NULL, category TEXT NOT NULL, combinations INTEGER NOT NULL,
    price REAL NOT NULL, instruction TEXT NOT NULL, attributes TEXT NOT NULL
);
"""
_INDICES = """
CREATE UNIQUE INDEX products_by_asin ON products (asin);
CREATE INDEX wishes_by_asin ON wishes (kind, asin, first);
"""

_SHARED = tuple(field.name for field in fields(RawProduct) if field.name != "prices")
"""Fields that a product has as its raw product does."""

Row = tuple[str, str, str, bytes]
HumanWishes = Mapping[str, list[dict[str, Any]]]
Later = tuple[str, str, int, float, str, str]
"""A wish without a limit: ASIN, category, combinations of options, price, instruction and attributes."""


class CatalogueFilling:
    """The tables in ``folder`` while they are filled.

    They are started anew unless the build that left them had the same ``record``, which identifies its inputs.
    """

    def __init__(self, folder: Path, record: str) -> None:
        self.path = folder / "catalogue"
        self._folder = folder
        if self.path.is_file() and self._resumes(record):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._open()
        for setting in (f"application_id = {APPLICATION}", f"user_version = {FORMAT}"):
            self._connection.execute(f"PRAGMA {setting}")
        self._begin()
        self._run(_TABLES)
        self._end(record=record)

    def _resumes(self, record: str) -> bool:
        """Opens the tables of an earlier build with this ``record``; returns whether there are any."""
        try:
            self._open()
            is_whole = self._connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
            if is_whole and self._read_step("record") == record:
                for row in self._connection.execute("SELECT asin, title, price_tag, body FROM products"):
                    self._index_product(unpack(*row))
                return True
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError):
            pass  # killed before the first step, or by a crash of the machine: nothing to resume
        self.close()
        return False

    def _open(self) -> None:
        self._connection = sqlite3.connect(self.path, isolation_level=None)
        self._connection.execute("ATTACH DATABASE ? AS staged", (str(self._folder / "staged"),))
        scratch = self._folder / "index"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self._index = IndexBuilder(scratch)

    def close(self) -> None:
        """Closes the files."""
        self._connection.close()

    def fill(self, stock: Stock, digest: str, find_nouns: Tagger, progress: ProgressReceiver) -> IndexBuilder:
        """Executes the remaining steps.

        Returns:
            The index of all products, to be written after the tables.

        Raises:
            DataError: ``stock`` is damaged, or has no products.
        """
        human = stock.wishes_of_people()  # before the long part, so that a damaged file is detected at once
        if self._read_step("attributes") is None:
            self._stage(stock, progress)
        if self._read_step("products") is None:
            self._add_products(stock, find_nouns, progress)
        if self._read_step("goals") is None:
            self._add_goals(stock, human, digest, find_nouns.name, progress)
        return self._index

    @property
    def size(self) -> int:
        """Returns the size of the tables in bytes."""
        pages, page = (self._connection.execute(f"PRAGMA main.page_{what}").fetchone() for what in ("count", "size"))
        return int(pages[0]) * int(page[0])

    # Progress of the build.

    def _read_step(self, what: str) -> Any:
        row = self._connection.execute("SELECT value FROM staged.done WHERE what = ?", (what,)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def _progress(self) -> tuple[int, Any]:
        """Returns the number of products, and the state of the price generator."""
        step = self._read_step("step")
        if step is None:
            return 0, random.Random(PRICE_SEED).getstate()
        products, (version, state, spare) = step
        return products, (version, tuple(state), spare)

    def _begin(self) -> None:
        self._connection.execute("BEGIN")

    def _end(self, **entries: Any) -> None:
        """Commits a step; ``entries`` are the new progress."""
        rows = [(what, orjson.dumps(value)) for what, value in entries.items()]
        self._connection.executemany("INSERT OR REPLACE INTO staged.done VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def _run(self, script: str) -> None:
        """Executes statements without committing, as ``executescript`` would."""
        for statement in script.split(";"):
            self._connection.execute(statement)

    # The steps.

    def _stage(self, stock: Stock, progress: ProgressReceiver) -> None:
        total = 0
        progress.start("attributes", None, 0)
        self._begin()
        for batch in _batches(stock.known_attributes(), 10 * BATCH):
            rows = [(asin, orjson.dumps(entry)) for asin, entry in batch]
            self._connection.executemany("INSERT OR REPLACE INTO staged.attributes VALUES (?, ?)", rows)
            total += len(batch)
            progress.advance(len(batch))
        self._end(attributes=total)
        progress.finish("attributes", total)

    def _add_products(self, stock: Stock, find_nouns: Tagger, progress: ProgressReceiver) -> None:
        total, state = self._progress()
        rng = random.Random()
        rng.setstate(state)
        progress.start("products", self._read_step("attributes"), total)
        if total:
            progress.note(f"going on after {total:,} products")
        batches = _batches(stock.raw_products(total), BATCH)
        while step := list(islice(batches, STEP)):
            self._begin()
            for batch in step:
                self._add_batch(batch, total, find_nouns, rng)
                total += len(batch)
                progress.advance(len(batch))
            self._end(step=(total, rng.getstate()))
        if not total:
            raise DataError(f"{stock.title}: has no product")
        self._begin()
        self._run(_INDICES)
        self._end(products=total)
        progress.finish("products", total)

    def _add_batch(self, batch: Sequence[RawProduct], first: int, find_nouns: Tagger, rng: random.Random) -> None:
        rows: list[Row] = []
        later: list[tuple[int, *Later]] = []
        entries = self._read_attributes([raw.asin for raw in batch])
        for number, (raw, nouns) in enumerate(zip(batch, find_nouns([raw.title for raw in batch]), strict=True), first):
            entry = entries.get(raw.asin, {})
            product = _finish_product(raw, entry, nouns, rng)
            self._index_product(product)
            rows.append((product.asin, product.title, product.price_tag, pack(product)))
            if "instruction" in entry:
                later.append((number, *_later(product, entry)))
        self._connection.executemany("INSERT INTO products (asin, title, price_tag, body) VALUES (?, ?, ?, ?)", rows)
        self._connection.executemany("INSERT INTO staged.composed VALUES (?, ?, ?, ?, ?, ?, ?)", later)

    def _index_product(self, product: Product) -> None:
        self._index.add(product.asin, text_of(product.title, product.description, product.bullets, product.options))

    def _read_attributes(self, asins: Sequence[str]) -> dict[str, dict[str, Any]]:
        marks = ", ".join("?" * len(asins))
        rows = self._connection.execute(f"SELECT asin, body FROM staged.attributes WHERE asin IN ({marks})", asins)
        return {asin: orjson.loads(body) for asin, body in rows}

    def _add_goals(self, stock: Stock, human: HumanWishes, digest: str, nouns: str, progress: ProgressReceiver) -> None:
        total, state = self._progress()
        goals = {}
        progress.start("goals", None, 0)
        self._begin()
        for kind in KINDS:
            rng = random.Random()
            rng.setstate(state)  # the original draws the limits of either kind right after the prices
            wishes = self._human_wishes(human, rng) if kind == "human" else self._composed_wishes(rng)
            goals[kind] = self._store(kind, wishes)
            progress.advance(goals[kind])
        meta = {
            "products": str(total),
            "digest": digest,
            "tagger": nouns,
            "stock": stock.title,
            "family": str(stock.family),
            **{f"{kind} goals": str(number) for kind, number in goals.items()},
        }
        self._connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        self._end(goals=goals)
        progress.finish("goals", sum(goals.values()))

    def _human_wishes(self, human: HumanWishes, rng: random.Random) -> Iterator[tuple[str, str, int, Wish]]:
        columns = "SELECT asin, title, price_tag, body FROM products WHERE asin = ?"
        rows = self._connection.execute("SELECT asin FROM products ORDER BY number")
        for asin in [asin for (asin,) in rows if asin in human]:
            product = unpack(*self._connection.execute(columns, (asin,)).fetchone())
            for entry in human[asin]:
                if (wish := human_wish(entry, product.price, rng)) is not None:
                    yield asin, product.category, 1, wish

    def _composed_wishes(self, rng: random.Random) -> Iterator[tuple[str, str, int, Wish]]:
        columns = "asin, category, combinations, price, instruction, attributes"
        rows = self._connection.execute(f"SELECT {columns} FROM staged.composed ORDER BY number")
        for asin, category, combinations, price, instruction, attributes in rows:
            wish = composed_wish(instruction, orjson.loads(attributes), price, rng)
            if wish is not None:
                yield asin, category, combinations, wish

    def _store(self, kind: str, wishes: Iterable[tuple[str, str, int, Wish]]) -> int:
        """Writes the wishes of a kind and the order of their goals; returns the number of goals."""
        first = 0
        for batch in _batches(wishes, BATCH):
            rows = []
            for asin, category, goals, wish in batch:
                if goals:
                    options = None if wish.options is None else orjson.dumps(wish.options).decode()
                    attributes = orjson.dumps(wish.attributes).decode()
                    where = (kind, first, goals, asin, category)
                    rows.append((*where, wish.instruction, attributes, options, wish.price_upper))
                first += goals
            self._connection.executemany("INSERT INTO wishes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._connection.execute("INSERT INTO orders VALUES (?, ?)", (kind, order(first).tobytes()))
        return first


def _finish_product(raw: RawProduct, entry: Mapping[str, Any], nouns: tuple[str, ...], rng: random.Random) -> Product:
    """Returns ``raw`` with attributes, a price and the nouns of the title."""
    return Product(
        **{name: getattr(raw, name) for name in _SHARED},
        attributes=tuple(entry.get("attributes", (UNKNOWN_ATTRIBUTE,))),
        price=draw_price(raw.prices, rng),
        nouns=nouns,
    )


def _later(product: Product, entry: Mapping[str, Any]) -> Later:
    attributes = orjson.dumps(entry.get("instruction_attributes", ())).decode()
    wish = Wish(entry["instruction"], (), None, 0.0)
    combinations = count(wish, product.options)
    return product.asin, product.category, combinations, product.price, entry["instruction"], attributes


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
