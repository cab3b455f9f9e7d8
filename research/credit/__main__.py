"""Runs the experiment on credit assignment: ``docs/credit.md`` has the protocol.

    python -m research.credit tune            # each arm's rate and setting, on cells that no other stage has
    python -m research.credit map             # stage 1: a coarse map
    python -m research.credit confirm         # stage 2: the hypotheses of registered.yaml
    python -m research.credit guard           # the second protocol: guards against collapse, and rates
    python -m research.credit second          # its comparisons, those of second.yaml
    python -m research.credit confirm --plan  # what is left to run
    python -m research.credit board --arms my.yaml  # tunes a method, runs it in the leaderboard's cells, adds its row
    python -m research.credit lookup          # measures the map's cells as envsuite diagnose does; the package's map
    python -m research.credit report          # tables and figures of the results that are there

Every run that ends is a line of research/credit/results.jsonl; what has one is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from envsuite.exits import status_of
from research.credit import board, lookup, second
from research.credit.arms import arm_of
from research.credit.report import write
from research.credit.results import RESULTS, read
from research.credit.runs import run_all
from research.credit.stages import STAGES, trials

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a stage, or writes the report; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m research.credit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=(*STAGES, *second.STAGES, "lookup", "report"))
    parser.add_argument("--plan", action="store_true", help="say what is left to run, and stop")
    parser.add_argument("--arms", nargs="+", default=(), help="these alone; of the leaderboard, those that enter")
    parser.add_argument("--cells", nargs="+", help="these alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=Path("runs/credit"), help="folder of tables and figures")
    args = parser.parse_args(arguments)
    return status_of(lambda: _main(args, Console()))


def _main(args: argparse.Namespace, console: Console) -> int:
    if args.stage == "report":
        for path in write(read(args.results), args.out):
            console.print(f"written: {path}", highlight=False)
        return 0
    if args.stage == "lookup":
        console.print(f"written: {lookup.write(read(args.results))}", highlight=False)
        return 0
    for arm in args.arms:
        arm_of(arm)
    while _run(args, console) and args.stage == "board" and not args.plan:
        pass  # after the tuning come the runs that it chose
    if args.stage == "board" and not args.plan:
        for arm in args.arms:
            board.add(board.enter(arm, read(args.results)))
        console.print(board.table(board.read()).markdown(), highlight=False, soft_wrap=True)
    return 0


def _run(args: argparse.Namespace, console: Console) -> int:
    """Runs what is left of a stage; returns how many runs these were."""
    results = read(args.results)
    listed = second.trials if args.stage in second.STAGES else trials
    wanted = listed(args.stage, results, args.arms, args.cells or ())
    known = {result.done for result in results}
    left = [trial for trial in wanted if trial.done not in known]
    console.print(f"{args.stage}: {len(wanted)} runs, {len(wanted) - len(left)} done")
    if args.plan or not left:
        return len(left)
    with Progress(*_COLUMNS, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(args.stage, total=len(left))
        for result in run_all(left, args.results, args.jobs):
            progress.advance(task)
            if result.error:
                console.print(f"failed: {result.key}: {result.error}", markup=False)
    return len(left)


if __name__ == "__main__":
    sys.exit(main())
