"""Searches as descriptions: the same in ``gymnasium.make``, in configurations and on the command line.

A description is a name, a mapping as JSON and YAML have it, or the text of a mapping in JSON:

- ``"bm25"``; vectors of the corpus by their name, e.g. ``"MiniLM"``;
- ``{"faiss": FILE, "vectors": NAME}``, an index file built of these vectors of the corpus;
- ``{"search-r1": URL}``, a server of Search-R1's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from envsuite.core.errors import UsageError, unknown
from envsuite.core.options import SEARCH
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.servers import JsonServer, SearchR1
from envsuite.retrieval.vectors import Vectors

Description = str | Mapping[str, Any]
"""A search that is described, as above."""
SEARCHED: Mapping[str, Any] = {"format": SEARCH, "maxLength": 2000}
"""Limits of an environment's option that is a description (:func:`envsuite.core.options.option`).

A server checks what such an option reads (:meth:`DescribedSearch.reads`) before it makes the environment.
"""
RETRIEVER = (
    '"bm25", another search by its description (envsuite.retrieval.retrievers), or in Python a Retriever of the same '
    "documents"
)
"""Meaning of the option ``retriever``."""
_KINDS = {"faiss": ("faiss", "vectors"), "search-r1": ("search-r1",)}
"""Keys of a mapping, by the one that tells its kind."""
_KEPT = 8
"""Searches of a corpus that a process keeps open when no environment uses them."""
L = TypeVar("L")


@dataclass(frozen=True)
class DescribedSearch:
    """A search of a corpus, as a description names it; one of its kinds is set."""

    name: str = ""
    """BM25, or vectors in the file of the corpus."""
    faiss: str = ""
    """File of an index of the vectors ``vectors`` of the corpus."""
    vectors: str = ""
    url: str = ""
    """A server of Search-R1's protocol, which is asked when there is a query."""

    def open(self, corpus: Corpus) -> Retriever:
        """Returns the search of a corpus.

        Raises:
            DataError: A file is missing or damaged, or is not of this corpus.
            MissingExtra: A package is not installed.
            UnknownName: The corpus does not have such vectors.
        """
        if self.url:
            return SearchR1(JsonServer(self.url), corpus.number)
        if self.faiss:
            from envsuite.retrieval.approximate import Approximate

            return Approximate(vectors_of(corpus, self.vectors), Path(self.faiss))
        return corpus if self.name == Corpus.name else vectors_of(corpus, self.name)

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the files and the addresses of servers that the search reads besides the corpus."""
        return (self.faiss,) * bool(self.faiss), (self.url,) * bool(self.url)


def vectors_of(corpus: Corpus, name: str) -> Vectors:
    """Returns vectors of a corpus.

    Raises:
        UnknownName: It has none of this name.
        DataError: They are damaged.
    """
    if name not in corpus.vectors:
        raise unknown(f"search of {corpus.path.name}", name, [Corpus.name, *corpus.vectors])
    return Vectors(corpus.path, corpus.vectors[name])


class SearchCache(Generic[L]):
    """Shares, for each search of a corpus, what its environments keep: one for all that describe the same search.

    Args:
        corpus: The corpus.
        own: That which is shared for the corpus's own search.
        make: Makes it for another one.
    """

    def __init__(self, corpus: Corpus, own: L, make: Callable[[Corpus, Retriever], L]) -> None:
        self._corpus, self._own, self._make = corpus, own, make
        self._described = lru_cache(maxsize=_KEPT)(self._open_search)

    def __call__(self, retriever: Description | Retriever) -> L:
        """Returns what is shared for a search.

        Raises:
            EnvsuiteError: As for :meth:`DescribedSearch.open`, also where ``retriever`` is something else.
        """
        if isinstance(retriever, Retriever):
            return self._make(self._corpus, retriever)
        return self._described(parse_search(retriever))

    def _open_search(self, search: DescribedSearch) -> L:
        if search == DescribedSearch(Corpus.name):
            return self._own
        return self._make(self._corpus, search.open(self._corpus))


def parse_search(description: Description) -> DescribedSearch:
    """Checks a description, without opening anything.

    Raises:
        UsageError: It has another form; the message names the place.
        UnknownName: A mapping has an unknown key.
    """
    if isinstance(description, str) and description.lstrip().startswith("{"):
        try:
            description = orjson.loads(description)
        except orjson.JSONDecodeError as error:
            raise UsageError(f"search: not JSON ({error})") from error
    if isinstance(description, str):
        if not (name := description.strip()):
            raise UsageError(f"search is {description!r}; give a name such as bm25")
        return DescribedSearch(name)
    one_of = f"one of the keys {', '.join(_KINDS)}"
    if not isinstance(description, Mapping):
        raise UsageError(f"search is {description!r}; give a name such as bm25, or a mapping with {one_of}")
    kinds = [key for key in description if key in _KINDS]
    if len(kinds) != 1:
        has = ", ".join(map(str, description)) or "none"
        raise UsageError(f"search: give a mapping with {one_of}; this one has {has}")
    keys = _KINDS[kinds[0]]
    for key in description:
        if key not in keys:
            raise unknown(f"key of search with {kinds[0]!r}", str(key), keys)
    for key in keys:
        if key not in description:
            raise UsageError(f"search: {kinds[0]!r} needs {key!r}, too")
    texts = [_text(description[key], f"search.{key}") for key in keys]
    if kinds[0] == "faiss":
        return DescribedSearch(faiss=texts[0], vectors=texts[1])
    try:
        return DescribedSearch(url=JsonServer(texts[0]).url)
    except UsageError as error:
        raise UsageError(f"search.search-r1: {error}") from error


def _text(value: object, place: str) -> str:
    """Returns one line of text that a description has at ``place``."""
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text or not text.isprintable():
        raise UsageError(f"{place} is {value!r}; give a line of text")
    return text
