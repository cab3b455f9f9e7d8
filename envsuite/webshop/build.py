"""Builds a catalogue: streamed, atomic, and resumed after a kill."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.data.locks import hold_lock
from envsuite.data.places import WRITABLE, cache_root
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.data.room import bound_generated
from envsuite.webshop.catalogue import FORMAT, shops_folder
from envsuite.webshop.filling import STEPS, CatalogueFilling
from envsuite.webshop.nouns import Tagger, tagger
from envsuite.webshop.source import CatalogueFiles, Stock

LOG = logging.getLogger(__name__)


def build(stock: Stock, out: Path, find_nouns: Tagger | None = None, progress: ProgressReceiver | None = None) -> Path:
    """Builds the catalogue ``out`` from ``stock``; replaces an existing file.

    It is written in the folder ``.NAME.building`` beside ``out`` and renamed once complete. A killed build leaves that
    folder; the same build resumes there and gives the same bytes, another one starts anew. A second build of the same
    file waits for the first.

    Args:
        stock: The products: the official files (:class:`~envsuite.webshop.source.CatalogueFiles`), or another stock.
        out: Path of the catalogue.
        find_nouns: Tags the titles; by default :func:`default_tagger`.
        progress: Receives the progress.

    Raises:
        DataError: A file is missing, truncated or not of WebShop, or has no products.
    """
    with _lock(out):
        _build(stock, out, find_nouns or default_tagger(stock), progress or SilentProgress())
    return out


def _build(stock: Stock, out: Path, find_nouns: Tagger, progress: ProgressReceiver) -> None:
    folder = out.parent / f".{out.name}.building"
    digest = stock.digest()
    filling = CatalogueFilling(folder, f"{FORMAT}.{STEPS} {digest} {find_nouns.name}")
    try:
        with closing(filling):
            index = filling.fill(stock, digest, find_nouns, progress)
            tables = filling.size
        with filling.path.open("r+b") as file:
            file.truncate(tables)  # a killed build may have written here
            file.seek(tables)
            index.write(file, progress)  # SQLite ignores everything after its last page
            os.fsync(file.fileno())
        os.replace(filling.path, out)
    except DataError:
        shutil.rmtree(folder)  # unlike after a full disk, no build can resume here
        raise
    shutil.rmtree(folder)


def cached_catalogue(stock: Stock) -> Path:
    """Returns the catalogue of ``stock`` in the cache; one process builds it for all if it is missing."""
    path = place(stock)
    if not path.is_file():
        with _lock(path):
            if not path.is_file():
                find_nouns = default_tagger(stock)
                LOG.warning("building the WebShop catalogue %s once, nouns by %s", path, find_nouns.name)
                _build(stock, path, find_nouns, SilentProgress())
        if path.parent == shops_folder():
            bound_generated(path)
    return path


def default_tagger(stock: Stock) -> Tagger:
    """Returns the default tagger of ``stock``: spaCy for official files, if it is installed; else the built-in one.

    A generated shop always uses the built-in tagger, so that it is the same on every machine.
    """
    return tagger("auto" if isinstance(stock, CatalogueFiles) else "builtin")


def place(stock: Stock) -> Path:
    """Returns the path of the catalogue of ``stock`` in the cache.

    Raises:
        DataError: A file of ``stock`` is missing.
    """
    if isinstance(stock, CatalogueFiles):
        return cache_root() / "webshop" / f"{stock.products.stem}-{_fingerprint(stock)}.catalogue"
    return shops_folder() / f"builtin-{FORMAT}-{stock.digest()[:20]}.catalogue"


def _fingerprint(files: CatalogueFiles) -> str:
    """Returns a digest of the files (path, size and time) and the format."""
    facts: list[object] = [FORMAT]
    for path in (files.products, files.attributes, files.human):
        if path is not None:
            with file_errors(path):
                stat = path.stat()
            facts += [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    return hashlib.sha256(orjson.dumps(facts)).hexdigest()[:12]


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Prevents other builds of ``out`` meanwhile.

    Raises:
        DataError: The folder cannot be written.
    """
    try:
        with hold_lock(out.parent / f".{out.name}.lock"):
            yield
    except (OSError, sqlite3.OperationalError) as error:
        raise DataError(f"{out}: cannot be written ({error}). {WRITABLE}") from error
