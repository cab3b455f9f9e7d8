"""Environments in actors of Ray, on two nodes of one machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import ROUGH, do, one, reset_all, step_all
from safetensors.torch import load_file

from envsuite.core import ToolCall, UsageError
from envsuite.vector import ActorVector, EnvFactory, Vector, VectorEvent, make_vector
from trainers.report.metrics import read_metrics

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'envsuite[ray]'")
pytestmark = pytest.mark.slow
COMMANDS = ["inventory", "get 2 oak logs", "nonsense", "get 1 bamboo", "\x00"]


def patiently(start: Callable[[], object]) -> None:
    """Starts a node of Ray, which gives its processes 30 s: a busy machine takes several tries."""
    for left in (2, 1, 0):
        try:
            start()
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two processors each; the worlds of the tests can be imported there."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        running = Cluster()
        try:
            patiently(lambda: running.add_node(num_cpus=2, include_dashboard=False))
            patiently(lambda: running.add_node(num_cpus=2, resources={"worlds": 2}))
            patch.setenv("RAY_ADDRESS", running.address)
            yield running
        finally:
            ray.shutdown()
            running.shutdown()


def played(vector: Vector) -> list[list[VectorEvent]]:
    """Every event of two episodes in each slot."""
    history = []
    for seed in range(2):
        history.append(reset_all(vector, seed=seed))
        for command in COMMANDS:
            history.append(step_all(vector, (ToolCall("env_step", {"command": command}),)))
    return [[events[slot] for slot in range(vector.slots)] for events in history]


def process_of(vector: Vector, worker: int) -> tuple[int, str]:
    """Process and node of an actor."""
    process = vector._workers[worker].child  # type: ignore[attr-defined]
    where = process._actor.__ray_call__.remote(lambda _: (os.getpid(), ray.get_runtime_context().get_node_id()))
    return ray.get(where)  # type: ignore[no-any-return]


def test_episodes_in_actors_are_those_of_workers_here_and_the_actors_are_spread(cluster):
    craft = [EnvFactory("TextCraft-v0", {"max_episode_steps": 5})]
    with make_vector(craft, 5, 2) as vector:
        expected = played(vector)
    before = signal.getsignal(signal.SIGTERM)
    with make_vector(craft, 5, 2, ray={}) as vector:
        assert signal.getsignal(signal.SIGTERM) is before
        assert isinstance(vector, ActorVector)
        assert played(vector) == expected
        assert len({process_of(vector, worker)[1] for worker in range(2)}) == 2
        assert len(vector.tools(0)) == 1 and vector.max_calls(0) == 1


def test_an_actor_that_is_killed_costs_its_own_episodes_and_another_takes_its_place(cluster):
    with make_vector([ROUGH], 4, 2, ray={}) as vector:
        reset_all(vector, task_id="a")
        pid, _ = process_of(vector, 0)
        os.kill(pid, signal.SIGKILL)
        events = step_all(vector, do("go"))
        assert [events[slot].error for slot in (1, 3)] == [None, None]
        assert all("worker 0 is lost (ActorDiedError" in str(events[slot].error) for slot in (0, 2))
        assert one(vector, 0, lambda: vector.reset(0, 0, task_id="b")).error is None
        assert process_of(vector, 0)[0] != pid
        assert one(vector, 2, lambda: vector.reset(2, 0, task_id="b")).error is None


def test_a_call_that_hangs_ends_its_actor_at_the_deadline(cluster):
    with make_vector([ROUGH], 2, 2, deadline=60.0, ray={}) as vector:
        reset_all(vector, task_id="a")
        vector.deadline = 2.0  # type: ignore[attr-defined]
        event = one(vector, 0, lambda: vector.step(0, do("sleep 60")))
        assert str(event.error).startswith("DeadlineExceeded: ")
        vector.deadline = 60.0  # type: ignore[attr-defined]
        assert one(vector, 0, lambda: vector.reset(0, 0, task_id="a")).error is None
        assert one(vector, 1, lambda: vector.step(1, do("go"))).error is None


def test_actors_run_where_their_resources_are(cluster):
    (node,) = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("worlds")]
    options = {"num_cpus": 0.5, "resources": {"worlds": 1}}
    with make_vector([EnvFactory("TextCraft-v0")], 2, 2, ray=options) as vector:
        reset_all(vector, seed=0)
        assert {process_of(vector, worker)[1] for worker in range(2)} == {node}


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        (EnvFactory("TextCraft-v0", {"split": "tst"}), {}, "cannot be made: UnknownTask"),
        (EnvFactory("TextCraft-v0"), {"cpus": 1}, "options of Ray's actors"),
    ],
    ids=["environment", "option"],
)
def test_what_cannot_work_is_said(cluster, factory, options, said):
    with pytest.raises(UsageError, match=said):
        make_vector([factory], 2, 1, ray=options)


def test_a_run_with_actors_is_the_run_with_workers_but_for_rounding(cluster, tmp_path):
    """What is computed together depends on when environments answer, with workers too."""
    from tiny_runs import save_model, train, write_settings

    save_model(tmp_path / "model")
    runs = []
    for place, ray in (("process", None), ("ray", {})):
        config = write_settings(tmp_path, name=place, **{"rollout.workers": 2, "rollout.ray": ray, "iterations": 1})
        run = train("--config", str(config), timeout=1200)
        assert run.returncode == 0, run.stderr
        runs.append(tmp_path / "runs" / place)
    check_same(*runs)


def check_same(one: Path, other: Path) -> None:
    """Fails unless two runs have the same metrics of episodes and updates, and the same weights, up to rounding."""
    lines = [read_metrics(run / "metrics.jsonl") for run in (one, other)]
    assert len(lines[0]) == len(lines[1]) > 1
    for mine, theirs in zip(*lines, strict=True):
        names = {name for name in mine if name.startswith(("train/", "invalid/", "eval/"))} - {"train/logprob_gap"}
        assert {name: mine[name] for name in names} == pytest.approx({name: theirs[name] for name in names}, rel=1e-4)
    models = [load_file(max((run / "checkpoints").glob("iteration-*")) / "model.safetensors") for run in (one, other)]
    assert all(torch.allclose(tensor, models[1][name], atol=1e-4) for name, tensor in models[0].items())
