"""``python -m benchmarks.number_formats``: runs in float32 and in bfloat16, in one figure and one table.

Reads finished run folders, trained with the same settings but for ``model.compute_dtype`` and ``seed``.

    python -m benchmarks.number_formats --float32 runs/seed{0,1,2} --bfloat16 runs/bf16-{0,1,2} --out figure.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from envsuite.core.errors import EnvsuiteError
from trainers.report.plots import BLUE, GREY, figure
from trainers.report.run import RunData

COLORS = {"float32": GREY, "bfloat16": BLUE}
PANELS = {
    "train/success": "training success",
    "train/logprob_gap": "log-probability gap, nats",
    "train/engine_weight_max": "greatest importance weight",
}


def row(label: str, run: RunData) -> str:
    """Success before and after, and what the number format did to the ratios."""
    points = run.evaluation_points()
    before, after = (f"{100 * p[1]:.1f} [{100 * p[2]:.1f}, {100 * p[3]:.1f}]" for p in (points[0], points[-1]))
    names = ("logprob_gap", "engine_weight_max", "engine_weight_cut")
    gap, weight, cut = (run.series(f"train/{name}")[1] for name in names)
    weights = f"{max(weight):.2f}, {100 * max(cut):.1f} %" if weight else "none"
    return f"| {label} | {before} | {after} | {np.mean(gap):.1g} ({max(gap):.1g}) | {weights} |"


def draw(runs: dict[str, Sequence[RunData]], path: Path) -> None:
    """Mean over the seeds of each format, and the least and greatest."""
    with figure(path, 9.0, 2.9, size=9) as drawn:
        for axis, (metric, title) in zip(drawn.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for name, found in runs.items():
                series = [run.series(metric) for run in found if run.series(metric)[0]]
                if series:
                    at, values = series[0][0], np.array([values for _, values in series])
                    axis.fill_between(at, values.min(0), values.max(0), color=COLORS[name], alpha=0.2, linewidth=0)
                    axis.plot(at, values.mean(0), color=COLORS[name], linewidth=1.6, label=name)
            axis.set_title(title)
            axis.set_xlabel("iteration")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if metric == "train/success":
                axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
                axis.legend()
            if metric == "train/logprob_gap":
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:.0e}")


def main() -> int:
    """Write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in COLORS:
        parser.add_argument(f"--{name}", nargs="+", type=Path, required=True, metavar="RUN", help="folders, one a seed")
    parser.add_argument("--out", type=Path, required=True, help="file of the figure")
    given = parser.parse_args()
    try:
        runs = {name: [RunData.load(folder) for folder in getattr(given, name)] for name in COLORS}
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    draw(runs, given.out)
    print("| run | before, % | after, % | gap in nats, mean (worst iteration) | greatest weight, cut off |")
    print("|---|---|---|---|---|")
    for name, found in runs.items():
        for number, run in enumerate(found):
            print(row(f"{name}, seed {number}", run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
