"""The command ``envsuite eval power``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envsuite.core.errors import DataError, UsageError
from envsuite.evaluation.groups import ResultGroup, load_groups
from envsuite.evaluation.statistics import Correlations, detectable_difference, estimate_correlations, tasks_needed

EXAMPLES = """examples:
  envsuite eval power --difference 0.05 --rate 0.6
  envsuite eval power --difference 0.05 --rate 0.6 --paired --seeds 3 --correlation 0.5 --between 0.3
  envsuite eval power --rate 0.6 --tasks 134 --paired
  envsuite eval power --difference 0.05 --from results
"""
SEEDS = (1, 2, 3, 5, 10)
CORRELATION = 0.5
"""Assumed within a task, where nothing says better."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("--rate", type=float, help="success rate of the first policy (default: that of --from)")
    add("--difference", type=float, help="of the second policy's rate, e.g. 0.05 for 5 points")
    add("--tasks", type=int, help="number of tasks there are: which difference do they show?")
    add("--seeds", type=int, help=f"episodes of each task (default: {', '.join(map(str, SEEDS))})")
    add("--paired", action="store_true", help="both policies play the same tasks, compared by task")
    add(
        "--correlation", type=float,
        help=f"of two episodes of a task by one policy, 0 to 1 (default: that of --from, or {CORRELATION})",
    )  # fmt: skip
    add(
        "--between", type=float,
        help="with --paired, of two episodes of a task by different policies (default: that of --from, or half of "
        "--correlation)",
    )  # fmt: skip
    add("--from", dest="path", type=Path, metavar="PATH", help="estimate both from these results")
    add("--power", type=float, default=0.8, help="chance to find it (default: %(default)g)")
    add("--level", type=float, default=0.05, help="of the two-sided test (default: %(default)g)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the number of tasks, or the difference, for each number of seeds.

    Raises:
        UsageError: A number is missing or out of its range.
        DataError: There are no results to estimate from.
    """
    if arguments.difference is None and arguments.tasks is None:
        raise UsageError("give --difference (how many tasks?), --tasks (which difference?) or both")
    rate, estimate = arguments.rate, None
    if arguments.path is not None:
        estimated_rate, estimate = _estimate(load_groups([arguments.path]))
        rate = estimated_rate if rate is None else rate
    if rate is None:
        raise UsageError("give --rate, the success rate of the first policy, or --from with results of it")
    correlations = _correlations(arguments, estimate)
    write = sys.stdout.write
    kind = "the same tasks, compared by task" if arguments.paired else "two policies on tasks of their own"
    write(f"{kind}; rate {100 * rate:.1f} %, power {arguments.power:g}, two-sided level {arguments.level:g}\n")
    write(f"correlation of two episodes of a task: {correlations.within:.2f} by one policy")
    write(f", {correlations.between:.2f} by different ones\n" if arguments.paired else "\n")
    if estimate is None and arguments.correlation is None and arguments.seeds != 1:
        write("  (assumed; --from PATH estimates it from results)\n")
    for line in _lines(arguments, rate, correlations):
        write(line + "\n")
    return 0


def _lines(arguments: argparse.Namespace, rate: float, correlations: Correlations) -> list[str]:
    options = {"paired": arguments.paired, "power": arguments.power, "level": arguments.level}
    seed_counts = SEEDS if arguments.seeds is None else (arguments.seeds,)
    lines = []
    if arguments.difference is not None:
        lines.append(f"tasks that show a difference of {100 * arguments.difference:+.1f} points:")
        for seeds in seed_counts:
            tasks = tasks_needed(rate, arguments.difference, seeds, correlations, **options)
            lines.append(f"  {seeds:2} seed{'s' if seeds > 1 else ' '}  {tasks:7,} tasks  {tasks * seeds:8,} episodes")
    if arguments.tasks is not None:
        lines.append(f"least increase that {arguments.tasks} tasks show:")
        for seeds in seed_counts:
            least = detectable_difference(rate, arguments.tasks, seeds, correlations, **options)
            text = "none, up to a rate of 100 %" if least is None else f"{100 * least:+.1f} points"
            lines.append(f"  {seeds:2} seed{'s' if seeds > 1 else ' '}  {text}")
    return lines


def _correlations(arguments: argparse.Namespace, estimate: Correlations | None) -> Correlations:
    within, between = arguments.correlation, arguments.between
    if within is None:
        within = CORRELATION if estimate is None else estimate.within
    if between is None:
        between = within / 2 if estimate is None else min(estimate.between, within)
    return Correlations(within, between)


def _estimate(groups: Sequence[ResultGroup]) -> tuple[float, Correlations | None]:
    """Returns the rate of the first policy, and the correlations of it and of the second, if there is one.

    Raises:
        UsageError: There are more than two policies, or more than one split.
    """
    splits = {(group.conditions.env_id, group.conditions.split, group.conditions.panel) for group in groups}
    if len(groups) > 2 or len(splits) > 1:
        names = ", ".join(f"{g.name} on {g.conditions.env_id}, {g.conditions.split}" for g in groups)
        raise UsageError(f"--from takes one or two policies on one split, and there are: {names}; name a file")
    sums = [group.successes for group in groups]
    if not all(side.tasks for side in sums):
        raise DataError("no episode finished; there is nothing to estimate from")
    rate = float(sums[0].totals.sum() / sums[0].episodes.sum())
    if len(sums) == 1:
        return rate, estimate_correlations(sums[0].pairs())
    common = sorted(set(sums[0].tasks) & set(sums[1].tasks))
    return rate, estimate_correlations(*(side.of(common).pairs() for side in sums))
