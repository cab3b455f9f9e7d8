"""Runs and a datapool: what is played is stored, and what is stored is trained on, each episode once."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import ROOT, environment, save_model, train, write_settings

from envsuite.playing.step import Episode
from trainers.pool import Pool
from trainers.report.metrics import read_metrics
from trainers.steps.parquet import read_episodes

pytestmark = pytest.mark.seconds
AGENT = """
import time
from pathlib import Path

def play(task, client):
    Path(f"{__file__}.played").touch()
    messages = [{"role": "user", "content": task.text}]
    while not client.env.done:
        said = client.chat(messages)
        time.sleep(0.05)
        messages += [said, {"role": "user", "content": client.env.type(said["content"])}]
"""


def _trained(folder: Path, *words: str, **changes: Any) -> list[dict[str, Any]]:
    train("--config", str(write_settings(folder, **changes)), *words, status=0)
    return [record for record in read_metrics(folder / "runs/tiny/metrics.jsonl") if "train/loss" in record]


def _said(episode: Episode) -> list[list[int]]:
    return [step.response_ids.tolist() for step in episode.steps]


def test_a_run_trains_on_what_another_has_stored_as_that_one_did(tmp_path):
    played, taken = tmp_path / "played", tmp_path / "taken"
    for folder in (played, taken):
        save_model(folder / "model")
    pool = str(tmp_path / "pool")
    own = _trained(played, **{"pool": {"folder": pool}, "iterations": 2, "optim.minibatches": 1})
    with Pool(pool) as stored:
        assert [episode.error for episode in stored.episodes()] == [None] * 12
        assert {session.about.source for session in stored.sessions()} == {"tiny"}
    # In the order in which they were played, the first iteration is the same one.
    query = {"order": "oldest"}
    ours = _trained(taken, **{"pool": {"folder": pool, "take": query}, "iterations": 2, "optim.minibatches": 1})
    for name in ("train/return", "train/loss", "train/grad_norm", "train/steps", "train/entropy"):
        assert ours[0][name] == pytest.approx(own[0][name], rel=1e-5, abs=1e-7)
    files = [folder / "runs/tiny/episodes/iteration-00002.parquet" for folder in (played, taken)]
    one, two = (sorted(read_episodes(file), key=_said) for file in files)
    assert sorted(e.episode_id for e in one) == sorted(e.episode_id for e in two)
    for mine, theirs in zip(one, two, strict=True):
        for a, b in zip(mine.steps, theirs.steps, strict=True):
            np.testing.assert_array_equal(a.response_ids, b.response_ids)


def test_consumption_goes_back_with_the_checkpoint_and_ends_with_the_pool(tmp_path):
    save_model(tmp_path / "model")
    pool = {"folder": str(tmp_path / "pool")}
    _trained(tmp_path, **{"pool": pool, "iterations": 3})
    (tmp_path / "runs/tiny").rename(tmp_path / "runs/first")
    changes: dict[str, Any] = {"pool": {**pool, "take": {"source": "tiny"}}, "checkpoint_every": 2, "iterations": 4}
    config = write_settings(tmp_path, **changes)
    done = train("--config", str(config))
    assert done.returncode != 0 and "0 whole groups of 3 are left that pool.take finds" in done.stderr
    done = train("--config", str(config), "--resume", "--iterations", "3", status=0)
    files = sorted((tmp_path / "runs/tiny/episodes").glob("iteration-*.parquet"))
    seen = [tuple(step.response_ids.tolist()) for file in files for e in read_episodes(file) for step in e.steps]
    with Pool(pool["folder"]) as stored:
        all_of_them = [tuple(step.response_ids.tolist()) for e in stored.episodes() for step in e.steps]
    assert sorted(seen) == sorted(all_of_them), "each once"


def _killed_and_resumed(folder: Path, kills: int, sign: Path | None, **changes: Any) -> list[list[list[int]]]:
    """Kills a run so many times, lets it end, and returns what the episodes of its files say.

    The moments are random, from the start on, or from that at which the run has written the file ``sign``.
    """
    words = ["--config", str(write_settings(folder, **changes))]
    rng, checkpoints = random.Random(0), folder / "runs/tiny/checkpoints"
    for _ in range(kills):
        resume = ["--resume"] if list(checkpoints.glob("iteration-*")) else []
        if not resume:
            shutil.rmtree(folder / "runs/tiny", ignore_errors=True)
        child = subprocess.Popen(
            [sys.executable, "-m", "trainers.train", *words, *resume], cwd=ROOT, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        began = time.time()
        while sign is not None and child.poll() is None and not (sign.exists() and sign.stat().st_mtime > began):
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(rng.uniform(4, 14) if sign is None else rng.uniform(0, 3))
        child.kill()
        child.wait()
    done = train(*words, *(["--resume"] if list(checkpoints.glob("iteration-*")) else []))
    assert done.returncode == 0 or "is at its end" in done.stderr, done.stderr[-2000:]
    files = sorted((folder / "runs/tiny/episodes").glob("iteration-*.parquet"))
    assert len(files) == changes["iterations"]
    return sorted(_said(episode) for file in files for episode in read_episodes(file))


@pytest.mark.slow
def test_a_gateway_that_is_killed_at_any_moment_loses_no_episode_that_it_trained_on(tmp_path):
    save_model(tmp_path / "model")
    (tmp_path / "agent.py").write_text(AGENT)
    agent = {"run": f"{tmp_path}/agent.py:play"}
    taken = _killed_and_resumed(tmp_path, 20, tmp_path / "agent.py.played", **{
        "pool": {"folder": str(tmp_path / "pool")}, "checkpoint_every": 1, "episodes_every": 1, "iterations": 40,
        "rollout.agent": agent, "evaluation": {"envs": []},
    })  # fmt: skip
    with Pool(tmp_path / "pool") as stored:
        sessions = stored.sessions()
        there = Counter(str(_said(episode)) for episode in stored.episodes())
        starts = {session.session.split("/")[1] for session in sessions}
        assert all(session.ended and not session.bare and session.steps for session in sessions), "each is whole"
    assert not Counter(map(str, taken)) - there and len(starts) > 9, "what the run's files have is in the pool"
