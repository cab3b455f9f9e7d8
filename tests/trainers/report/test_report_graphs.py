"""Graphs of the states that groups met: their numbers, their layout, the page and the files."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import make_run

from envsuite.core import ToolCall
from envsuite.playing.step import Episode
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.graph import StateGraph
from trainers.programs.report import main
from trainers.report.graphs import GraphEdge, GraphNode, GraphPicture, _layers, _places, draw, pack_pictures, pictures
from trainers.report.html import write_html
from trainers.report.pack import pack
from trainers.report.run import RunData
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes, write_episodes

HOSTILE = "</script><script>alert(1)</script>&$x^2$\x00‮"


def files(folder: Path) -> list[Path]:
    return [path for _, path in RunData.load(folder).episode_files()]


def sound(path: Path) -> list[Episode]:
    return [one for one in read_episodes(path) if one.error is None and one.steps]


def test_nodes_and_edges_are_those_of_the_state_graph_and_means_those_of_the_estimator(run_folder):
    for path in files(run_folder):
        steps = StepTable.from_episodes(sound(path))
        graph, values = StateGraph.of(steps, "success"), GiGPO()(steps).per_step
        assert values is not None
        rows = {key: i for i, key in enumerate(zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True))}
        by_key = {key: float(values[row]) for key, row in rows.items()}
        found = pictures(path)
        assert [one.group for one in found] == list(dict.fromkeys(steps.group_id.tolist()))
        assert sorted(key for one in found for edge in one.edges for key in edge.steps) == sorted(rows)
        for picture in found:
            assert sum(node.ended for node in picture.nodes) == len(
                {episode for edge in picture.edges for episode, _ in edge.steps}
            )
            for edge in picture.edges:
                at = [rows[key] for key in edge.steps]
                (pair,) = {(graph.node[row], graph.following[row]) for row in at}
                same = (graph.node == pair[0]) & (graph.following == pair[1])
                assert len(at) == same.sum()
                source, target = picture.nodes[edge.source], picture.nodes[edge.target]
                assert source.visits == graph.visits[pair[0]] and target.visits == graph.visits[pair[1]]
                assert (target.kind == "goal") == (pair[1] in graph.goal)
                assert picture.mean(edge, by_key) == pytest.approx(values[same].mean())
                assert source.seen is not None and graph.node[rows[source.seen]] == pair[0]
                assert target.layer <= source.layer + 1
            assert picture.mean(picture.edges[0], {}) is None


@given(count=st.integers(1, 25), links=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=60))
def test_layers_are_distances_and_no_two_nodes_of_one_are_on_each_other(count, links):
    edges = [(a % count, b % count) for a, b in links]
    edges += [(i, i + 1) for i in range(count - 1)]  # all are reached from the first
    layers = _layers(count, edges, [0])
    assert layers[0] == 0
    for node in range(1, count):
        assert layers[node] == 1 + min(layers[a] for a, b in edges if b == node and a != node)
    places = _places(layers, edges)
    assert min(places) == 0.0 and places == _places(layers, edges)
    for layer in set(layers):
        row = sorted(x for x, own in zip(places, layers, strict=True) if own == layer)
        assert all(b - a >= 1 - 1e-9 for a, b in pairwise(row))


def test_a_chain_is_drawn_straight_and_a_fork_on_both_sides():
    edges = [(0, 1), (1, 2), (2, 3), (2, 4)]
    places = _places(_layers(5, edges, [0]), edges)
    assert places[0] == places[1] == places[2] == pytest.approx((places[3] + places[4]) / 2)


def test_what_the_page_gets_are_places_of_episodes_and_steps(run_folder):
    path = files(run_folder)[0]
    packed, found = pack(path), pictures(path)
    body = json.loads(zlib.decompress(base64.b64decode(pack_pictures(packed, found))))
    assert list(body) == [str(one.group) for one in found]
    for picture in found:
        edges = body[str(picture.group)]["edges"]
        for (source, target, places), edge in zip(edges, picture.edges, strict=True):
            keys = tuple((packed.steps[e][0], packed.steps[e][1][t]) for e, t in places)
            assert (source, target, keys) == (edge.source, edge.target, edge.steps)


def test_hostile_texts_stay_texts(tmp_path):
    run = RunData.load(make_run(tmp_path / "run", iterations=1, groups=1, size=4, steps=4))
    (path,) = files(run.folder)
    seen = {"observation": HOSTILE, "action": (ToolCall("go", {"to": HOSTILE}),)}
    episodes = [
        replace(one, task=HOSTILE, error=None, steps=tuple(
            replace(step, **seen, state_key=f"{HOSTILE}{step.t % 2}") for step in one.steps
        )) for one in read_episodes(path)
    ]  # fmt: skip
    write_episodes(path, episodes)
    page = write_html(run, []).read_text(encoding="utf-8")
    assert "alert(1)" not in page and 'id="graphs-0"' in page
    out = tmp_path / "g.svg"
    assert main([str(run.folder), "--graph", "0", "--out", str(out)]) == 0
    root = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert not [element for element in root.iter() if element.tag.endswith("script")]


@pytest.mark.seconds
def test_the_command_draws_a_group_under_a_method(run_folder, tmp_path, capsys):
    for name in ("g.png", "g.svg", "g.pdf"):
        assert main([str(run_folder), "--graph", "1", "--advantages", "grpo", "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert main([str(run_folder), "--graph", "1", "--out", str(tmp_path / "own.png")]) == 0
    capsys.readouterr()
    assert main([str(run_folder), "--graph", "77", "--out", str(tmp_path / "g.png")]) == 2
    assert "no training episode of the group 77" in capsys.readouterr().err
    assert main([str(run_folder), "--graph", "1"]) == 2
    assert "--out group.png" in capsys.readouterr().err
    assert main([str(run_folder), "--graph", "1", "--out", str(tmp_path / "g.exe")]) == 2


def test_a_graph_without_advantages_is_drawn_with_the_reason(tmp_path, capsys):
    folder = make_run(tmp_path / "run", iterations=1, groups=2, size=4, steps=4, advantages=False)
    assert main([str(folder), "--graph", "1", "--advantages", "ppo", "--out", str(tmp_path / "g.png")]) == 0
    assert "drawn without advantages: ppo needs the" in " ".join(capsys.readouterr().err.split())


def test_drawing_takes_any_numbers(tmp_path):
    nodes = (GraphNode(0.0, 0, 2, 0, "start", (0, 0)), GraphNode(0.0, 1, 0, 1, "end", None))
    picture = GraphPicture(0, nodes, (GraphEdge(0, 0, ((0, 0),)), GraphEdge(0, 1, ((0, 1),))))
    for values in ({}, {(0, 0): 0.0}, {(0, 0): -1e9, (0, 1): 1e-9}):
        draw(tmp_path / "g.png", picture, values, {(0, 0): "", (0, 1): "$"}, "$title")
    assert (tmp_path / "g.png").stat().st_size > 1000


def test_an_episode_that_failed_is_in_no_graph(tmp_path):
    folder = make_run(tmp_path / "run", iterations=1, groups=1, size=4, steps=4)
    (path,) = files(folder)
    episodes = [replace(one, error="lost" if i == 2 else None) for i, one in enumerate(read_episodes(path))]
    write_episodes(path, episodes)
    (picture,) = pictures(path)
    assert {key[0] for edge in picture.edges for key in edge.steps} == {0, 1, 3}
