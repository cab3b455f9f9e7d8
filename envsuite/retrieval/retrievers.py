"""Searches as descriptions: the same in ``gymnasium.make``, in configurations and on the command line.

A description is a name, a mapping as JSON and YAML have it, or the text of a mapping in JSON:

- ``"bm25"``; vectors of the corpus by their name, e.g. ``"MiniLM"``; ``"bm25+MiniLM"``, several of these fused;
- ``{"fuse": [SEARCH, …], "weights": [0.7, 0.3], "fusion": "convex"}``; ``weights`` and ``fusion`` may be left out;
- ``{"faiss": FILE, "vectors": NAME}``, an index file built of these vectors of the corpus;
- ``{"search-r1": URL}``, a server of Search-R1's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import orjson

from envsuite.core.errors import UsageError, unknown
from envsuite.core.options import SEARCH
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.hybrid import Fusion, Hybrid
from envsuite.retrieval.servers import JsonServer, SearchR1
from envsuite.retrieval.vectors import Vectors

Description = str | Mapping[str, Any]
"""A search that is described, as above."""
SEARCHED: Mapping[str, Any] = {"format": SEARCH, "maxLength": 2000}
"""Limits of an environment's option that is a description (:func:`envsuite.core.options.option`).

A server checks what such an option reads (:meth:`NamedSearch.reads`) before it makes the environment.
"""
RETRIEVER = (
    '"bm25", another search by its description (envsuite.retrieval.retrievers), or in Python a Retriever of the same '
    "documents"
)
"""Meaning of the option ``retriever``."""
_DEEPEST = 4
"""Searches within each other."""
_MOST = 8
"""Searches that are fused."""
_HEAVIEST = 1e9
"""The largest weight."""
_KEPT = 8
"""Searches of a corpus that a process keeps open when no environment uses them."""
L = TypeVar("L")


@dataclass(frozen=True)
class NamedSearch:
    """BM25, or vectors in the file of the corpus."""

    name: str

    def open(self, corpus: Corpus) -> Retriever:
        """Returns the search of a corpus.

        Raises:
            UnknownName: The corpus has no such search.
            DataError: A file is missing, damaged or of another corpus.
            MissingExtra: A package is not installed.
        """
        return corpus if self.name == Corpus.name else vectors_of(corpus, self.name)

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the files and the addresses of servers that the search reads besides the corpus."""
        return (), ()


@dataclass(frozen=True)
class FusedSearch:
    """Several searches as one."""

    parts: tuple[Search, ...]
    weights: tuple[float, ...] | None = None
    fusion: Fusion = "convex"

    def open(self, corpus: Corpus) -> Retriever:
        """Returns the search; see :meth:`NamedSearch.open`."""
        return Hybrid([part.open(corpus) for part in self.parts], self.weights, self.fusion)

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns what its parts read; see :meth:`NamedSearch.reads`."""
        files, addresses = zip(*(part.reads() for part in self.parts), strict=True)
        return sum(files, ()), sum(addresses, ())


@dataclass(frozen=True)
class FaissSearch:
    """Vectors of the corpus by an index file."""

    file: str
    vectors: str

    def open(self, corpus: Corpus) -> Retriever:
        """Returns the search; see :meth:`NamedSearch.open`."""
        from envsuite.retrieval.approximate import Approximate

        return Approximate(vectors_of(corpus, self.vectors), Path(self.file))

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the file; see :meth:`NamedSearch.reads`."""
        return (self.file,), ()


@dataclass(frozen=True)
class ServerSearch:
    """Documents of the corpus as a server of Search-R1's protocol finds them."""

    url: str

    def open(self, corpus: Corpus) -> Retriever:
        """Returns the search; see :meth:`NamedSearch.open`. The server is asked when there is a query."""
        return SearchR1(JsonServer(self.url), corpus.number)

    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the address; see :meth:`NamedSearch.reads`."""
        return (), (self.url,)


Search = NamedSearch | FusedSearch | FaissSearch | ServerSearch


def vectors_of(corpus: Corpus, name: str) -> Vectors:
    """Returns vectors of a corpus.

    Raises:
        UnknownName: It has none of this name.
        DataError: They are damaged.
    """
    if name not in corpus.vectors:
        raise unknown(f"search of {corpus.path.name}", name, [Corpus.name, *corpus.vectors])
    return Vectors(corpus.path, corpus.vectors[name])


def retriever_of(corpus: Corpus, description: Description) -> Retriever:
    """Returns the search of a corpus that is described.

    Raises:
        UsageError: As for :func:`parse_search`.
        UnknownName: The corpus has no such search; or as for :func:`parse_search`.
        DataError: A file is missing, damaged or of another corpus.
        MissingExtra: A package is not installed.
    """
    return parse_search(description).open(corpus)


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
            EnvsuiteError: As for :func:`retriever_of`, also where ``retriever`` is something else.
        """
        if isinstance(retriever, Retriever):
            return self._make(self._corpus, retriever)
        return self._described(parse_search(retriever))

    def _open_search(self, search: Search) -> L:
        return self._own if search == NamedSearch(Corpus.name) else self._make(self._corpus, search.open(self._corpus))


