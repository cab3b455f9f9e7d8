"""The command ``envsuite eval table``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.data.files import write_file
from envsuite.evaluation.groups import load_groups
from envsuite.evaluation.sheets import make_sheets, make_wide_sheets
from envsuite.evaluation.tables import DIVISIONS, make_rows
from envsuite.evaluation.writers import ROWS, SHEETS

EXAMPLES = """examples:
  envsuite eval table results
  envsuite eval table results --by stratum --format markdown
  envsuite eval table results/alfworld results/webshop --by stratum --wide --format latex --out table.tex
  envsuite eval table results --by seed
  envsuite eval table results --format csv --out table.csv
"""
FORMATS = (*SHEETS, *ROWS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="files of results, or folders of them")
    add("--by", choices=DIVISIONS, default="all", help="rows besides all tasks: %(choices)s (default: %(default)s)")
    add("--format", choices=FORMATS, default="text", help="(default: %(default)s)")
    add(
        "--wide", nargs="?", choices=("success", "score"), const="success",
        help="one row for each policy, one column for each stratum, of success (default) or score",
    )  # fmt: skip
    add(
        "--attempts", type=int, nargs="+", action="extend", default=[], metavar="K",
        help="add pass@K and pass^K, over the seeds",
    )  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="write to a file (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the table.

    Raises:
        DataError: There are no results, or the file cannot be written.
        UsageError: Options that do not go together.
    """
    if arguments.wide and arguments.format in ROWS:
        raise UsageError(f"--wide is for {', '.join(SHEETS)}; {arguments.format} has a row for each stratum")
    rows = make_rows(load_groups(arguments.paths), arguments.by, arguments.attempts)
    if arguments.format in ROWS:
        text = ROWS[arguments.format](rows)
    else:
        text = SHEETS[arguments.format](make_wide_sheets(rows, arguments.wide) if arguments.wide else make_sheets(rows))
    deliver(text, arguments.out)
    return 0


def deliver(text: str, out: Path | None) -> None:
    """Writes text to a file, or to standard output.

    Raises:
        DataError: The file cannot be written.
    """
    if out is None:
        sys.stdout.write(text)
        return
    write_file(out, text.encode())
