"""Runs the experiment on credit assignment: ``docs/credit.md`` has the protocol.

    python -m research.credit tune            # each arm's rate and setting, on cells that no other stage has
    python -m research.credit map             # stage 1: a coarse map
    python -m research.credit confirm         # stage 2: the hypotheses of registered.yaml
    python -m research.credit confirm --plan  # what is left to run
    python -m research.credit report          # tables and figures of the results that are there

Every run that ends is a line of research/credit/results.jsonl; what has one is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from envsuite.core.errors import EnvsuiteError
from research.credit.report import write
from research.credit.runs import RESULTS, read, run_all
from research.credit.stages import STAGES, trials

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a stage, or writes the report; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m research.credit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=(*STAGES, "report"))
    parser.add_argument("--plan", action="store_true", help="say what is left to run, and stop")
    parser.add_argument("--arms", nargs="+", help="these alone")
    parser.add_argument("--cells", nargs="+", help="these alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"), help="folder of tables and figures")
    args, console = parser.parse_args(arguments), Console()
    try:
        return _main(args, console)
    except (EnvsuiteError, BrokenProcessPool) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return 1 if isinstance(error, BrokenProcessPool) else 2
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on")
        return 130


def _main(args: argparse.Namespace, console: Console) -> int:
    results = read(args.results)
    if args.stage == "report":
        for path in write(results, args.out):
            console.print(f"written: {path}", highlight=False)
        return 0
    wanted = [
        trial for trial in trials(args.stage, results)
        if (not args.arms or trial.arm in args.arms) and (not args.cells or trial.cell.name in args.cells)
    ]  # fmt: skip
    known = {result.done for result in results}
    left = [trial for trial in wanted if trial.done not in known]
    console.print(f"{args.stage}: {len(wanted)} runs, {len(wanted) - len(left)} done")
    if args.plan:
        return 0
    with Progress(*_COLUMNS, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(args.stage, total=len(left))
        for result in run_all(left, args.results, args.jobs):
            progress.advance(task)
            if result.error:
                console.print(f"failed: {result.key}: {result.error}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
