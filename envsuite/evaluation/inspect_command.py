"""The command ``envsuite eval inspect``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envsuite.evaluation.inspect_logs import write_inspect_logs
from envsuite.evaluation.results import read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("results", nargs="+", type=Path, help="files of results, or folders that have them")
    parser.add_argument("--out", type=Path, default=Path("logs"), help="folder of the logs (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the logs and says what opens them.

    Raises:
        EnvsuiteError: The results cannot be read, or the logs cannot be written.
    """
    for file in write_inspect_logs(read_results(*arguments.results), arguments.out):
        sys.stdout.write(f"{file}\n")
    sys.stderr.write(f"look at them with: inspect view --log-dir {arguments.out}\n")
    return 0
