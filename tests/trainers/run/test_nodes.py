"""Two nodes on this machine: their gradients, what they refuse at the start, and a link that is cut."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes import Nodes, missing
from ranks import on_ranks
from safetensors.torch import load_file
from sharding_cases import CASES, computed
from tiny_runs import ROOT, save_model, weights, write_settings
from waiting import until

from trainers.report.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason := missing()), reason=reason)]

TRAIN = (sys.executable, "-m", "envsuite.cli", "train")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes that share a folder with a model in it."""
    save_model(tmp_path / "shared" / "model")
    with Nodes(2, tmp_path / "shared") as made:
        yield made


def started(nodes: Nodes, folder: Path, *words: str, only: int | None = None) -> list[subprocess.Popen[str]]:
    """``envsuite train``, typed on each node, or on one."""
    where = ("--nodes", str(len(nodes)), "--rendezvous", nodes[0].name, "--job", "4711")
    return [
        node.start([*TRAIN, *where, "--node", str(number), *words], folder / f"{number}.log")
        for number, node in enumerate(nodes)
        if only in (None, number)
    ]


def said(folder: Path) -> list[str]:
    """What each node's launcher and processes have said."""
    return [(folder / f"{number}.log").read_text() for number in range(2)]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_gradients_and_weights_of_two_nodes_are_those_of_one_process(processes, nodes, tmp_path):
    cases = ["float64", "float64, a copy in each process", "float32", *["float64, hybrid"] * (processes == 2)]
    nodes[1].throttle("50mbit")
    launched = [
        node.start(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(processes)),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes[0].address}:29400"),
                *("--rdzv-conf", f"is_host={number == 0}", "--local-addr", node.address),
                *(str(ROOT / "tests/support/nodes_gradient.py"),),
                *(str(nodes[0].shared / "found.safetensors"), *cases),
            ],
            tmp_path / f"{number}.log",
            ACCELERATE_USE_CPU="true",
        )
        for number, node in enumerate(nodes)
    ]
    assert [each.wait(600) for each in launched] == [0, 0], said(tmp_path)
    found = load_file(nodes[0].shared / "found.safetensors")
    ones = {case: on_ranks(computed, 1, CASES[case])[0] for case in ("float64", "float32")}
    for case in cases:
        alone = ones[case.partition(",")[0]]
        for name, expected in (("gradient", alone.gradient), ("weights", alone.weights)):
            if case == "float32" and name == "weights":  # AdamW divides by gradients that are rounding alone
                continue
            gap = (found[f"{case}: {name}"] - expected).abs().max().item()
            assert gap < 1e-6, (case, name, gap)


def test_an_output_that_one_node_alone_sees_is_refused_at_the_start(nodes, tmp_path):
    file = write_settings(nodes[0].shared, output="/tmp/runs")
    launched = started(nodes, tmp_path, "--config", str(file))
    assert sorted(each.wait(600) for each in launched) == [1, 2], said(tmp_path)
    lines = [line for text in said(tmp_path) for line in text.splitlines() if "error: " in line]
    assert len(lines) == 1 and "output is /tmp/runs, where node" in lines[0], said(tmp_path)
    assert "set it to a folder that all machines of the run share" in lines[0]
    assert "Traceback" not in "".join(said(tmp_path))


def iterations(nodes: Nodes) -> int:
    """Lines of the metrics file."""
    file = nodes[0].shared / "runs" / "tiny" / "metrics.jsonl"
    return sum('"train/loss"' in line for line in file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("process_timeout, restarts", [(30.0, 0), (0.25, 1)], ids=["waited for", "started again"])
def test_a_link_that_is_cut_for_half_a_minute_ends_no_run(process_timeout, restarts, nodes, tmp_path):
    settings: dict[str, Any] = {"iterations": 12, "evaluation.every": 0, "checkpoint_every": 2}
    settings |= {"process_timeout": process_timeout, "model.shard": "full" if restarts else "none"}
    file = write_settings(nodes[0].shared, **settings)
    launched = started(nodes, tmp_path, "--config", str(file), "--max-restarts", "5")
    until(lambda: iterations(nodes) >= 3 or any(each.poll() is not None for each in launched), 600)
    nodes[1].cut()
    time.sleep(2.0)
    before = iterations(nodes)
    time.sleep(28.0)
    assert before - 2 <= iterations(nodes) <= before, "nothing is learnt by one node alone"
    nodes[1].mend()
    assert [each.wait(600) for each in launched] == [0, 0], said(tmp_path)
    assert iterations(nodes) == 12
    events = read_events(nodes[0].shared / "runs" / "tiny")
    assert sum(event.kind == "restart" for event in events) == restarts, said(tmp_path)


def test_a_node_that_is_killed_and_comes_back_costs_no_run_and_changes_nothing(nodes, tmp_path):
    ends = []
    for name in ("undisturbed", "killed"):
        settings: dict[str, Any] = {"name": name, "iterations": 12, "evaluation.every": 0, "checkpoint_every": 2}
        words = ("--config", str(write_settings(nodes[0].shared, **settings)), "--max-restarts", "9")
        launched, run = started(nodes, tmp_path, *words), nodes[0].shared / "runs" / name
        if name == "killed":
            until(lambda run=run: (run / "checkpoints" / "iteration-00004").exists(), 600)  # type: ignore[misc]
            nodes[1].power_off()
            time.sleep(5.0)
            nodes[1].boot()
            launched[1] = started(nodes, tmp_path, *words, "--resume", only=1)[0]
        assert [each.wait(600) for each in launched] == [0, 0], said(tmp_path)
        end = run / "checkpoints" / "iteration-00012"
        ends.append({key: tensor for file in weights(end) for key, tensor in load_file(end / file).items()})
    one, two = ends
    assert one.keys() == two.keys() and all(tensor.equal(two[key]) for key, tensor in one.items())
