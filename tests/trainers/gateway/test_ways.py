"""Each way to bring an agent, through a whole run."""

import os
import subprocess
import sys
import threading

import pytest
from bringing import WAYS, agent_settings, serve_sessions
from third_party import files_of
from tiny_runs import ROOT, save_model, trained

from envsuite.remote.protocol import TOKEN_VARIABLE
from trainers.gateway.agents import FunctionAgent
from trainers.report.metrics import read_metrics
from trainers.settings import ConfigError
from trainers.steps.parquet import read_episodes

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'envsuite[gateway]'")


@pytest.mark.seconds
@pytest.mark.parametrize("environment", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_bring_an_agent_trains_and_is_evaluated(way, environment, tmp_path, monkeypatch):
    save_model(tmp_path / "model")
    monkeypatch.setenv(TOKEN_VARIABLE, "secret-of-the-operator")
    agent = agent_settings(way, tmp_path, tool="craft", environment=environment)
    over = threading.Event()
    address = f"http://{agent.get('listen')}"
    service = threading.Thread(target=serve_sessions, args=(address, "secret-of-the-operator", over))
    if way == "service":
        service.start()
    changes = {"iterations": 1, "evaluation.every": 1, "evaluation.episodes": 2, "episodes_every": 1}
    try:
        records = trained(tmp_path, **changes, **{"rollout.agent": agent, "recipe": "grpo"})
    finally:
        over.set()
    evaluated = [record for record in records if "eval/success" in record]
    assert [record["eval/episodes"] for record in evaluated] == [2, 2]
    assert all(record["eval/failed"] == 0 for record in evaluated)
    types = {name for record in evaluated for name in record if name.startswith("eval/success/")}
    assert types and "eval/success/" not in types
    episodes = read_episodes(tmp_path / "runs/tiny/episodes/iteration-00001.parquet")
    assert len(episodes) == 6 and all(episode.error is None and episode.task_type for episode in episodes)


# -- what docs/your-agent.md has the reader write and type -------------------------------------------------------------


SMALL = {
    "--iterations": "2", "--rollout.tasks": "2", "--rollout.group_size": "2", "--evaluation.episodes": "2",
    "--pool.folder": "pool", "--episodes_every": "1", "--report": "false",
    "--envs": "[{id: TextCraft-v0, max_episode_steps: 4}]",
}  # fmt: skip


def test_the_agents_of_packages_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert FunctionAgent("examples/agents.py:langgraph").function.__name__ == "langgraph"
    with pytest.raises(ConfigError, match=r"'langgraph' is not file\.py:function"):
        FunctionAgent("langgraph")


@pytest.mark.seconds
def test_the_agent_of_the_page_trains(tmp_path):
    for name, text in files_of(ROOT / "docs/your-agent.md", "A function").items():
        (tmp_path / name).write_text(text)
    words = ["--config", "configs/agent.yaml", "--rollout.agent.run", "my_agent.py:play", "--output", "runs"]
    words += [word for pair in SMALL.items() for word in pair]
    took = ["--name", "taken", "--iterations", "1", "--pool.take.source", "agent", "--evaluation.envs", "[]"]
    for more in ([], took):  # the second trains on what the first stored, and evaluates nothing
        done = subprocess.run(
            [sys.executable, "-m", "trainers.train", *words, *more], cwd=tmp_path, capture_output=True, text=True,
            timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    taken = read_metrics(tmp_path / "runs/taken/metrics.jsonl")
    assert [record["train/episodes"] for record in taken if "train/loss" in record] == [4]
    assert not any(name.startswith("eval/") for record in taken for name in record)
    run = tmp_path / "runs/agent"
    told = [record for record in read_metrics(run / "metrics.jsonl") if "train/loss" in record]
    assert len(told) == 2 and all(record["train/logprob_gap"] < 1e-3 for record in told)
    episodes = read_episodes(run / "episodes/iteration-00002.parquet")
    assert len(episodes) == 4 and all(episode.error is None for episode in episodes)
    parents = {step.info["gateway"]["parent"] == (step.t - 1 if step.t else None) for e in episodes for step in e.steps}
    assert parents == {True}, "each request goes on from the answer before it"
