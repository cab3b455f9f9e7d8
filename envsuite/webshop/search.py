"""The search engines by name: the catalogue's index, or Lucene itself for comparison."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from functools import lru_cache

from envsuite.core.errors import unknown
from envsuite.data.locks import hold_lock
from envsuite.data.places import cache_root
from envsuite.data.room import bound_generated, hold
from envsuite.retrieval.lucene import LuceneIndex
from envsuite.webshop.catalogue import Catalogue, shops_folder
from envsuite.webshop.documents import text_of
from envsuite.webshop.world import Search

LOG = logging.getLogger(__name__)


def search_of(name: str, catalogue: Catalogue) -> Search:
    """Returns the search engine called ``name`` for ``catalogue``.

    Args:
        name: ``"bm25"``: the catalogue's index. ``"lucene"``: Lucene, in a JVM in this process; its own index is built
            once and kept in the cache. Both rank alike.
        catalogue: The shop.

    Raises:
        UnknownName: There is no such search.
        MissingExtra: The engine or a JVM is not installed.
        DataError: The catalogue is damaged.
    """
    if name not in SEARCHES:
        raise unknown("search of WebShop-v0", name, SEARCHES)
    return SEARCHES[name](catalogue)


@lru_cache(maxsize=8)
def _lucene(catalogue: Catalogue) -> Search:
    is_generated = catalogue.path.parent == shops_folder().resolve()
    folder = (shops_folder() if is_generated else cache_root() / "webshop") / f"{catalogue.meta['digest'][:20]}.lucene"
    with hold_lock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            LOG.warning("building Lucene's index of %s once, in %s", catalogue.path, folder)
            partial = folder.with_name(f".{folder.name}.building")
            shutil.rmtree(partial, ignore_errors=True)
            products = catalogue.products()
            texts = ((p.asin, text_of(p.title, p.description, p.bullets, p.options)) for p in products)
            LuceneIndex.build(texts, partial)
            os.replace(partial, folder)
            if is_generated:
                bound_generated(folder)
    index = LuceneIndex(folder)
    if is_generated:
        hold(folder, index)

    def search(query: str, k: int) -> list[str]:
        return [hit.key for hit in index.search(query, k)]

    return search


SEARCHES: dict[str, Callable[[Catalogue], Search]] = {"bm25": lambda catalogue: catalogue.search, "lucene": _lucene}
"""Factories of the search engines, by name."""
