"""Measure the search: building, opening, queries, memory; beside Lucene where that is installed.

    python -m benchmarks.search_speed --documents 200000 [--products FILE] [--folder DIR]

Documents are drawn: 90 words each, as frequent as Zipf's law has it, so that the most frequent are in a third of the
documents. A query is 3 to 6 of the 100 most frequent words, the costliest there are. ``--products`` takes the official
JSON of WebShop instead, with words of the products as queries. All engines run in turns in one process; the time
of a query is the CPU time of the thread that asks. Lucene needs a JVM: see ``envsuite.retrieval.lucene``.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson

from envsuite.core.errors import MissingExtra
from envsuite.data.files import atomic_file
from envsuite.retrieval.builder import IndexBuilder
from envsuite.retrieval.index import Engine, Hit, Index
from envsuite.retrieval.lucene import LuceneIndex
from envsuite.webshop.documents import documents as product_documents

WORDS = 200_000
LENGTH = 90
FREQUENT = 100
BATCH = 10_000
HITS = 50

Search = Callable[[str, int], list[Hit]]

# What a process that only searches holds for itself. Pages of the file are clean: the system can share or drop them.
PRIVATE = """
import sys
from pathlib import Path
from envsuite.retrieval.index import Index
def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) // 1024
path, engine, *queries = sys.argv[1:]
before = private()
index = Index(Path(path), engine=engine)
for query in queries:
    index.search(query, 50)
print(f"{before} MB, {private()} MB after {len(queries)} queries")
"""


def drawn(count: int) -> Iterator[tuple[str, str]]:
    """``count`` documents."""
    shares = 1 / (np.arange(WORDS) + 20.0)
    edges = np.cumsum(shares / shares.sum())
    names = np.array([f"w{i}" for i in range(WORDS)], dtype=object)
    generator = np.random.default_rng(0)
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        rows = names[np.minimum(np.searchsorted(edges, generator.random((size, LENGTH))), WORDS - 1)]
        for i, row in enumerate(rows):
            yield f"{first + i:010}", " ".join(row)


def frequent_queries(count: int) -> list[str]:
    """Queries of frequent words of the drawn documents."""
    draw = random.Random(0)
    return [" ".join(f"w{i}" for i in draw.sample(range(FREQUENT), draw.randint(3, 6))) for _ in range(count)]


def product_queries(texts: list[str], count: int) -> list[str]:
    """Queries of words that follow each other in the products' texts."""
    draw = random.Random(0)
    queries = []
    for _ in range(count):
        words = draw.choice(texts).split()
        at = draw.randrange(len(words))
        queries.append(" ".join(words[at : at + draw.randint(2, 8)]))
    return queries


def report(what: str, figure: str) -> None:
    """Print one figure."""
    sys.stdout.write(f"{what:32} {figure}\n")
    sys.stdout.flush()


def measure(engines: dict[str, Search], queries: list[str]) -> None:
    """Time every query with every engine in turn; say whether they agree."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for name, search in engines.items():
        start = time.perf_counter()
        search(queries[0], HITS)
        report(f"first query, {name}", f"{(time.perf_counter() - start) * 1e3:.1f} ms")
    for query in queries:
        for search in engines.values():
            search(query, HITS)  # reads what of the file this query needs, so that no engine pays for another
        for name, search in engines.items():
            start = time.thread_time()
            search(query, HITS)
            times[name].append(time.thread_time() - start)
    for name, taken in times.items():
        p50, p95 = np.percentile(taken, [50, 95]) * 1e3
        report(f"query, {name}", f"p50 {p50:.2f} ms, p95 {p95:.2f} ms")
    first, *others = engines
    for other in others:
        same = sum(_keys(engines[first], query) == _keys(engines[other], query) for query in queries)
        report(f"same {HITS} hits, {first} and {other}", f"{same} of {len(queries)} queries")


def _keys(search: Search, query: str) -> list[str]:
    return [hit.key for hit in search(query, HITS)]


def run(arguments: argparse.Namespace, folder: Path) -> None:
    """Build, then search."""

    def documents() -> Iterator[tuple[str, str]]:
        if arguments.products is None:
            return drawn(arguments.documents)
        return product_documents(orjson.loads(arguments.products.read_bytes()))

    if arguments.products is None:
        queries = frequent_queries(arguments.queries)
    else:
        queries = product_queries([text for _, text in documents()], arguments.queries)
    path = folder / "index"
    start = time.perf_counter()
    with IndexBuilder(folder) as builder, atomic_file(path) as file:
        for key, text in documents():
            builder.add(key, text)
        added = time.perf_counter()
        builder.write(file)
    end = time.perf_counter()
    report("documents", f"{len(Index(path)):,}")
    report("build", f"{end - start:.1f} s ({added - start:.1f} s to read, {end - added:.1f} s to sort and write)")
    report("file", f"{path.stat().st_size / 1e6:.1f} MB")
    engines: dict[str, Search] = {}
    names: list[Engine] = ["numpy", "numba"]
    for name in names:
        start = time.perf_counter()
        try:
            engines[name] = Index(path, engine=name).search
        except MissingExtra as error:
            report(name, f"not measured: {error}")
            continue
        report(f"open, {name}", f"{(time.perf_counter() - start) * 1e3:.1f} ms")
        command = [sys.executable, "-c", PRIVATE, str(path), name, *queries]
        report(
            f"private memory, {name}",
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(),
        )
    start = time.perf_counter()
    try:
        LuceneIndex.build(documents(), folder / "lucene")
        engines["lucene"] = LuceneIndex(folder / "lucene").search
    except MissingExtra as error:
        report("lucene", f"not measured: {error}")
    else:
        report("build, lucene", f"{time.perf_counter() - start:.1f} s")
    measure(engines, queries)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="Measure the search.")
    parser.add_argument("--documents", type=int, default=200_000, help="how many documents to draw")
    parser.add_argument("--products", type=Path, help="official JSON of WebShop to take instead")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where the index is built; without it, a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run(arguments, Path(folder))


if __name__ == "__main__":
    main()
