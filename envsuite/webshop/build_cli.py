"""Builds the catalogue of WebShop-v0: products, goals and search index in one file."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.progress import DownloadDisplay, format_size, resumable
from envsuite.webshop.build import build, default_tagger, place
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.generate import Shop
from envsuite.webshop.nouns import tagger
from envsuite.webshop.source import SETS, CatalogueFiles, Stock, official_files

HELP = "the catalogue of WebShop-v0: the whole shop in one file"
EXAMPLES = """examples:
  envsuite data build webshop official-1k
  envsuite data build webshop downloads/webshop --out webshop.catalogue
  envsuite data build webshop --products items_shuffle.json --attributes items_ins_v2.json --human items_human_ins.json
  envsuite data build webshop --builtin 100000 --seed 7 --out shop.catalogue

Then: gymnasium.make("WebShop-v0", source="shop.catalogue"). Without --out the catalogue is stored where the environment
looks for it: source="official-1k" opens the result of the first of these commands. The same command resumes an
interrupted build where it stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments to ``parser``, that of ``envsuite data build webshop``."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SET",
        help=f"{' or '.join(SETS)} in $ENVSUITE_DATA, or a folder of such files; default: the set that is there",
    )
    parser.add_argument("--products", type=Path, metavar="FILE", help="items_shuffle.json or items_shuffle_1000.json")
    parser.add_argument("--attributes", type=Path, metavar="FILE", help="items_ins_v2.json or items_ins_v2_1000.json")
    parser.add_argument("--human", type=Path, metavar="FILE", help="items_human_ins.json, the instructions of people")
    parser.add_argument("--builtin", type=int, metavar="N", help="N generated products instead of the official ones")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the generated products (default: 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the catalogue; an existing file is replaced")
    parser.add_argument(
        "--tagger",
        metavar="NAME",
        help="finds the nouns of titles: spacy or builtin; default: spacy for official files, if it is installed",
    )


def run(arguments: argparse.Namespace) -> int:
    """Builds the catalogue; returns the exit code.

    Raises:
        EnvsuiteError: As :func:`envsuite.webshop.build.build`; or the arguments contradict each other.
    """
    stock = _stock(arguments)
    find_nouns = tagger(arguments.tagger) if arguments.tagger is not None else default_tagger(stock)
    out = arguments.out if arguments.out is not None else place(stock)
    sys.stderr.write(f"{stock.title}: nouns by {find_nouns.name}\n")
    start = time.monotonic()
    with resumable():
        build(stock, out, find_nouns, DownloadDisplay(sys.stderr, unit="{:,}".format))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stderr.write(f"{time.monotonic() - start:.0f} s, {format_size(peak)} of memory at most\n")
    for key, value in {"catalogue": str(out), "size": format_size(out.stat().st_size), **Catalogue(out).meta}.items():
        sys.stdout.write(f"{key}: {value}\n")
    return 0


def _stock(arguments: argparse.Namespace) -> Stock:
    files = (arguments.products, arguments.attributes, arguments.human)
    has_files = any(path is not None for path in files)
    if sum((arguments.source is not None, has_files, arguments.builtin is not None)) > 1:
        raise UsageError("give a set or a folder, or --products and --attributes, or --builtin: one of the three")
    if arguments.seed is not None and arguments.builtin is None:
        raise UsageError("--seed is for generated products; give --builtin N with it")
    if arguments.builtin is not None:
        return Shop(arguments.seed or 0, arguments.builtin)
    if has_files:
        if arguments.products is None or arguments.attributes is None:
            raise UsageError("--products and --attributes belong together; --human may join them")
        return CatalogueFiles(*files)
    return official_files(arguments.source)
