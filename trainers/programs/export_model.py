"""``envsuite export model RUN --output DIR``: the model that a run has trained, as transformers and vLLM read it.

A run with ``model.adapter`` gives the adapter, or with ``--merged`` a whole model; any other run the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainers.processes.distributed import run_guarded
from trainers.run.export import DTYPES, export


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="envsuite export model", description=__doc__)
    what = "Folder of a run, whose newest checkpoint is taken, of a checkpoint, or of what envsuite imitate wrote."
    parser.add_argument("run", type=Path, help=what)
    parser.add_argument("--output", type=Path, required=True, help="Folder that is made.")
    parser.add_argument("--merged", action="store_true", help="Merge the adapter into its base.")
    parser.add_argument("--dtype", choices=list(DTYPES), help="Format of a whole model; by default that of its files.")
    options = parser.parse_args(arguments)

    def command() -> None:
        checkpoint = export(options.run, options.output, merged=options.merged, dtype=options.dtype)
        sys.stdout.write(f"{checkpoint} written to {options.output}\n")

    return run_guarded(command)
