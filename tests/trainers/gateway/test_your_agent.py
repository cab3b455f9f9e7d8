"""What docs/your-agent.md has the reader write and type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import files_of

from trainers.report.metrics import read_metrics
from trainers.steps.parquet import read_episodes

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'envsuite[gateway]'")
ROOT = Path(__file__).resolve().parents[3]
SMALL = {
    "--iterations": "2", "--rollout.tasks": "2", "--rollout.group_size": "2", "--evaluation.episodes": "2",
    "--episodes_every": "1", "--report": "false", "--envs": "[{id: TextCraft-v0, max_episode_steps: 4}]",
}  # fmt: skip


@pytest.mark.seconds
def test_the_agent_of_the_page_trains(tmp_path: Path) -> None:
    for name, text in files_of(ROOT / "docs/your-agent.md", "A function").items():
        (tmp_path / name).write_text(text)
    words = ["--config", "configs/agent.yaml", "--rollout.agent.function", "my_agent.py:play", "--output", "runs"]
    words += [word for pair in SMALL.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-m", "trainers.train", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    run = tmp_path / "runs/agent"
    told = [record for record in read_metrics(run / "metrics.jsonl") if "train/loss" in record]
    assert len(told) == 2 and all(record["train/logprob_gap"] < 1e-3 for record in told)
    episodes = read_episodes(run / "episodes/iteration-00002.parquet")
    assert len(episodes) == 4 and all(episode.error is None for episode in episodes)
    parents = {step.info["gateway"]["parent"] == (step.t - 1 if step.t else None) for e in episodes for step in e.steps}
    assert parents == {True}, "each request goes on from the answer before it"
