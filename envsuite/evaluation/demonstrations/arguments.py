"""Arguments of an environment on the command line."""

from __future__ import annotations

import argparse
from typing import Any

from envsuite.core.settings import read_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where tasks come from, and how the environment is made."""
    parser.add_argument("--split", default="train", help="the split of the tasks (default: %(default)s)")
    add_source(parser)


def add_source(parser: argparse.ArgumentParser, default: str = "the environment's own") -> None:
    """Adds the options that say how the environment is made, its split aside."""
    parser.add_argument(
        "--source", help=f"source of the tasks: builtin, generated, official or a path (default: {default})"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="another argument of the environment, its value as JSON or as text; may be repeated",
    )  # fmt: skip


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of the environment, besides its split."""
    options = dict(map(read_option, arguments.option))
    return options if arguments.source is None else {"source": arguments.source, **options}
