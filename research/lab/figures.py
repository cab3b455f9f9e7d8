"""Figures of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from envsuite.evaluation.plots import figure
from research.lab.methods import methods
from research.lab.tables import Record, distinct, estimate, places, select

# Okabe and Ito's palette; line style and marker distinguish what colour cannot.
LineStyle = Literal["-", "--", "-.", ":"]
STYLES: dict[str, tuple[str, LineStyle, str]] = {
    "exact A": ("#000000", "--", ""),
    "grpo, dapo, gspo": ("#8C8C8C", "-", "s"),
    "grpo": ("#8C8C8C", "-", "s"),
    "rloo": ("#8C8C8C", ":", "s"),
    "gigpo": ("#0072B2", "-", "o"),
    "gigpo+scpo": ("#56B4E9", "--", "o"),
    "hgpo": ("#D55E00", "-", "^"),
    "bipace": ("#009E73", "-", "D"),
    "bipace q": ("#009E73", "-", "D"),
    "bipace diff": ("#CC79A7", "-.", "D"),
    "bipace mean": ("#0072B2", ":", "D"),
    "graphgpo": ("#009E73", "-", "p"),
    "g2po": ("#56B4E9", "-", "p"),
    "pgpo": ("#D55E00", "-", "p"),
    "gagpo": ("#CC79A7", "-", "p"),
    "rewardflow": ("#0072B2", "-", "p"),
    "beacon": ("#E69F00", "-", "p"),
    "hcapo": ("#E69F00", "-", "h"),
    "empg": ("#8C8C8C", "--", "h"),
    "tree_grpo": ("#8C8C8C", "-.", "s"),
    "oracle_mc": ("#000000", "-", "v"),
    "steppo": ("#E69F00", "-", "v"),
    "steppo, noisy V": ("#E69F00", "--", "v"),
    "vetta": ("#009E73", "-", "h"),
    "hiper": ("#0072B2", "-", "h"),
    "ppo": ("#CC79A7", "-", "P"),
    "ppo, noisy V": ("#CC79A7", "--", "P"),
    "ppo λ=1": ("#CC79A7", "-", "P"),
    "ppo λ=1, noisy V": ("#CC79A7", "--", "P"),
    "ppo λ=0.95": ("#56B4E9", "-", "X"),
    "ppo λ=0.95, noisy V": ("#56B4E9", "--", "X"),
}
LINES = ("exact A", "grpo, dapo, gspo", "gigpo", "gigpo+scpo", "hgpo", "bipace", "steppo, noisy V", "ppo, noisy V")
"""Methods in figures of curves."""
WORLD_STYLES = {
    "delayed": ("#0072B2", "o"),
    "graded": ("#E69F00", "s"),
    "aliased": ("#D55E00", "^"),
    "renamed": ("#009E73", "D"),
    "textcraft": ("#CC79A7", "v"),
}
AXES = {
    "group size": "episodes in a group",
    "horizon": "steps of an episode",
    "success": "success of the policy",
    "gamma": "discount of the estimator",
    "names": "names of each state",
}


def write_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draws the figures for which there are records; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {
        "quality": (_quality, 11.5, 6.6),
        "sweeps": (_sweeps, 12.0, 5.4),
        "learning": (_learning, 10.5, 6.2),
        "claims": (_claims, 11.0, 7.4),
    }
    written = []
    for name, (draw, width, height) in drawings.items():
        path = folder / f"{name}.png"
        with figure(path, width, height, size=9) as drawn:
            draw(records, drawn)
        written.append(path)
    return written


def _curve(axis: Axes, records: Sequence[Record], value: str, label: str, marker: bool = True) -> None:
    """Draws the mean over the seeds and its 95 % band along x."""
    points = [(x, estimate(select(records, x=x), value)) for x in places(records)]
    known = [(x, found) for x, found in points if found is not None]
    if not known:
        return
    colour, style, mark = STYLES[label]
    at = [x for x, _ in known]
    axis.plot(
        at, [e.mean for _, e in known], color=colour, linestyle=style, linewidth=1.6, label=label,
        marker=mark if marker else "", markersize=4,
    )  # fmt: skip
    axis.fill_between(at, [e.low for _, e in known], [e.high for _, e in known], color=colour, alpha=0.15, linewidth=0)


def _legend(drawn: Figure, labels: Sequence[str], columns: int, marker: bool = True) -> None:
    handles = [
        Line2D([], [], color=colour, linestyle=style, marker=mark if marker else "", markersize=5)
        for colour, style, mark in (STYLES[label] for label in labels)
    ]
    drawn.legend(handles, labels, loc="outside lower center", ncols=columns)


def _log_axis(axis: Axes, at: Sequence[float], base: float = 2) -> None:
    axis.set_xscale("log", base=base)
    axis.xaxis.set_major_locator(FixedLocator(list(at)))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{x:g}" for x in at]))
    axis.xaxis.set_minor_locator(NullLocator())


def _quality(records: Sequence[Record], drawn: Figure) -> None:
    own = select(records, experiment="worlds")
    names = [method.name for method in methods("textcraft") if select(own, method=method.name)]
    panels = {
        "bias": "squared bias",
        "action_bias": "… in the gradient",
        "variance": "variance",
        "rank": "rank correlation",
        "cosine": "cosine of gradients",
    }
    axes = drawn.subplots(1, len(panels), sharey=True)
    for axis, (value, title) in zip(axes, panels.items(), strict=True):
        for offset, (world, (colour, mark)) in enumerate(WORLD_STYLES.items()):
            for place, method in enumerate(names):
                found = estimate(select(own, world=world, method=method), value)
                if found is not None:
                    at = place + 0.15 * (offset - 2)
                    axis.plot([found.low, found.high], [at, at], color=colour, linewidth=1.2, alpha=0.8)
                    axis.plot(found.mean, at, marker=mark, color=colour, markersize=3.8, linestyle="")
        axis.set_title(title)
        if value == "variance":
            axis.set_xscale("log")
        for place in range(0, len(names), 2):
            axis.axhspan(place - 0.5, place + 0.5, color="#F5F5F5", zorder=0)
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    axes[0].set_xlabel("share of E[A²]")
    axes[1].set_xlabel("share of E[A²]")
    axes[2].set_xlabel("multiples of E[A²]")
    axes[3].set_xlabel("Spearman's ρ")  # noqa: RUF001
    axes[4].set_xlabel("mean over batches")
    handles = [Line2D([], [], color=c, marker=m, linestyle="", markersize=5) for c, m in WORLD_STYLES.values()]
    drawn.legend(handles, list(WORLD_STYLES), loc="outside lower center", ncols=len(handles))


def _sweeps(records: Sequence[Record], drawn: Figure) -> None:
    shown = [name for name in LINES if select(records, experiment="group size", method=name)]
    axes = drawn.subplots(2, len(AXES), sharey="row")
    for column, (experiment, label) in enumerate(AXES.items()):
        own = select(records, experiment=experiment)
        for row, (value, title) in enumerate((("cosine", "cosine of gradients"), ("rank", "rank correlation"))):
            axis = axes[row, column]
            for method in shown:
                _curve(axis, select(own, method=method), value, method)
            if experiment in ("group size", "horizon", "names"):
                _log_axis(axis, places(own))
            if column == 0:
                axis.set_ylabel(title)
            if row == 0:
                axis.set_title({"success": "sparsity", "gamma": "discount"}.get(experiment, experiment))
            else:
                axis.set_xlabel(label)
    _legend(drawn, shown, 7)


def _learning(records: Sequence[Record], drawn: Figure) -> None:
    own = select(records, experiment="learning")
    shown = [name for name in LINES if select(own, method=name)]
    names = distinct(own, "world")
    axes = drawn.subplots(2, 3, sharey=True).ravel()
    for axis, world in zip(axes, names, strict=False):
        for method in shown:
            _curve(axis, select(own, world=world, method=method), "score", method, marker=False)
        axis.set_title(world)
        axis.set_xlabel("updates")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    for axis in (axes[0], axes[3]):
        axis.set_ylabel("expected return, share of the best")
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _legend(drawn, shown, 4, marker=False)


def _claims(records: Sequence[Record], drawn: Figure) -> None:
    axes = drawn.subplots(2, 3)
    _hgpo_panels(select(records, experiment="hgpo"), axes[0, 0], axes[0, 1])
    _bipace_panel(select(records, experiment="bipace radius"), axes[0, 2])
    own = select(records, experiment="steppo gamma")
    for method in distinct(own, "method"):
        _curve(axes[1, 0], select(own, method=method), "cosine", method)
    axes[1, 0].set(title="StepPO: steps or tokens", xlabel="discount", ylabel="cosine of gradients")
    axes[1, 0].legend(fontsize=7, loc="best")
    if found := select(records, experiment="learning by discount"):
        _by_discount(found, axes[1, 1])
    _scpo_panel(select(records, experiment="scpo"), axes[1, 2])


def _hgpo_panels(own: Sequence[Record], bias: Axes, variance: Axes) -> None:
    names = ["episode", *(name for name in distinct(own, "method") if name.startswith("level") and "(" not in name)]
    names.append("hgpo")
    tints = ("#F0B08A", "#D55E00", "#7A3600")
    for axis, value in ((bias, "bias"), (variance, "variance")):
        for size, colour, mark in zip(places(own), tints, ("o", "^", "s"), strict=False):
            found = [estimate(select(own, x=size, method=name), value) for name in names]
            known = [(place, e) for place, e in enumerate(found) if e is not None]
            axis.errorbar(
                [place for place, _ in known], [e.mean for _, e in known],
                [[e.mean - e.low for _, e in known], [e.high - e.mean for _, e in known]],
                color=colour, marker=mark, markersize=4, capsize=2, linestyle=":", linewidth=1, label=f"G = {size:g}",
            )  # fmt: skip
        axis.set_xticks(range(len(names)), [n.replace("level ", "k=") for n in names], rotation=35, ha="right")
    bias.set(title="HGPO: squared bias of its levels", ylabel="share of E[A²]")
    bias.set_yscale("symlog", linthresh=0.1)
    bias.set_ylim(-0.02, 6)
    bias.set_yticks([0, 0.05, 0.1, 0.3, 1, 3], ["0", "0.05", "0.1", "0.3", "1", "3"])
    bias.yaxis.set_minor_locator(NullLocator())
    variance.set(title="HGPO: variance of its levels", ylabel="multiples of E[A²]")
    variance.set_ylim(bottom=0)
    bias.legend(loc="upper right")


def _bipace_panel(own: Sequence[Record], axis: Axes) -> None:
    for value, colour, style, label in (
        ("singletons", "#000000", "-", "singletons (share of steps)"),
        ("bias", "#D55E00", "--", "squared bias (share of E[A²])"),
        ("cosine", "#009E73", "-.", "cosine of gradients"),
    ):
        line = select(own, method="bipace q")
        found = [estimate(select(line, x=x), value) for x in places(line)]
        known = [(x, e) for x, e in zip(places(line), found, strict=True) if e is not None]
        axis.plot([x for x, _ in known], [e.mean for _, e in known], color=colour, linestyle=style, marker="o", ms=3)
        axis.fill_between(
            [x for x, _ in known], [e.low for _, e in known], [e.high for _, e in known], color=colour, alpha=0.15, lw=0
        )
        exact = estimate(select(own, method="gigpo"), value)
        if exact is not None:
            axis.axhline(exact.mean, color=colour, linestyle=style, linewidth=0.8, alpha=0.6)
        axis.plot([], [], color=colour, linestyle=style, label=label)
    axis.set(title="BiPACE: radius (thin: GiGPO)", xlabel="radius ε")
    axis.set_xscale("log")
    axis.set_xticks([0.01, 0.03, 0.1, 0.3, 1.0], ["0.01", "0.03", "0.1", "0.3", "1"])
    axis.set_ylim(-0.05, 1.05)
    axis.legend(fontsize=7, loc="best")


def _by_discount(own: Sequence[Record], axis: Axes) -> None:
    for method in distinct(own, "method"):
        gamma = method.rpartition("gamma ")[2] if "gamma" in method else ""
        colour = {"s": "#E69F00", "p": "#CC79A7"}.get(method[0], "#8C8C8C")
        points = [(x, estimate(select(own, method=method, x=x), "score")) for x in places(own)]
        known = [(x, e) for x, e in points if e is not None]
        style = {"0.8": ":", "0.95": "--"}.get(gamma, "-")
        at = [x for x, _ in known]
        axis.plot(at, [e.mean for _, e in known], color=colour, linestyle=style, label=method)
        axis.fill_between(at, [e.low for _, e in known], [e.high for _, e in known], color=colour, alpha=0.1, lw=0)
    axis.set(title="StepPO: learning by discount", xlabel="updates", ylabel="expected return, share of the best")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.legend(fontsize=7, loc="best")


def _scpo_panel(own: Sequence[Record], axis: Axes) -> None:
    bars = {"good_up": "A > 0,\ncredited up", "bad_up": "A < 0,\ncredited up", "opposite": "pairs of\nopposite sign"}
    kinds = [
        ("delayed", "gigpo", "#0072B2", ""),
        ("delayed", "gigpo+scpo", "#56B4E9", ""),
        ("textcraft", "gigpo", "#CC79A7", "//"),
        ("textcraft", "gigpo+scpo", "#F0C6DC", "//"),
    ]
    for offset, (world, method, colour, hatch) in enumerate(kinds):
        for place, value in enumerate(bars):
            found = estimate(select(own, world=world, method=method), value)
            if found is None:
                continue
            at = place + 0.2 * (offset - 1.5)
            label = f"{world}: {method}" if place == 0 else None
            axis.bar(at, found.mean, 0.19, color=colour, hatch=hatch, edgecolor="white", label=label)
            axis.errorbar(
                at, found.mean, [[found.mean - found.low], [found.high - found.mean]], color="#333333", capsize=2
            )
    axis.set_xticks(np.arange(len(bars)), list(bars.values()))
    axis.grid(axis="x", visible=False)
    axis.set(title="SCPO: steps of failed episodes", ylim=(0, 1.05))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.legend(fontsize=7, loc="upper left")
