"""Builds a corpus of papers: texts, dates, citations, search index and queries in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.papersearch.literature import Literature
from envsuite.papersearch.source import official_source, source_of
from envsuite.retrieval import build_command
from envsuite.retrieval.documents import Source

HELP = "a corpus for PaperSearch-v0: papers, citations, index and queries in one file"
EXAMPLES = """examples:
  envsuite data build papers --builtin 100000 --seed 7 --out literature.corpus
  envsuite data build papers papers.jsonl.gz --queries AutoScholarQuery_dev.jsonl --out pasa.corpus
  envsuite data build papers "IEEE VIS papers 1990-2015 - Main dataset.tsv" --out vis.corpus
  envsuite data build papers cacm --out cacm.corpus

PATH is a file or folder of JSON lines (Semantic Scholar, arXiv, paperlists), the table of IEEE VIS, or the folder of
CACM. Then: gymnasium.make("PaperSearch-v0", source="pasa.corpus"), or: envsuite play papersearch --source vis.corpus.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments to ``parser``, that of ``envsuite data build papers``."""
    build_command.add_arguments(parser, EXAMPLES, "papers")
    papers = "the papers; default: papersearch in $ENVSUITE_DATA"
    queries = "PaSa's queries on these papers (JSON lines)"
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help=papers)
    parser.add_argument("--queries", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help=queries)


def run(arguments: argparse.Namespace) -> int:
    """Builds the corpus; returns the exit code.

    Raises:
        DataError: As :func:`envsuite.retrieval.corpus_build.build`.
        UsageError: The arguments contradict each other.
    """
    return build_command.run(arguments, _source, Literature, ("path", "queries"))


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.path is not None:
        return source_of(arguments.path, arguments.queries)
    if arguments.queries:
        raise UsageError("--queries are on the papers of PATH; name it")
    return official_source()
