"""The figure of ``envsuite eval compare``: success with intervals, and what it costs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsuite.core.errors import UsageError, require_extra
from envsuite.data.files import write_file
from envsuite.evaluation.tables import TableRow
from envsuite.evaluation.writers import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinguishable with every common kind of colour blindness."""
MARKERS = "osD^vPX"
"""A second distinction of policies besides colour."""
SUFFIXES = (".png", ".pdf", ".svg")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "text.parse_math": False,  # names may hold dollar signs
}
_PERCENT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0), ("0 %", "25 %", "50 %", "75 %", "100 %")
_LONGEST = 40
"""Most characters of a name."""


def draw_comparison(rows: Sequence[TableRow], path: Path) -> None:
    """Draws, for each split, success with 95 % intervals, and success against tokens (or seconds) of an episode.

    A policy has the same colour and marker in every panel; the left one of each split names it.

    Args:
        rows: Those of all tasks, one for each policy and split, with finished episodes.
        path: The file; its suffix, one of :data:`SUFFIXES`, determines the format.

    Raises:
        MissingExtra: matplotlib is not installed.
        UsageError: The file has another suffix.
        DataError: The file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: the name of a plot ends with {', '.join(SUFFIXES)}")
    splits = list(dict.fromkeys((row.env_id, row.split) for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    most = max(sum((row.env_id, row.split) == split for row in rows) for split in splits)
    with figure(path, 9.5, len(splits) * (1.5 + 0.32 * max(most, 3)), size=9) as chart:
        for split, (success_axes, cost_axes) in zip(splits, chart.subplots(len(splits), 2, squeeze=False), strict=True):
            own = [row for row in rows if (row.env_id, row.split) == split]
            _draw_success(success_axes, own, policies, f"{split[0]}, {split[1]}")
            _draw_cost(cost_axes, own, policies)


@contextmanager
def figure(path: Path, width: float, height: float, size: float = 10) -> Iterator[Figure]:
    """Yields a figure that is written to ``path`` at the end of the block.

    Args:
        path: A file whose name ends in one of :data:`SUFFIXES`.
        width: Inches.
        height: Inches.
        size: Size of the text in points.

    Raises:
        DataError: The file cannot be written.
        MissingExtra: matplotlib is not installed.
    """
    with require_extra("plots need matplotlib", "plots"):
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    with mpl.rc_context({**_STYLE, "font.size": size, "axes.titlesize": size + 1}), warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        chart = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(chart)
        yield chart
        content = BytesIO()
        chart.savefig(content, format=path.suffix[1:].lower(), facecolor="white", dpi=160)
    write_file(path, content.getvalue())


def _shorten_name(name: str) -> str:
    text = visible(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _style(policy: str, policies: Sequence[str]) -> dict[str, Any]:
    index = policies.index(policy)
    # The marker goes on where the colours begin again, so that no two policies look alike before the 49th.
    marker = MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]
    return {"color": COLOURS[index % len(COLOURS)], "marker": marker, "linestyle": "none", "markersize": 6}


def _bounds(row: TableRow) -> tuple[float, float, float]:
    assert row.success is not None and row.success_low is not None and row.success_high is not None
    return row.success, row.success - row.success_low, row.success_high - row.success


def _draw_success(axes: Axes, rows: Sequence[TableRow], policies: Sequence[str], title: str) -> None:
    for place, row in enumerate(rows):
        rate, below, above = _bounds(row)
        axes.errorbar(rate, place, xerr=[[below], [above]], capsize=3, **_style(row.policy, policies))
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": "#333333"}
        axes.annotate(f"{100 * rate:.1f}", (rate, place), (0, 6), **style)
    note = "" if all(row.complete for row in rows) else "; † incomplete"
    axes.set_yticks(range(len(rows)), [_shorten_name(row.policy) + ("" if row.complete else " †") for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.grid(axis="y", visible=False)
    axes.set(xlim=(-0.05, 1.05), xlabel=f"success, 95 % interval{note}", title=title)
    axes.set_xticks(*_PERCENT_TICKS)


def _draw_cost(axes: Axes, rows: Sequence[TableRow], policies: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    tokens = all(row.prompt_tokens for row in rows)
    values = [(row.prompt_tokens or 0) + (row.answer_tokens or 0) if tokens else row.seconds or 0 for row in rows]
    for row, value in zip(rows, values, strict=True):
        rate, below, above = _bounds(row)
        axes.errorbar(value, rate, yerr=[[below], [above]], capsize=3, **_style(row.policy, policies))
    if min(values) > 0 and max(values) / min(values) > 5:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(min(values) / 1.5, max(values) * 1.5)
    else:
        axes.set_xlim(0, 1.1 * max(values) or 1.0)
    axes.set(ylim=(-0.05, 1.05), xlabel=f"{'tokens' if tokens else 'seconds'} of an episode, mean", ylabel="success")
    axes.set_yticks(*_PERCENT_TICKS)
