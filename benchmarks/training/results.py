"""The file of results, its table and its figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.tables import markdown_table
from benchmarks.training.rows import DENSE_SHARE
from envsuite.core.errors import DataError
from envsuite.data.files import write_atomically
from envsuite.evaluation.plots import figure

KEY = ("model", "budget", "env", "memory", "turns", "group", "groups", "template", "way", "round")
"""Fields that identify a measurement."""
_CELL = KEY[:-2]
COLOURS = {
    "ours": "#0072B2", "padded": "#8C8C8C", "trl-steps": "#E69F00", "trl-episodes": "#D55E00",
    "prefix-grouper": "#009E73",
}  # fmt: skip
_OTHER = "#56B4E9"
Record = dict[str, Any]


@dataclass
class Results:
    """Measurements, one JSON object a line; the file is whole after each one."""

    path: Path
    records: list[Record]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads a file; none is as good as an empty one.

        Raises:
            DataError: A line is damaged.
        """
        records: list[Record] = []
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
            try:
                record = orjson.loads(line)
                missing = [name for name in KEY if name not in record]
            except (orjson.JSONDecodeError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not a measurement ({error}); delete the line") from error
            if missing:
                raise DataError(f"{path}, line {number}: not a measurement (no {missing[0]!r}); delete the line")
            records.append(record)
        return cls(path, records)

    def has(self, record: Mapping[str, Any]) -> bool:
        """Whether the measurement with the key of ``record`` is there."""
        return any(all(one[name] == record[name] for name in KEY) for one in self.records)

    def add(self, record: Record) -> None:
        """Adds a measurement to the file."""
        self.records.append(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, b"".join(orjson.dumps(one) + b"\n" for one in self.records))


@dataclass(frozen=True)
class Figures:
    """The medians over the rounds of one way in one cell."""

    way: str
    reason: str | None
    """Why there are none."""
    rate: float = 0.0
    """Response tokens a CPU second."""
    computed: float = 0.0
    cpu: float = 0.0
    """Seconds."""
    peak: float = 0.0
    """Bytes above the start."""


def figures(records: Sequence[Record]) -> Iterator[tuple[Record, dict[str, Figures]]]:
    """Yields each cell (a record of it, for its fields) and the figures of its ways by their names."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        cells.setdefault(tuple(record[name] for name in _CELL), []).append(record)
    for key in sorted(cells, key=lambda key: tuple((value is not None, value) for value in key)):
        ways: dict[str, list[Record]] = {}
        for record in cells[key]:
            ways.setdefault(record["way"], []).append(record)
        yield cells[key][0], {way: _figures(way, rounds) for way, rounds in ways.items()}


def _figures(way: str, rounds: Sequence[Record]) -> Figures:
    reason = next((record["reason"] for record in rounds if "reason" in record), None)
    if reason is not None:
        return Figures(way, reason)

    def middle(name: str) -> float:
        return statistics.median(record[name] for record in rounds)

    cpu, computed = middle("cpu"), middle("computed")
    return Figures(way, None, rounds[0]["completion"] / cpu, computed, cpu, middle("peak"))


def dense_cost(ways: Mapping[str, Figures], computed: float, trained: float) -> float | None:
    """CPU seconds of dense batches without padding of so many tokens, of which so many are trained on.

    ``None`` where the two dense batches were not measured.
    """
    dense, layers = ways.get("dense"), ways.get("dense-layers")
    if dense is None or layers is None:
        return None
    layer = layers.cpu / layers.computed
    output = (dense.cpu / dense.computed - layer) / DENSE_SHARE
    return layer * computed + output * trained


def table(records: Sequence[Record]) -> str:
    """The measurements as a Markdown table."""
    heads = ["model", "environment", "memory", "turns x group", "tokens of the rows", "distinct", "way", "computed"]
    heads += ["response tokens / CPU s", "`ours` is faster by", "peak MiB", "CPU / dense"]
    rows = []
    for cell, ways in figures(records):
        ours = ways.get("ours")
        start = [cell["model"], cell["env"], f"`{prompts(cell)}`", f"{cell['turns']} x {cell['group']}"]
        start += [f"{cell['rows']:,}", f"{cell['distinct']:,}"]
        for name, found in ways.items():
            if name.startswith("dense"):
                continue
            if found.reason is not None:
                rows.append([*start, name, found.reason, "", "", "", ""])
                continue
            faster = "" if ours is None or name == "ours" else f"{ours.rate / found.rate:.2f}"
            dense = dense_cost(ways, found.computed, cell["completion"])
            cost = "" if dense is None else f"{found.cpu / dense:.2f}"
            numbers = (found.computed, found.rate, found.peak / 2**20)
            computed, rate, peak = (f"{number:,.0f}" for number in numbers)
            rows.append([*start, name, computed, rate, faster, peak, cost])
    return markdown_table(heads, rows, 3)


def summary(records: Sequence[Record]) -> str:
    """Ours beside each other way, from the least to the greatest over turns and groups, as a Markdown table."""
    heads = ["environment", "memory", "budget", "cells", "computed / distinct", "CPU / dense", "way"]
    heads += ["`ours` is faster by", "its share of the memory"]
    kinds: dict[tuple[Any, ...], list[tuple[Record, dict[str, Figures]]]] = {}
    for cell, ways in figures(records):
        if "ours" in ways and ways["ours"].reason is None:
            kinds.setdefault((cell["env"], prompts(cell), cell["budget"]), []).append((cell, ways))
    rows = []
    for (env, memory, budget), found in kinds.items():
        dense = [(ways["ours"].cpu, dense_cost(ways, ways["ours"].computed, c["completion"])) for c, ways in found]
        cost = _range([cpu / whole for cpu, whole in dense if whole is not None])
        computed = _range([ways["ours"].computed / cell["distinct"] for cell, ways in found])
        for name in dict.fromkeys(way for _, ways in found for way in ways):
            both = [(ways["ours"], ways[name]) for _, ways in found if name in ways and ways[name].reason is None]
            if name == "ours" or name.startswith("dense") or not both:
                continue
            faster = _range([ours.rate / other.rate for ours, other in both])
            share = _range([ours.peak / other.peak for ours, other in both])
            rows.append([env, f"`{memory}`", f"{budget:,}", str(len(found)), computed, cost, name, faster, share])
    return markdown_table(heads, rows, 2)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else ""


def prompts(cell: Mapping[str, Any]) -> str:
    """Memory, and prompt file if there is one."""
    return f"{cell['memory']} {cell['template']}" if cell["template"] else str(cell["memory"])


def draw(records: Sequence[Record], path: Path, model: str) -> None:
    """Writes a figure: response tokens a CPU second over turns, on log axes.

    A row of panels for each environment and group size, a column for each kind of prompts.
    """
    cells = [(cell, ways) for cell, ways in figures(records) if cell["model"] == model]
    names = dict.fromkeys(prompts(cell) for cell, _ in cells)
    rows = sorted({(cell["env"], cell["group"]) for cell, _ in cells})
    shown: dict[str, Any] = {}
    with figure(path, max(4.8, 3.4 * len(names)), 2.8 * len(rows) + 0.4) as drawn:
        panels = drawn.subplots(len(rows), len(names), squeeze=False, sharex=True, sharey=True)
        for (env, group), line in zip(rows, panels, strict=True):
            for name, axis in zip(names, line, strict=True):
                wanted = (env, group, name)
                inside = [pair for pair in cells if (pair[0]["env"], pair[0]["group"], prompts(pair[0])) == wanted]
                shown |= _panel(inside, axis)
                axis.set_title(f"{env}, {name}\ngroup of {group}")
            line[0].set_ylabel("response tokens / CPU s")
        for axis in panels[-1]:
            axis.set_xlabel("turns")
        drawn.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, frameon=False)


def _panel(cells: Sequence[tuple[Record, dict[str, Figures]]], axis: Axes) -> dict[str, Any]:
    """Draws the lines of one panel; returns them by the names of the ways."""
    lines: dict[str, Any] = {}
    for name in dict.fromkeys(way for _, ways in cells for way in ways if not way.startswith("dense")):
        points = [(cell["turns"], ways[name].rate) for cell, ways in cells if name in ways and not ways[name].reason]
        if points:
            colour = COLOURS.get(name, _OTHER)
            (lines[name],) = axis.plot(*zip(*points, strict=True), "o-", markersize=4, color=colour)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    return lines