def parse_search(description: Description) -> Search:
    """Checks a description, without opening anything.

    Raises:
        UsageError: It has another form; the message names the place.
        UnknownName: A mapping has an unknown key, or there is no such fusion.
    """
    if isinstance(description, str) and description.lstrip().startswith("{"):
        try:
            description = orjson.loads(description)
        except orjson.JSONDecodeError as error:
            raise UsageError(f"search: not JSON ({error})") from error
    return _search(description, "search", 1)


def _search(description: object, place: str, deep: int) -> Search:
    if deep > _DEEPEST:
        raise UsageError(f"{place}: more than {_DEEPEST} searches within each other")
    if isinstance(description, str):
        names = [name.strip() for name in description.split("+")]
        if not all(names):
            raise UsageError(f"{place} is {description!r}; give a name such as bm25, or names joined by +")
        return NamedSearch(names[0]) if len(names) == 1 else _fuse({"fuse": names}, place, deep)
    if not isinstance(description, Mapping):
        raise UsageError(f"{place} is {description!r}; give a name such as bm25, or a mapping with {_one_of()}")
    kinds = [key for key in description if key in _KINDS]
    if len(kinds) != 1:
        has = ", ".join(map(str, description)) or "none"
        raise UsageError(f"{place}: give a mapping with {_one_of()}; this one has {has}")
    kind = kinds[0]
    required_keys, optional_keys, make = _KINDS[kind]
    for key in description:
        if key not in (kind, *required_keys, *optional_keys):
            raise unknown(f"key of {place} with {kind!r}", str(key), (kind, *required_keys, *optional_keys))
    for key in required_keys:
        if key not in description:
            raise UsageError(f"{place}: {kind!r} needs {key!r}, too")
    return make(description, place, deep)


def _one_of() -> str:
    return f"one of the keys {', '.join(_KINDS)}"


def _fuse(description: Mapping[str, Any], place: str, deep: int) -> Search:
    searches, weights, fusion = description["fuse"], description.get("weights"), description.get("fusion", "convex")
    if not isinstance(searches, list | tuple) or not 2 <= len(searches) <= _MOST:
        raise UsageError(f"{place}: fuse is not a list of 2 to {_MOST} searches")
    parts = tuple(_search(part, f"{place}.fuse[{i}]", deep + 1) for i, part in enumerate(searches))
    if weights is not None:
        if not isinstance(weights, list | tuple) or len(weights) != len(parts) or not all(map(_positive, weights)):
            remedy = f"give a positive number for each of the {len(parts)} searches"
            raise UsageError(f"{place}.weights is {weights!r}; {remedy}")
        weights = tuple(map(float, weights))
    if fusion not in get_args(Fusion):
        raise unknown(f"{place}.fusion", str(fusion), get_args(Fusion))
    return FusedSearch(parts, weights, fusion)


def _positive(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= _HEAVIEST


def _text(description: Mapping[str, Any], key: str, place: str) -> str:
    """Returns a field that is one line of text, a path too."""
    value = description[key]
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text or not text.isprintable():
        raise UsageError(f"{place}.{key} is {value!r}; give a line of text")
    return text


def _url(description: Mapping[str, Any], key: str, place: str) -> str:
    url = _text(description, key, place)
    try:
        return JsonServer(url).url
    except UsageError as error:
        raise UsageError(f"{place}.{key}: {error}") from error


_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Mapping[str, Any], str, int], Search]]] = {
    "fuse": ((), ("weights", "fusion"), _fuse),
    "faiss": (
        ("vectors",), (),
        lambda description, place, _: FaissSearch(
            _text(description, "faiss", place), _text(description, "vectors", place)
        ),
    ),
    "search-r1": ((), (), lambda description, place, _: ServerSearch(_url(description, "search-r1", place))),
}  # fmt: skip
"""Key that tells a kind of search -> further keys that it needs, those that it may have, and what reads them."""
