"""The command ``envsuite fuse``: the weights of two searches, fitted on judged queries."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.evaluation.statistics import paired_bootstrap
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.hybrid import DEPTH, combined, normalised
from envsuite.retrieval.judging import Judged, judged, ndcg
from envsuite.retrieval.retrievers import retriever_of

EXAMPLES = """examples:
  envsuite data build papers --builtin 10000 --vectors lsa --out literature.corpus
  envsuite fuse literature.corpus bm25 lsa
  envsuite fuse pasa.corpus bm25 '{"rerank": "bm25", "model": "path/to/cross-encoder"}' --split validation
"""
SHARES = tuple(round(0.05 * step, 2) for step in range(21))
"""Weights of the second search that are tried, where both sum to 1."""
FOLDS = 5
FEWEST = 20
"""Queries that a weight is fitted to at least."""


@dataclass(frozen=True)
class Fitted:
    """Gains of two searches with each weight."""

    gains: NDArray[np.float64]
    """nDCG@10 with each weight of :data:`SHARES` on each query; the first and the last are the searches alone."""
    crossed: NDArray[np.float64]
    """nDCG@10 on each query with the weight that was fitted to the other folds. Shape: [queries]."""
    share: float
    """The weight that is fitted to all queries."""

    @property
    def better(self) -> NDArray[np.float64]:
        """The gains of the better search alone."""
        return max(self.gains[0], self.gains[-1], key=np.mean)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("corpus", type=Path, metavar="CORPUS", help="a corpus with tasks, as `envsuite data build` makes it")
    add("searches", nargs=2, metavar="SEARCH", help="bm25, the name of vectors, or a description in JSON")
    add("--split", default="train", help="split of the tasks (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Prints what the searches find alone and fused, and the description of the fused one.

    Raises:
        EnvsuiteError: The corpus cannot be read, has too few tasks, or has no such search.
    """
    corpus = Corpus(arguments.corpus)
    retrievers = [retriever_of(corpus, text) for text in arguments.searches]
    queries = judged(corpus, arguments.split)
    if len(queries) < FEWEST:
        counts = Counter(task.get("split") for task in corpus.tasks())
        has = ", ".join(f"{split}: {count}" for split, count in counts.items()) or "none"
        raise UsageError(
            f"{arguments.corpus} has {len(queries)} judged tasks in the split {arguments.split!r}; a weight needs "
            f"{FEWEST}. Its tasks: {has}"
        )
    sys.stdout.write(report(fit(retrievers, queries), arguments.searches))
    return 0


def fit(retrievers: Sequence[Retriever], queries: Sequence[Judged]) -> Fitted:
    """Returns the nDCG@10 of two searches for each weight, and the weights that are best on all folds but one.

    Query i is in fold i modulo :data:`FOLDS`. Of equally good weights, the one nearest to equal weights is taken.

    Args:
        retrievers: Two searches.
        queries: The judged queries.
    """
    gains = np.empty((len(SHARES), len(queries)))
    for place, query in enumerate(queries):
        found = [retriever.search(query.text, DEPTH, query.stop) for retriever in retrievers]
        numbers, scores = normalised(found)
        rankings = [combined(numbers, scores, (1 - share, share), 10)[0] for share in SHARES[1:-1]]
        for row, ranking in enumerate([found[0][0], *rankings, found[1][0]]):
            gains[row, place] = ndcg(ranking, query.gold)
    folds = np.arange(len(queries)) % FOLDS
    crossed = np.empty(len(queries))
    for fold in range(FOLDS):
        crossed[folds == fold] = gains[_best(gains[:, folds != fold]), folds == fold]
    return Fitted(gains, crossed, SHARES[_best(gains)])


def _best(gains: NDArray[np.float64]) -> int:
    order = sorted(range(len(SHARES)), key=lambda row: abs(SHARES[row] - 0.5))
    return max(order, key=lambda row: float(gains[row].mean()))


def report(fitted: Fitted, searches: Sequence[str]) -> str:
    """Returns the table, and the description of the search with the fitted weights."""
    first, second = searches
    rows = [
        (first, fitted.gains[0]),
        (second, fitted.gains[-1]),
        ("fused, equal weights", fitted.gains[len(SHARES) // 2]),
        (f"fused, weights fitted on the other {FOLDS - 1} of {FOLDS} parts", fitted.crossed),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'search':{width}}  nDCG@10  above the better one [95 % interval]"]
    for place, (name, gains) in enumerate(rows):
        line = f"{name:{width}}  {100 * gains.mean():7.1f}"
        if place > 1:
            differences = 100 * (gains - fitted.better)
            low, high = paired_bootstrap(differences)
            line += f"  {differences.mean():+.1f} [{low:.1f}, {high:.1f}]"
        lines.append(line)
    lines.append(f"{fitted.gains.shape[1]} queries")
    lines.append(f"\nretriever: {described(searches, fitted.share)}")
    return "\n".join(lines) + "\n"


def described(searches: Sequence[str], share: float) -> str:
    """Returns the description in JSON, which is YAML, too: of one search where the other has no weight."""
    plain = [orjson.loads(text) if text.lstrip().startswith("{") else text for text in searches]
    if share in (0.0, 1.0):
        return orjson.dumps(plain[int(share)]).decode()
    return orjson.dumps({"fuse": plain, "weights": [round(1 - share, 2), share]}).decode()
