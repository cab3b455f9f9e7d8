"""The benchmark of the rollout manager: its episodes, and that both loops play them and book all of their time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks import pace
from benchmarks.pace_world import EPISODES, MOST_STEPS, TASKS, latencies, length, task_of


def test_lengths_and_latencies_are_drawn_from_the_stated_distributions() -> None:
    lengths = [length(episode) for episode in range(EPISODES)]
    assert 1 <= min(lengths) and max(lengths) <= MOST_STEPS and 10.5 < np.mean(lengths) < 13.0
    assert 0.7 < np.std(np.log(lengths)) < 0.9
    drawn = [seconds for episode in range(EPISODES) for seconds in latencies(task_of(100, 1.5, episode))]
    assert 0.09 < np.median(drawn) < 0.11 and 1.4 < np.std(np.log(drawn)) < 1.6
    assert all(len(latencies(task)) == length(int(task.split()[2])) + 1 for task in TASKS.ids("train")[::37])
    assert latencies(task_of(20, 1.0, 3)) == latencies(task_of(20, 1.0, 3))


def test_both_loops_play_all_steps_and_their_parts_sum_to_the_wall_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: dict[str, list[int]] = {}
    for name, loop in pace.LOOPS.items():

        def kept(*args: object, name: str = name, loop: object = loop) -> pace.Played:
            timing, episodes = loop(*args)  # type: ignore[operator]
            played[name] = sorted(len(episode.steps) for episode in episodes)
            assert all(episode.error is None and episode.terminated for episode in episodes)
            return timing, episodes

        monkeypatch.setitem(pace.LOOPS, name, kept)
    rows = list(pace.measure("workers", "scripted", [(0, 1.0)], episodes=5, slots=2, tokens=2, rounds=1))
    assert [row.loop for row in rows] == ["lock-step", "manager"]
    assert played["lock-step"] == played["manager"] == sorted(length(episode) for episode in range(5))
    for row in rows:
        assert 0.5 * row.wall_s < sum(row.seconds.values()) <= row.wall_s + 1e-3
        assert row.live_tokens == 1.0 and 0 < row.idle < 1 and row.seconds["engine"] > 0
    pace.draw(pace.pooled(rows), tmp_path / "pace.png")
    assert imread(tmp_path / "pace.png").shape[1] > 300
