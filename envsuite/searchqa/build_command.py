"""Builds a corpus of pages with questions on them: texts, search index and questions in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from envsuite.retrieval import build_command
from envsuite.retrieval.collection import SPLITS
from envsuite.retrieval.documents import Source
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.source import QuestionFiles

HELP = "a corpus for SearchQA-v0: pages, index and questions in one file"
EXAMPLES = """examples:
  envsuite data build questions hotpot_train_v1.1.json hotpot_dev_distractor_v1.json --out hotpotqa.corpus
  envsuite data build questions musique_ans_v1.0_dev.jsonl --vectors path/to/MiniLM --out musique.corpus
  envsuite data build questions dev.json --corpus wiki.jsonl.gz --split validation --out 2wiki.corpus
  envsuite data build questions --builtin 20000 --seed 7 --out encyclopaedia.corpus

Files are those of HotpotQA, 2WikiMultiHopQA and MuSiQue. Without --corpus the passages that come with the questions are
searched. 2WikiMultiHopQA's id_aliases.json is read from the folder of its file. Then:
gymnasium.make("SearchQA-v0", source="hotpotqa.corpus").
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments to ``parser``, that of ``envsuite data build questions``."""
    build_command.add_arguments(parser, EXAMPLES, "pages")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files of questions, or folders of them")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="passages to search instead of the questions' own")
    parser.add_argument("--split", choices=SPLITS, help="split of all questions (default: that of each file's name)")


def run(arguments: argparse.Namespace) -> int:
    """Builds the corpus; returns the exit code.

    Raises:
        DataError: As :func:`envsuite.retrieval.corpus_build.build`.
        UsageError: The arguments contradict each other.
    """
    file_options = ("files", "corpus", "split")
    return build_command.run(arguments, _files, lambda pages, seed: Encyclopaedia(pages, seed=seed), file_options)


def _files(arguments: argparse.Namespace) -> Source:
    return QuestionFiles(arguments.files, arguments.corpus, arguments.split)
