"""Building a catalogue from the official files: streamed, in one go, there whole or not at all.

python -m envsuite.webshop.build --products FILE --attributes FILE [--human FILE] --out CATALOGUE
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import shutil
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from envsuite.core.errors import DataError, EnvsuiteError
from envsuite.data import cache_root
from envsuite.data.locks import locked
from envsuite.retrieval.builder import IndexBuilder
from envsuite.webshop.catalogue import APPLICATION, FORMAT, KINDS, Catalogue
from envsuite.webshop.documents import document
from envsuite.webshop.goals import PRICE_SEED, Wish, composed, count, draw_price, order, written
from envsuite.webshop.nouns import Tagger, tagger
from envsuite.webshop.products import Product, pack, unpack
from envsuite.webshop.source import UNKNOWN_ATTRIBUTE, Files, RawProduct, Stock

LOG = logging.getLogger(__name__)
T = TypeVar("T")
BATCH = 1000
"""Products that are tagged and written at a time."""

Progress = Callable[[str, int], object]
"""Is told the stage and how many products it has done."""


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
ATTACH DATABASE '' AS staged;
CREATE TABLE staged.attributes (asin TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"""
_INDICES = """
CREATE UNIQUE INDEX products_by_asin ON products (asin);
CREATE INDEX wishes_by_asin ON wishes (kind, asin, first);
"""


def build(
    stock: Stock,
    out: Path,
    find_nouns: Tagger | None = None,
    progress: Progress = lambda stage, done: None,
) -> Path:
    """Build the catalogue ``out`` from ``stock``, in the place of what is there.

    It is written under another name beside ``out`` and renamed when it is whole; a build that was killed is simply
    started again, and takes the place of what it left. A second build of the same file waits for the first.

    Args:
        stock: What is sold: the official files (:class:`~envsuite.webshop.source.Files`), or another.
        out: Where the catalogue goes.
        find_nouns: Tags the titles; :func:`~envsuite.webshop.nouns.tagger` chooses by default.
        progress: Is told how it goes.

    Raises:
        DataError: A file is missing, truncated or foreign, or has nothing to sell.
    """
    with _lock(out):
        _build(stock, out, find_nouns or tagger(), progress)
    return out


def _build(stock: Stock, out: Path, find_nouns: Tagger, progress: Progress) -> None:
    folder = out.parent / f".{out.name}.building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    partial = folder / "catalogue"
    try:
        with IndexBuilder(folder) as index:
            with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
                _fill(connection, stock, find_nouns, index, progress)
            with partial.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                index.write(file)  # SQLite leaves alone what lies behind its last page
                os.fsync(file.fileno())
        os.replace(partial, out)
    finally:
        shutil.rmtree(folder)


def cached(stock: Stock) -> Path:
    """The catalogue of ``stock`` in the cache, built where it is not there yet, by one process for all.

    The nouns of a shop that is made are found by the built-in tagger, so that it is the same on every machine.
    """
    path = place(stock)
    if not path.is_file():
        with _lock(path):
            if not path.is_file():
                find_nouns = tagger("auto" if isinstance(stock, Files) else "builtin")
                LOG.warning("building the WebShop catalogue %s once, nouns by %s", path, find_nouns.name)
                _build(stock, path, find_nouns, lambda stage, done: None)
    return path


def place(stock: Stock) -> Path:
    """Where the catalogue of ``stock`` is in the cache."""
    if isinstance(stock, Files):
        name = f"{stock.products.stem}-{_fingerprint(stock)}"
    else:
        name = f"builtin-{FORMAT}-{stock.digest()[:20]}"
    return cache_root() / "webshop" / f"{name}.catalogue"


