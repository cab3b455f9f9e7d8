"""``python -m benchmarks.seeds``: runs of the same settings with several seeds, in one table and one figure.

    python -m benchmarks.seeds runs/pythonmath-{0,1,2} --metrics train/success env/tool_calls shape/mu --out figure.png

The table has success before and after with 95 % intervals; the figure the runs' mean, least and greatest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from envsuite.core.errors import DataError, EnvsuiteError
from trainers.report.plots import BLUE, figure
from trainers.report.run import RunData


def row(run: RunData) -> str:
    """Success before and after in percent, and the minutes that the run took.

    Raises:
        DataError: The run has no evaluation.
    """
    points = run.evaluation_points()
    if not points:
        raise DataError(f"{run.folder}: no evaluation; is the run still under way?")
    before, after = (f"{100 * p[1]:.1f} [{100 * p[2]:.1f}, {100 * p[3]:.1f}]" for p in (points[0], points[-1]))
    return f"| {run.summary['seed']} | {before} | {after} | {run.summary['wall_s'] / 60:.1f} |"


def draw(runs: Sequence[RunData], metrics: Sequence[str], path: Path) -> None:
    """Draws a panel for each metric.

    Raises:
        DataError: A run has no such metric.
    """
    with figure(path, 3.0 * len(metrics), 2.7, size=9) as drawn:
        for axis, metric in zip(np.ravel(drawn.subplots(1, len(metrics))), metrics, strict=True):
            found = [run.series(metric) for run in runs]
            if not all(at for at, _ in found):
                raise DataError(f"no metric {metric} in {runs[0].folder}; metrics.jsonl has those of the run")
            shortest = min(len(at) for at, _ in found)
            at, values = found[0][0][:shortest], np.array([values[:shortest] for _, values in found])
            axis.fill_between(at, values.min(0), values.max(0), color=BLUE, alpha=0.2, linewidth=0)
            axis.plot(at, values.mean(0), color=BLUE, linewidth=1.6)
            axis.set_title(metric)
            axis.set_xlabel("iteration")
            axis.set_ylim(bottom=0)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if metric.endswith("success"):
                axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, and writes the figure if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument(
        "--metrics", nargs="+", default=["train/success"], help="metrics to draw (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="file of the figure")
    given = parser.parse_args(arguments)
    try:
        runs = [RunData.load(folder) for folder in given.runs]
        lines = [row(run) for run in runs]
        if given.out is not None:
            draw(runs, given.metrics, given.out)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    print("| seed | before, % | after, % | minutes |\n|---:|---|---|---:|", *lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
