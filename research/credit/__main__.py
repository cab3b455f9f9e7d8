"""Runs the experiment: ``docs/credit.md`` has the protocol.

python -m research.credit tune       # each arm's rate and setting, on cells that no other stage has
python -m research.credit map        # stage 1: a coarse map
python -m research.credit --plan map # what is left to run
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from research.credit.runs import RESULTS, read, run_all
from research.credit.stages import STAGES, trials


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a stage; what has a result is not run again."""
    parser = argparse.ArgumentParser(
        prog="python -m research.credit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--plan", action="store_true", help="say what is left to run, and stop")
    parser.add_argument("--arms", nargs="+", help="these alone")
    parser.add_argument("--cells", nargs="+", help="these alone")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so many minutes")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args, console = parser.parse_args(arguments), Console()
    results = read(args.results)
    wanted = [
        trial for trial in trials(args.stage, results)
        if (not args.arms or trial.arm in args.arms) and (not args.cells or trial.cell.name in args.cells)
    ]  # fmt: skip
    known = {result.key for result in results}
    left = [trial for trial in wanted if trial.key not in known]
    console.print(f"stage {args.stage}: {len(wanted)} runs, {len(wanted) - len(left)} done")
    if args.plan:
        return 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    until = time.monotonic() + 60 * args.minutes
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(args.stage, total=len(left))
        for result in run_all(left, args.results, args.jobs, until):
            progress.advance(task)
            if result.error:
                console.print(f"failed: {result.key}: {result.error.splitlines()[-1]}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
