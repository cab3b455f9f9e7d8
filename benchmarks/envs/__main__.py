"""Measure environments: steps and resets a second, memory, start-up.

    python -m benchmarks.envs textcraft
    python -m benchmarks.envs alfworld --games DIR
    python -m benchmarks.envs sokoban [--boxoban DIR]
    python -m benchmarks.envs babyai [--level NAME]
    python -m benchmarks.envs classics
    python -m benchmarks.envs webshop [--products 1000 10000 100000 1180000] [--catalogues DIR]

Times are CPU seconds of one thread; the best of several rounds counts, since other programs only ever slow one down.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import gymnasium

import envsuite
from benchmarks.envs.alfworld import alfworld
from benchmarks.envs.babyai import babyai
from benchmarks.envs.classics import classics
from benchmarks.envs.sokoban import sokoban
from benchmarks.envs.textcraft import textcraft
from benchmarks.envs.webshop import table
from envsuite.core.errors import EnvsuiteError


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of the environment that ``argv`` names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="environment", required=True)
    commands.add_parser("textcraft", help="TextCraft-v0 on the built-in source")
    command = commands.add_parser("sokoban", help="Sokoban-v0 on the built-in source, and the solver")
    command.add_argument("--boxoban", type=Path, help="folder of Boxoban's level files for the solver")
    command.add_argument("--levels", type=int, default=200, help="levels of each of its files that are solved")
    command = commands.add_parser("babyai", help="BabyAI-v0, beside minigrid alone")
    command.add_argument("--level", default="GoToLocal", help="the level that is played")
    commands.add_parser("classics", help="the five classics on their built-in sources")
    command = commands.add_parser("alfworld", help="ALFWorld-v0, the native engine beside the reference")
    command.add_argument("--games", type=Path, help="folder that holds json_2.1.1; the built-in games by default")
    command.add_argument("--episodes", type=int, default=128, help="episodes whose memory is measured")
    command = commands.add_parser("webshop", help="WebShop-v0 on built-in shops of several sizes, as a Markdown table")
    command.add_argument("--products", type=int, nargs="+", default=[1_000, 100_000], metavar="N", help="their sizes")
    command.add_argument("--catalogues", type=Path, metavar="DIR", help="has N.catalogue for each, or gets it")
    arguments = parser.parse_args(argv)
    sys.stdout.write(f"envsuite {envsuite.__version__}, gymnasium {gymnasium.__version__}\n")
    try:
        match arguments.environment:
            case "webshop":
                sys.stdout.write(table(arguments.products, arguments.catalogues))
                return 0
            case "sokoban":
                rows = sokoban(arguments.boxoban, arguments.levels)
            case "babyai":
                rows = babyai(arguments.level)
            case "classics":
                rows = classics()
            case "alfworld":
                rows = alfworld(arguments.games, arguments.episodes)
            case _:
                rows = textcraft()
    except EnvsuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    width = max(len(what) for what, _ in rows)
    sys.stdout.writelines(f"{what:<{width}}  {figure:>18}\n" for what, figure in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
