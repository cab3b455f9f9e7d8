"""``envsuite papers``: the runs of the papers' tables, and the settings of one as a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trainers.papers.index import published_rows
from trainers.papers.settings import find_run, setting_of, text_of


def list_runs(arguments: Sequence[str]) -> int:
    """Prints a line for each run: its name, what was published, and the GPUs of the paper, separated by tabs."""
    papers = sorted({run.paper for run in published_rows()})
    parser = argparse.ArgumentParser(
        prog="envsuite papers list",
        description="Lists the runs of papers' tables, one a line: the name that --config takes, what was published, "
        "and the GPUs of the paper, separated by tabs.",
    )
    parser.add_argument("paper", nargs="?", choices=papers, help="default: all")
    paper = parser.parse_args(arguments).paper
    for run, (row, *_) in published_rows().items():
        if paper in (None, run.paper):
            figures = f"{row.label}: {row.figures_in(run.env) or 'no figure'}"
            sys.stdout.write(f"{run.name}\t{figures}\t{setting_of(run).gpus}\n")
    return 0


def show_run(arguments: Sequence[str]) -> int:
    """Prints the settings of a run as a YAML file that ``--config`` takes."""
    parser = argparse.ArgumentParser(
        prog="envsuite papers show",
        description="Prints the settings of a run as YAML that --config takes, for a file of your own. Its head says "
        "what was published, where the paper states the settings, what it does not state and what was taken then.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the run, as envsuite papers list has it")
    sys.stdout.write(text_of(find_run(parser.parse_args(arguments).name)))
    return 0
