"""The searches of a corpus by their names."""

from __future__ import annotations

from envsuite.core.errors import unknown
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.hybrid import Hybrid
from envsuite.retrieval.vectors import Vectors


def retriever_of(corpus: Corpus, name: str) -> Retriever:
    """Returns a search of a corpus.

    Args:
        corpus: The corpus.
        name: ``"bm25"``, the name of vectors in the file (``"lsa"``), or several of these joined by ``+``, which are
            fused by their reciprocal ranks (``"bm25+lsa"``).

    Raises:
        UnknownName: The corpus has no such search.
        DataError: The vectors are damaged.
    """
    parts = name.split("+")
    for part in parts:
        if part != Corpus.name and part not in corpus.vectors:
            raise unknown(f"search of {corpus.path.name}", part, [Corpus.name, *corpus.vectors])
    searches = [corpus if part == Corpus.name else Vectors(corpus.path, corpus.vectors[part]) for part in parts]
    return searches[0] if len(searches) == 1 else Hybrid(searches)
