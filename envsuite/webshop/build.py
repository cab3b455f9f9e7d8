"""Building a catalogue: streamed, there whole or not at all, and going on where it was killed."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from envsuite.core.errors import DataError
from envsuite.data import cache_root
from envsuite.data.locks import locked
from envsuite.data.progress import Progress, Silent
from envsuite.retrieval.builder import IndexBuilder
from envsuite.webshop.catalogue import FORMAT
from envsuite.webshop.filling import STEPS, Filling
from envsuite.webshop.nouns import Tagger, tagger
from envsuite.webshop.source import Files, Stock

LOG = logging.getLogger(__name__)


def build(
    stock: Stock,
    out: Path,
    find_nouns: Tagger | None = None,
    progress: Progress | None = None,
) -> Path:
    """Build the catalogue ``out`` from ``stock``, in the place of what is there.

    It is written in the folder ``.NAME.building`` beside ``out`` and renamed when it is whole. A build that was killed
    leaves that folder; the same build goes on from there and gives the same bytes, another one begins anew. A second
    build of the same file waits for the first.

    Args:
        stock: What is sold: the official files (:class:`~envsuite.webshop.source.Files`), or another.
        out: Where the catalogue goes.
        find_nouns: Tags the titles; by default :func:`default_tagger`.
        progress: Is told how it goes.

    Raises:
        DataError: A file is missing, truncated or foreign, or has nothing to sell.
    """
    with _lock(out):
        _build(stock, out, find_nouns or default_tagger(stock), progress or Silent())
    return out


def _build(stock: Stock, out: Path, find_nouns: Tagger, progress: Progress) -> None:
    folder = out.parent / f".{out.name}.building"
    digest = stock.digest()
    filling = Filling(folder, f"{FORMAT}.{STEPS} {digest} {find_nouns.name}")
    try:
        with closing(filling):
            index = filling.fill(stock, digest, find_nouns, progress)
            tables = filling.size
        with filling.path.open("r+b") as file:
            file.truncate(tables)  # a build that was killed may have written here
            file.seek(tables)
            _write(index, file, progress)
            os.fsync(file.fileno())
        os.replace(filling.path, out)
    except DataError:
        shutil.rmtree(folder)  # no build can go on from here, where after a full disk it can
        raise
    shutil.rmtree(folder)


def _write(index: IndexBuilder, file: BinaryIO, progress: Progress) -> None:
    before = 0

    def told(done: int, total: int) -> None:
        nonlocal before
        if not before:
            progress.start("index", total, 0)
        progress.advance(done - before)
        before = done

    index.write(file, told)  # SQLite leaves alone what lies behind its last page
    progress.done("index", before)


def cached(stock: Stock) -> Path:
    """The catalogue of ``stock`` in the cache, built where it is not there yet, by one process for all."""
    path = place(stock)
    if not path.is_file():
        with _lock(path):
            if not path.is_file():
                find_nouns = default_tagger(stock)
                LOG.warning("building the WebShop catalogue %s once, nouns by %s", path, find_nouns.name)
                _build(stock, path, find_nouns, Silent())
    return path


def default_tagger(stock: Stock) -> Tagger:
    """The tagger of ``stock`` where none is named: for official files spaCy, if it is installed; else the built-in one.

    The nouns of a shop that is made are found by the built-in tagger, so that it is the same on every machine.
    """
    return tagger("auto" if isinstance(stock, Files) else "builtin")


def place(stock: Stock) -> Path:
    """Where the catalogue of ``stock`` is in the cache.

    Raises:
        DataError: A file of it is missing.
    """
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
            try:
                stat = path.stat()
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from error
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
