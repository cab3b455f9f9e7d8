"""The states that the episodes of a group met, as a picture: nodes in layers, and the steps between them."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.patches import FancyArrowPatch

from envsuite.evaluation.plots import figure
from trainers.credit.graph import StateGraph
from trainers.report.pack import PackedEpisodes, compress
from trainers.report.plots import BLUE, GREEN, GREY, ORANGE
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import NEXT_STATE, SUCCESS
from trainers.steps.parquet import StepKey, read_table

SWEEPS = 6
"""Times that the layers are ordered anew by their neighbours, downwards and upwards in turn."""

ACROSS, DOWN, BOW = 1.1, 0.85, 0.3
"""Inches of a place and of a layer in a file; how far edges that lead back bow out, as a share of their length."""
LABEL = 22
"""Most characters of an action in a picture."""

Kind = Literal["start", "state", "end", "goal"]


@dataclass(frozen=True)
class GraphNode:
    """A state of a group."""

    x: float
    """Place in its layer; neighbours are 1 apart or more."""
    layer: int
    """Fewest steps from a state in which an episode began."""
    visits: int
    """Steps that answer it; 0 where episodes only ended."""
    ended: int
    """Episodes that ended there."""
    kind: Kind
    """``start``: an episode began there; ``goal``: where successful episodes lead; ``end``: nobody answered it."""
    seen: StepKey | None
    """A step that answers it, the first one; ``None`` where there is none."""


@dataclass(frozen=True)
class GraphEdge:
    """The steps from one state to another, or to the same."""

    source: int
    target: int
    steps: tuple[StepKey, ...]


@dataclass(frozen=True)
class GraphPicture:
    """The graph of a group (:class:`~trainers.credit.graph.StateGraph`) with a place for each node."""

    group: int
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def mean(self, edge: GraphEdge, values: Mapping[StepKey, float]) -> float | None:
        """Returns the mean of the values of an edge's steps; ``None`` where it has none."""
        step_values = [values[key] for key in edge.steps if key in values]
        return sum(step_values) / len(step_values) if step_values else None


def pictures(path: Path) -> list[GraphPicture]:
    """Returns the graph of each group of a file of episodes, in their order; failed and greedy episodes are left out.

    Raises:
        DataError: The file is damaged.
    """
    steps = _steps(path)
    graph = StateGraph.of(steps, "success")
    keys: list[StepKey] = list(zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True))
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(steps.group_id.tolist()):
        rows.setdefault(group, []).append(row)
    return [_picture(group, own, graph, keys) for group, own in rows.items()]


def pack_pictures(packed: PackedEpisodes, graphs: Sequence[GraphPicture]) -> str:
    """Compresses graphs for the page, by group: steps as [place of the episode, place of the step] among ``packed``."""
    places = {(number, t): [place, at] for place, (number, ts) in enumerate(packed.steps) for at, t in enumerate(ts)}
    body: dict[str, Any] = {
        str(picture.group): {
            "nodes": [
                [round(n.x, 2), n.layer, n.visits, n.ended, n.kind, None if n.seen is None else places[n.seen]]
                for n in picture.nodes
            ],
            "edges": [[e.source, e.target, [places[key] for key in e.steps]] for e in picture.edges],
        }
        for picture in graphs
    }
    return compress(body)


def _steps(path: Path) -> StepTable:
    """The steps of a file's sound, sampled episodes, with what a graph needs, by episode and t."""
    names = ["episode_id", "group_id", "t", "state_key", "info", "success", "error", "greedy"]
    rows = [row for row in read_table(path, names).to_pylist() if row["t"] >= 0]
    rows = [row for row in rows if row["error"] is None and not row["greedy"]]
    rows.sort(key=lambda row: (row["episode_id"], row["t"]))
    empty = Ragged(np.zeros(0, np.int64), np.zeros(len(rows) + 1, np.int64))
    return StepTable(
        group_id=np.array([row["group_id"] for row in rows], np.int64),
        episode_id=np.array([row["episode_id"] for row in rows], np.int64),
        t=np.array([row["t"] for row in rows], np.int64),
        reward=np.zeros(len(rows)),
        state_key=np.array([*(row["state_key"] for row in rows), None], object)[:-1],
        valid=np.ones(len(rows), np.bool_),
        prompt=empty,
        response=empty,
        logprob=empty,
        extra={
            SUCCESS: np.array([row["success"] for row in rows], np.bool_),
            NEXT_STATE: np.array([*(json.loads(row["info"]).get("state_key", "") for row in rows), None], object)[:-1],
        },
    )