def _fingerprint(files: Files) -> str:
    """Changes with the files (by path, size and time) and the format."""
    facts: list[object] = [FORMAT]
    for path in (files.products, files.attributes, files.human):
        if path is not None:
            stat = path.stat()
            facts += [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    return hashlib.sha256(orjson.dumps(facts)).hexdigest()[:12]


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Keeps others from building ``out`` at the same time.

    Raises:
        DataError: What is built cannot be written.
    """
    try:
        with locked(out.parent / f".{out.name}.lock"):
            yield
    except (OSError, sqlite3.OperationalError) as error:
        raise DataError(f"{out}: cannot be written ({error}). Make room there, or name another place") from error


def _fill(
    connection: sqlite3.Connection, stock: Stock, find_nouns: Tagger, index: IndexBuilder, progress: Progress
) -> None:
    settings = f"journal_mode = OFF, synchronous = OFF, application_id = {APPLICATION}, user_version = {FORMAT}"
    for setting in settings.split(", "):
        connection.execute(f"PRAGMA {setting}")
    _run(connection, _TABLES)
    connection.execute("BEGIN")
    human = stock.wishes_of_people()
    _stage(connection, stock.known_attributes(), progress)
    rng = random.Random(PRICE_SEED)
    total = 0
    known = _known(connection)
    for batch in _batches(stock.raw_products(), BATCH):
        finished = _finished(batch, known, find_nouns, rng, index)
        connection.executemany("INSERT INTO products (asin, title, price_tag, body) VALUES (?, ?, ?, ?)", finished)
        total += len(batch)
        progress("products", total)
    if not total:
        raise DataError(f"{stock.title}: has no product")
    _run(connection, _INDICES)
    state = rng.getstate()
    goals = {}
    for kind in KINDS:
        rng.setstate(state)  # the original draws the limits of either kind, right after the prices
        wishes = _written(connection, human, rng) if kind == "human" else _composed(connection, rng)
        goals[kind] = _store(connection, kind, wishes)
        progress(f"{kind} goals", goals[kind])
    meta = {
        "products": str(total),
        "digest": stock.digest(),
        "tagger": find_nouns.name,
        "stock": stock.title,
        "family": str(stock.family),
        **{f"{kind} goals": str(number) for kind, number in goals.items()},
    }
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.execute("COMMIT")
    connection.execute("DETACH DATABASE staged")


def _stage(connection: sqlite3.Connection, entries: Iterable[tuple[str, dict[str, Any]]], progress: Progress) -> None:
    done = 0
    for batch in _batches(entries, 10 * BATCH):
        rows = [(asin, orjson.dumps(entry)) for asin, entry in batch]
        connection.executemany("INSERT OR REPLACE INTO staged.attributes VALUES (?, ?)", rows)
        done += len(batch)
        progress("attributes", done)


def _known(connection: sqlite3.Connection) -> Callable[[str], dict[str, Any]]:
    def entry(asin: str) -> dict[str, Any]:
        row = connection.execute("SELECT body FROM staged.attributes WHERE asin = ?", (asin,)).fetchone()
        return {} if row is None else dict(orjson.loads(row[0]))

    return entry


def _finished(
    batch: Sequence[RawProduct],
    known: Callable[[str], dict[str, Any]],
    find_nouns: Tagger,
    rng: random.Random,
    index: IndexBuilder,
) -> Iterator[tuple[str, str, str, bytes]]:
    """The rows of products: with attributes, a price and the nouns of the title. They go to the index, too."""
    for raw, nouns in zip(batch, find_nouns([raw.title for raw in batch]), strict=True):
        product = Product(
            asin=raw.asin,
            title=raw.title,
            description=raw.description,
            bullets=raw.bullets,
            options=raw.options,
            attributes=tuple(known(raw.asin).get("attributes", (UNKNOWN_ATTRIBUTE,))),
            category=raw.category,
            query=raw.query,
            product_category=raw.product_category,
            price_tag=raw.price_tag,
            price=draw_price(raw.prices, rng),
            image=raw.image,
            option_images=raw.option_images,
            rating=raw.rating,
            reviews=raw.reviews,
            nouns=nouns,
        )
        index.add(product.asin, _document(product))
        yield product.asin, product.title, product.price_tag, pack(product)


def _document(product: Product) -> str:
    """The text by which ``product`` is found."""
    return document(
        {
            "name": product.title,
            "full_description": product.description,
            "small_description": product.bullets,
            "customization_options": {
                name: [{"value": value} for value in values] for name, values in product.options.items()
            },
        }
    )


def _written(
    connection: sqlite3.Connection, human: Mapping[str, list[dict[str, Any]]], rng: random.Random
) -> Iterator[tuple[Product, Wish]]:
    known = connection.execute("SELECT asin FROM products ORDER BY number")
    wanted = [asin for (asin,) in known if asin in human]
    for asin in wanted:
        product = _product(connection, asin)
        for entry in human[asin]:
            if (wish := written(entry, product.price, rng)) is not None:
                yield product, wish


def _composed(connection: sqlite3.Connection, rng: random.Random) -> Iterator[tuple[Product, Wish]]:
    rows = connection.execute(
        "SELECT products.asin, staged.attributes.body FROM products JOIN staged.attributes USING (asin) ORDER BY number"
    )
    for asin, body in rows:
        entry = orjson.loads(body)
        if "instruction" in entry:
            product = _product(connection, asin)
            wish = composed(entry["instruction"], entry.get("instruction_attributes", ()), product.price, rng)
            if wish is not None:
                yield product, wish


def _product(connection: sqlite3.Connection, asin: str) -> Product:
    columns = "SELECT asin, title, price_tag, body FROM products WHERE asin = ?"
    return unpack(*connection.execute(columns, (asin,)).fetchone())


def _store(connection: sqlite3.Connection, kind: str, wishes: Iterable[tuple[Product, Wish]]) -> int:
    """Write the wishes of a kind and the order of their goals; returns how many goals there are."""
    first = 0
    for product, wish in wishes:
        goals = count(wish, product.options)
        if goals:
            options = None if wish.options is None else orjson.dumps(wish.options).decode()
            attributes = orjson.dumps(wish.attributes).decode()
            where = (kind, first, goals, product.asin, product.category)
            row = (*where, wish.instruction, attributes, options, wish.price_upper)
            connection.execute("INSERT INTO wishes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        first += goals
    connection.execute("INSERT INTO orders VALUES (?, ?)", (kind, array("I", order(first)).tobytes()))
    return first


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Execute statements without ending a transaction, as ``executescript`` would."""
    for statement in script.split(";"):
        connection.execute(statement)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the catalogue that ``argv`` names; 0 when it is there, 2 for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m envsuite.webshop.build", description="Build a WebShop catalogue.")
    parser.add_argument("--products", type=Path, required=True, help="items_shuffle.json or items_shuffle_1000.json")
    parser.add_argument("--attributes", type=Path, required=True, help="items_ins_v2.json or items_ins_v2_1000.json")
    parser.add_argument("--human", type=Path, help="items_human_ins.json, for the instructions of people")
    parser.add_argument("--out", type=Path, required=True, help="the catalogue; replaced when it is there")
    parser.add_argument("--tagger", default="auto", help="spacy, builtin, or auto: spacy where it is installed")
    args = parser.parse_args(argv)

    def show(stage: str, done: int) -> None:
        sys.stderr.write(f"\r{stage}: {done:,}\x1b[K")

    try:
        path = build(Files(args.products, args.attributes, args.human), args.out, tagger(args.tagger), progress=show)
    except EnvsuiteError as error:
        sys.stderr.write(f"\nenvsuite: {error}\n")
        return 2
    sys.stderr.write("\n")
    for key, value in {"catalogue": str(path), "bytes": f"{path.stat().st_size:,}", **Catalogue(path).meta}.items():
        sys.stdout.write(f"{key}: {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
