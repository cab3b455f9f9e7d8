"""The figure of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes

from envsuite.evaluation.plots import figure
from research.fleet.outcome import GENERATING, Outcome
from research.fleet.scenario import Scenario
from trainers.report.plots import BLUE, GREEN, GREY, ORANGE

COLOURS = {
    GENERATING: BLUE,
    "rollout process": "#56B4E9",
    "environment": GREEN,
    "longest episode": ORANGE,
    "update": GREY,
    "sync": "#CC79A7",
    "failure": "#000000",
}
"""Colours of what engines do and wait for."""


def draw(path: Path, scenario: Scenario, outcomes: Mapping[int, Outcome]) -> None:
    """Draws an iteration's seconds by staleness, and by environment cores where their number was searched for.

    Args:
        path: The file.
        scenario: The fleet.
        outcomes: Outcomes by staleness.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    searched = scenario.cores is None
    with figure(path, 9.0 if searched else 5.0, 3.6) as drawn:
        axes = drawn.subplots(1, 2 if searched else 1, squeeze=False)[0]
        stacked(axes[0], {str(k): outcome for k, outcome in outcomes.items()})
        axes[0].set_xlabel("staleness k")
        axes[0].set_title(f"{scenario.name}, {scenario.config.envs[0].id}")
        if searched:
            tried = scenario.sized.tried
            axes[1].plot(list(tried), list(tried.values()), "o-", color=BLUE)
            axes[1].axvline(scenario.sized.cores, color=GREY, linewidth=1, linestyle="--")
            axes[1].set_xscale("log", base=2)
            axes[1].set_ylim(bottom=0)
            axes[1].set_xlabel("environment cores")
            axes[1].set_ylabel("seconds of an iteration")
            axes[1].set_title(f"{scenario.sized.cores} cores are enough")


def stacked(axis: Axes, outcomes: Mapping[str, Outcome]) -> None:
    """Draws a bar of an iteration's seconds for each outcome, parted by what engines do and wait for."""
    names = list(outcomes)
    below = [0.0] * len(names)
    for cause, colour in COLOURS.items():
        heights = [outcomes[name].engines[cause] * outcomes[name].iteration for name in names]
        if max(heights) > 0:
            axis.bar(names, heights, bottom=below, color=colour, label=cause, width=0.7)
            below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.set_ylabel("seconds of an iteration")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