def _picture(group: int, rows: Sequence[int], graph: StateGraph, keys: Sequence[StepKey]) -> GraphPicture:
    number: dict[int, int] = {}
    first_steps: dict[int, StepKey] = {}
    visits, ends = Counter[int](), Counter[int]()
    between: dict[tuple[int, int], list[StepKey]] = {}
    starts: dict[int, None] = {}
    last_episode = None
    for row in rows:
        source, target = (int(column[row]) for column in (graph.node, graph.following))
        here, there = (number.setdefault(node, len(number)) for node in (source, target))
        first_steps.setdefault(here, keys[row])
        visits[here] += 1
        between.setdefault((here, there), []).append(keys[row])
        if keys[row][0] != last_episode:
            starts.setdefault(here)
            last_episode = keys[row][0]
        ends[there] += bool(graph.last[row])
    goals = {number[node] for node in graph.goal.tolist() if node in number}
    layers = _layers(len(number), list(between), list(starts))
    nodes = []
    for node, (layer, place) in enumerate(zip(layers, _places(layers, list(between)), strict=True)):
        kind: Kind = "goal" if node in goals else "start" if node in starts else "state" if visits[node] else "end"
        nodes.append(GraphNode(place, layer, visits[node], ends[node], kind, first_steps.get(node)))
    edges = tuple(GraphEdge(source, target, tuple(steps)) for (source, target), steps in between.items())
    return GraphPicture(group, tuple(nodes), edges)


