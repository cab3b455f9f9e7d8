"""Builds a corpus from the command line: progress on stderr, and what is in the corpus on stdout."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.progress import DownloadDisplay, format_size
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build, place
from envsuite.retrieval.documents import DocumentProblems, Source
from envsuite.retrieval.vectors import encoder


def add_arguments(parser: argparse.ArgumentParser, examples: str, documents: str) -> None:
    """Adds the arguments that all builds of a corpus have.

    Args:
        parser: The command's.
        examples: Printed below its help.
        documents: What the documents are, in the plural.
    """
    parser.epilog = examples
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--builtin", type=int, metavar="N", help=f"N generated {documents}, and tasks on them")
    parser.add_argument("--seed", type=int, metavar="S", help=f"seed of the generated {documents} (default: 0)")
    out = "the corpus; an existing file is replaced (default: in the cache)"
    vectors = "store vectors for dense search: the folder of a sentence-transformers model"
    strict = "stop at the first problem in the data (default: count them and go on)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    parser.add_argument("--vectors", nargs="+", action="extend", default=[], metavar="ENCODER", help=vectors)
    parser.add_argument("--strict", action="store_true", help=strict)


def run(
    arguments: argparse.Namespace,
    read: Callable[[argparse.Namespace], Source],
    generate: Callable[[int, int], Source],
    file_options: Sequence[str],
) -> int:
    """Builds the corpus; returns the exit code.

    Args:
        arguments: Those of :func:`add_arguments`, and others.
        read: Makes the source from files.
        generate: Makes it from ``--builtin`` and ``--seed``.
        file_options: Names of the arguments that only ``read`` takes.

    Raises:
        DataError: As :func:`~envsuite.retrieval.corpus_build.build`; or there is no such encoder.
        UsageError: The arguments contradict each other; or vectors are for a corpus without a name.
    """
    is_builtin = arguments.builtin is not None
    if not is_builtin and arguments.seed is not None:
        raise UsageError("--seed is for generated documents; give --builtin N with it")
    if is_builtin and any(vars(arguments)[name] for name in file_options):
        raise UsageError("--builtin generates documents and tasks; give it, or files")
    source = generate(arguments.builtin, arguments.seed or 0) if is_builtin else read(arguments)
    source.problems = DocumentProblems(strict=arguments.strict)
    if arguments.vectors and arguments.out is None:
        raise UsageError("--vectors is for a corpus of your own; name it with --out")
    encoders = [encoder(name) for name in arguments.vectors]
    out = arguments.out if arguments.out is not None else place(source, is_builtin)
    begin = time.monotonic()
    build(source, out, DownloadDisplay(sys.stderr, unit="{:,}".format), encoders)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stderr.write(f"{time.monotonic() - begin:.0f} s, {format_size(peak)} of memory at most\n")
    for line in source.problems.lines():
        sys.stderr.write(f"{line}\n")
    corpus = Corpus(out)
    facts = {
        "corpus": str(out),
        "size": format_size(out.stat().st_size),
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
