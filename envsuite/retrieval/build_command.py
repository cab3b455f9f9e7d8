"""Builds a corpus from the command line: progress on stderr, and what is in the corpus on stdout."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.progress import Shown, sized
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build, place
from envsuite.retrieval.documents import Problems, Source
from envsuite.retrieval.known_encoders import encoder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that all builds of a corpus have."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the corpus; an existing file is replaced (default: in the cache)"
    )
    parser.add_argument(
        "--vectors",
        nargs="+",
        default=[],
        metavar="ENCODER",
        help="store vectors for dense search: lsa, lsa:DIMENSIONS, or the folder of a sentence-transformers model",
    )
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first problem in the data (default: count them and go on)"
    )


def run(source: Source, arguments: argparse.Namespace) -> int:
    """Builds the corpus; returns the exit code.

    Args:
        source: The documents and tasks.
        arguments: Those of :func:`add_arguments`.

    Raises:
        DataError: As :func:`~envsuite.retrieval.corpus_build.build`; or there is no such encoder.
        UsageError: Vectors are for a corpus with a name.
    """
    source.problems = Problems(strict=arguments.strict)
    encoders = [encoder(name) for name in arguments.vectors]
    if encoders and arguments.out is None:
        raise UsageError("--vectors is for a corpus of your own; name it with --out")
    out = arguments.out if arguments.out is not None else place(source)
    begin = time.monotonic()
    try:
        build(source, out, Shown(sys.stderr, unit=lambda number: f"{number:,}"), encoders)
    except KeyboardInterrupt:
        sys.stderr.write("\nenvsuite: interrupted; the same command resumes where this one stopped\n")
        return 130
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stderr.write(f"{time.monotonic() - begin:.0f} s, {sized(peak)} of memory at most\n")
    for line in source.problems.lines():
        sys.stderr.write(f"{line}\n")
    corpus = Corpus(out)
    facts = {
        "corpus": str(out),
        "size": sized(out.stat().st_size),
        "source": corpus.source,
        "documents": f"{len(corpus):,}",
        "links": f"{corpus.number_of_links:,}",
        "vectors": ", ".join(corpus.vectors) or "none",
        "tasks": f"{len(corpus.tasks()):,}",
        "digest": corpus.digest,
    }
    for name, value in facts.items():
        sys.stdout.write(f"{name}: {value}\n")
    return 0