def _layers(count: int, edges: Sequence[tuple[int, int]], starts: Sequence[int]) -> list[int]:
    """Returns the fewest edges from a start to each node."""
    after: dict[int, list[int]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
    layer = dict.fromkeys(starts, 0)
    queue = deque(starts)
    while queue:
        here = queue.popleft()
        for there in after.get(here, ()):
            if there not in layer:
                layer[there] = layer[here] + 1
                queue.append(there)
    return [layer[node] for node in range(count)]


def _places(layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[float]:
    """Returns a place in its layer for each node, near those of its neighbours in the layers beside."""
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    beside: dict[int, list[int]] = {node: [] for node in range(len(layers))}
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    for source, target in edges:
        if abs(layers[source] - layers[target]) == 1:
            beside[source].append(target)
            beside[target].append(source)
    place = {node: at - (len(row) - 1) / 2 for row in rows for at, node in enumerate(row)}
    for sweep in range(SWEEPS):
        step = 1 if sweep % 2 == 0 else -1
        for row in rows[::step]:
            centres = {}
            for node in row:
                near = [place[neighbour] for neighbour in beside[node] if layers[neighbour] == layers[node] - step]
                centres[node] = sum(near) / len(near) if near else place[node]
            place.update(_spread(sorted(row, key=lambda node: (centres[node], place[node])), centres))
    leftmost = min(place.values(), default=0.0)
    return [place[node] - leftmost for node in range(len(layers))]


def _spread(row: Sequence[int], centres: Mapping[int, float]) -> dict[int, float]:
    """Places nodes 1 apart or more, in their order, as near to where they want to be as their neighbours let them."""
    blocks: list[list[float]] = []  # sum of what members want of the first one's place, their number, that place
    for node in row:
        blocks.append([centres[node], 1.0, centres[node]])
        while len(blocks) > 1 and blocks[-2][2] + blocks[-2][1] > blocks[-1][2]:
            total, size, _ = blocks.pop()
            before = blocks[-1]
            before[0] += total - before[1] * size
            before[1] += size
            before[2] = before[0] / before[1]
    places = [start + at for _, size, start in blocks for at in range(int(size))]
    return dict(zip(row, places, strict=True))


def draw(
    path: Path, picture: GraphPicture, values: Mapping[StepKey, float], actions: Mapping[StepKey, str], title: str
) -> None:
    """Draws a graph to a PNG, SVG or PDF file: edges by the mean of their steps' values, states by their visits.

    Args:
        path: The file; its suffix is the format.
        picture: The graph.
        values: Advantage of each step.
        actions: Action of each step.
        title: Above the picture.
    """
    at = [(1.3 * node.x, -node.layer) for node in picture.nodes]
    wide, deep = max(x for x, _ in at), max(node.layer for node in picture.nodes)
    means = [picture.mean(edge, values) for edge in picture.edges]
    top = max((abs(mean) for mean in means if mean is not None), default=0.0) or 1.0
    busiest, most = max(len(e.steps) for e in picture.edges), max(n.visits for n in picture.nodes)
    with figure(path, ACROSS * (wide + 1.8), DOWN * (deep + 0.9) + 0.3, size=6) as chart:
        axis = chart.subplots()
        axis.set_axis_off()
        axis.set_title(title)
        axis.set_xlim(-0.9, wide + 0.9)
        axis.set_ylim(-deep - 0.5, 0.4)
        for edge, mean in zip(picture.edges, means, strict=True):
            colour = GREY if not mean else BLUE if mean > 0 else ORANGE
            (x0, y0), (x1, y1) = at[edge.source], at[edge.target]
            forward, loops = y1 < y0, edge.source == edge.target
            style: dict[str, Any] = {
                "color": colour, "alpha": 0.4 + 0.6 * abs(mean or 0.0) / top, "shrinkA": 6, "shrinkB": 6, "zorder": 1,
                "linewidth": 0.6 + 2.4 * len(edge.steps) / busiest, "arrowstyle": "-|>", "mutation_scale": 7,
            }  # fmt: skip
            if loops:
                start, end, bend = (x0 + 0.06, y0 + 0.1), (x0 + 0.06, y0 - 0.1), "arc3,rad=-1.6"
            else:
                start, end, bend = (x0, y0), (x1, y1), "arc3" if forward else f"arc3,rad={BOW}"
            axis.add_patch(FancyArrowPatch(start, end, connectionstyle=bend, **style))
            words = Counter(actions[key] for key in edge.steps).most_common()
            text = words[0][0] if len(words[0][0]) <= LABEL else words[0][0][: LABEL - 1] + "…"
            more = f" +{len(words) - 1}" if len(words) > 1 else ""
            count = f"×{len(edge.steps)}{more} " if len(edge.steps) > 1 else ""  # noqa: RUF001
            number = f"{count}{'' if mean is None else f'{mean:+.2f}'}"
            place = (x0 + 0.68 * (x1 - x0), y0 + 0.68 * (y1 - y0))
            if loops:
                place = (x0 + 0.3, y0)
            elif not forward:  # the middle of the bow, which is round on paper
                flat = ACROSS / DOWN
                place = ((x0 + x1) / 2 + BOW / 2 * (y1 - y0) / flat, (y0 + y1) / 2 - BOW / 2 * (x1 - x0) * flat)
            axis.text(
                *place, f"{text}\n{number}" if forward or loops else number, color=colour if mean else "#333333",
                ha="left" if loops else "center", va="center", fontsize=5, zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
            )  # fmt: skip
        for node, (x, y) in zip(picture.nodes, at, strict=True):
            goal, only_end = node.kind == "goal", node.kind == "end"
            axis.scatter(
                [x], [y], s=90 if goal else 40 if only_end else 50 + 150 * node.visits / most, zorder=3,
                marker="s" if only_end else "o", color=GREEN if goal else GREY if only_end else "white",
                edgecolor=GREEN if goal else "#333333", linewidth=2.0 if node.kind == "start" else 0.8,
            )  # fmt: skip
            axis.text(x, y, "✓" if goal else "" if only_end else str(node.visits), ha="center", va="center", zorder=5)
            if node.ended and not goal:
                axis.text(x - 0.15, y, f"{node.ended} ended", ha="right", va="center", fontsize=5, zorder=5)
