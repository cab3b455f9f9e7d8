"""Each way to bring an agent, through a whole run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from bringing import WAYS, agent_settings, serve_sessions
from tiny_runs import save_model, trained

from envsuite.remote.protocol import TOKEN_VARIABLE
from trainers.steps.parquet import read_episodes

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'envsuite[gateway]'")


@pytest.mark.seconds
@pytest.mark.parametrize("environment", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_bring_an_agent_trains_and_is_evaluated(
    way: str, environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
