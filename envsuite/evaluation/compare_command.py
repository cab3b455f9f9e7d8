"""The command ``envsuite eval compare``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from envsuite.evaluation.compare import CORRECTIONS, compare, comparison_sheets
from envsuite.evaluation.groups import load_groups
from envsuite.evaluation.plots import draw_comparison
from envsuite.evaluation.table_command import FORMATS, deliver
from envsuite.evaluation.tables import make_rows
from envsuite.evaluation.writers import SHEETS, csv_of, json_of

EXAMPLES = """examples:
  envsuite eval compare results
  envsuite eval compare results/base results/trained --baseline base --format markdown
  envsuite eval compare results --plot figure.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="files of results, or folders of them")
    add("--baseline", metavar="NAME", help="compare every policy with this one (default: all pairs)")
    add(
        "--correction", choices=CORRECTIONS, default="holm",
        help="of p-values for the number of comparisons: Holm, or Benjamini and Hochberg (default: %(default)s)",
    )  # fmt: skip
    add("--format", choices=FORMATS, default="text", help="(default: %(default)s)")
    add("--out", type=Path, metavar="FILE", help="write to a file (default: standard output)")
    add("--plot", type=Path, metavar="FILE", help="draw success and cost (.png, .pdf or .svg)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the comparison, and draws the plot.

    Raises:
        EnvsuiteError: The results cannot be compared, a file cannot be written, or matplotlib is missing.
    """
    groups = load_groups(arguments.paths)
    comparisons = compare(groups, arguments.baseline, arguments.correction)
    if arguments.plot is not None:
        draw_comparison(make_rows(groups), arguments.plot)
    records = [asdict(comparison) for comparison in comparisons]
    if arguments.format == "csv":
        text = csv_of(records)
    elif arguments.format == "json":
        text = json_of({"correction": arguments.correction, "comparisons": records})
    else:
        text = SHEETS[arguments.format](comparison_sheets(comparisons, arguments.correction))
    deliver(text, arguments.out)
    return 0
