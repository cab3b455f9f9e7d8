"""``plots/*.png`` of a run."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from envsuite.evaluation.plots import figure
from trainers.report.metrics import is_share
from trainers.report.run import PARTS, PHASE_COLOURS, RunData, moving_mean, window_of
from trainers.report.stats import EvalResult, by_stratum, comparison

# Okabe and Ito's palette: distinguishable with every common kind of colour blindness, and in grey.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
PANELS = {
    "loss": ("train/loss", "train/grad_norm", "train/clip_fraction", "train/lr"),
    "policy": ("train/entropy", "train/kl", "train/approx_kl", "train/logprob_gap"),
    "episodes": ("train/return", "train/valid_actions", "train/episode_length", "train/response_length"),
    "tokens": ("tokens/rows", "tokens/distinct", "tokens/shared", "tokens/shareable"),
    "speed": ("time/rollout", "time/update", "time/total", "rate/tokens"),
}
"""Metrics of each figure of small multiples."""


def write_plots(run: RunData) -> list[Path]:
    """Draws the plots for which the run has metrics or evaluations into ``plots/`` in its folder; returns the files."""
    folder = run.folder / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    if run.series("train/success")[0] or run.evaluation_points():
        with figure(folder / "success.png", 7.2, 4.0) as chart:
            _success(run, chart.subplots())
        files.append(folder / "success.png")
    for name, metrics in PANELS.items():
        present = [metric for metric in metrics if run.series(metric)[0]]
        if present:
            with figure(folder / f"{name}.png", 7.2, 2.5 * ((len(present) + 1) // 2)) as chart:
                axes = chart.subplots((len(present) + 1) // 2, 2, squeeze=False).ravel()
                for axis, metric in zip(axes, present, strict=False):
                    _curve(run, metric, axis)
                for axis in axes[len(present) :]:
                    axis.set_visible(False)
            files.append(folder / f"{name}.png")
    if run.series("time/total")[0]:
        with figure(folder / "time.png", 7.2, 4.0) as chart:
            _parts(run, chart.subplots())
        files.append(folder / "time.png")
    for index, (before, after) in enumerate(run.pairs()):
        path = folder / ("before_after.png" if index == 0 else f"before_after_{index + 1}.png")
        with figure(path, 1.9 + 1.15 * len(comparison(before, after)), 3.8) as chart:
            _before_after(before, after, chart.subplots())
        files.append(path)
    return files


def _success(run: RunData, axis: Axes) -> None:
    iterations, values = run.series("train/success")
    if iterations:
        window = window_of(len(values))
        faint = {"alpha": 0.3, "linewidth": 1} if window > 1 else {"linewidth": 2}
        axis.plot(iterations, values, color=BLUE, label="training, other tasks each iteration", **faint)
        if window > 1:
            smooth = moving_mean(values, window)
            axis.plot(iterations, smooth, color=BLUE, linewidth=2, label=f"training, mean of {window}")
    points = run.evaluation_points()
    if points:
        x, y = [p[0] for p in points], [p[1] for p in points]
        errors = [[p[1] - p[2] for p in points], [p[3] - p[1] for p in points]]
        axis.errorbar(
            x, y, errors, color=ORANGE, fmt="o", capsize=3, linewidth=1.2, markersize=5, zorder=3,
            label="held-out tasks, 95 % interval",
        )  # fmt: skip
        if points[0][0] == 0:
            axis.axhline(points[0][1], color=GREY, linestyle="--", linewidth=1.2, label="base model", zorder=1)
    axis.set(xlabel="iteration", ylabel="success", ylim=(0, 1.02), title=run.name)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.legend(loc="best")


def _curve(run: RunData, metric: str, axis: Axes) -> None:
    iterations, values = run.series(metric)
    window = 1 if metric == "train/lr" else window_of(len(values))
    axis.plot(iterations, values, color=BLUE, alpha=0.3 if window > 1 else 1.0, linewidth=1, label="each iteration")
    if window > 1:
        axis.plot(iterations, moving_mean(values, window), color=BLUE, linewidth=1.8, label=f"mean of {window}")
        axis.legend(fontsize="small")
    axis.set(title=metric, xlabel="iteration")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=6))
    if is_share(metric):
        axis.set_ylim(0, 1.02 if max(values) >= 0.1 else None)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axis.ticklabel_format(axis="y", scilimits=(-3, 4))


def _parts(run: RunData, axis: Axes) -> None:
    """Stacked bars of the shares of each iteration's time; the largest parts of the run at the bottom."""
    iterations, total = run.series("time/total")
    bottom = [0.0] * len(iterations)
    names = {label: name for name, label in PARTS.items()}
    for label in [label for label, _ in run.times() if label != "evaluation"]:
        seconds = dict(zip(*run.series(f"time/{names[label]}"), strict=True))
        shares = [max(0.0, seconds.get(i, 0.0)) / max(s, 1e-9) for i, s in zip(iterations, total, strict=True)]
        axis.bar(iterations, shares, 1.0, bottom, label=label, color=PHASE_COLOURS[label])
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axis.set(xlabel="iteration", ylabel="share of the iteration", ylim=(0, 1.0), title=f"{run.name}: time by part")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.grid(visible=False)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


def _before_after(before: EvalResult, after: EvalResult, axis: Axes) -> None:
    rows, width = by_stratum([before, after]), 0.36
    for offset, result, colour in ((-width / 2, before, GREY), (width / 2, after, BLUE)):
        strata = [(index, stratum) for index, (name, *_) in enumerate(rows) if (stratum := result.stratum(name))]
        places = [index + offset for index, _ in strata]
        rates = [stratum.success for _, stratum in strata]
        errors = [[s.success - s.low for _, s in strata], [s.high - s.success for _, s in strata]]
        axis.bar(places, rates, width, color=colour, label=result.name)
        axis.errorbar(places, rates, errors, fmt="none", ecolor="#333333", elinewidth=1.1, capsize=3)
        for place, (_, stratum) in zip(places, strata, strict=True):
            axis.annotate(
                f"{100 * stratum.success:.0f}", (place, stratum.high), (0, 3), textcoords="offset points",
                ha="center", fontsize=9, color="#333333",
            )  # fmt: skip
    axis.set_xticks(range(len(rows)), [f"{name}\nn = {n}" for name, n, _ in rows])
    axis.grid(axis="x", visible=False)
    axis.set(ylabel="success", ylim=(0, 1.12), title=f"{after.env_id}, split {after.split}")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
