"""The complaints about today's frameworks, one test each.

``tests/trainers/run/test_evaluation.py`` has those of the trainers: slots, workers and processes change no
result there.

What is complained of in issues of other frameworks, and published figures under these statistics.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_results import draw

from envsuite.cli import main
from envsuite.evaluation.groups import groups_of
from envsuite.evaluation.protocol import ProtocolSetting, evaluated_env, panel_of, sample_of
from envsuite.evaluation.results import EpisodeResult, read_results
from envsuite.evaluation.tables import make_rows


def measured(folder: Path, *words: object) -> dict[tuple[str, str, int], EpisodeResult]:
    """Runs ``envsuite eval run``; returns the results by policy, task and seed, without durations."""
    assert main(["eval", "run", *map(str, words), "--out", str(folder)]) == 0
    return {(r.conditions.policy, *r.key): replace(r, seconds=0.0) for r in read_results(folder)}


PLAIN = ("TextCraft-v0", "--policy", "random", "--policy", "lexical", "--sample", 5, "--steps", 6, "--seeds", 2)


@pytest.mark.slow
def test_the_number_of_workers_changes_neither_tasks_nor_results(tmp_path):
    found = [measured(tmp_path / str(workers), *PLAIN, "--workers", workers) for workers in (0, 1, 3)]
    assert found[0] == found[1] == found[2] and len(found[0]) == 20


def test_the_order_of_play_changes_no_result(tmp_path):
    """One seed after the other, or more of them later: the same episodes, but for how many were asked for."""
    at_once = measured(tmp_path / "at-once", *PLAIN, "--workers", 0)
    measured(tmp_path / "later", *PLAIN[:-1], 1, "--workers", 0)
    later = measured(tmp_path / "later", *PLAIN, "--workers", 0)
    assert {key: replace(result, seeds=2) for key, result in later.items()} == at_once


def test_seeds_differ_in_sampled_actions_and_not_in_the_panel(tmp_path):
    found = measured(tmp_path, *PLAIN, "--workers", 0)
    drawn, players = (
        [[r for (name, _, number), r in found.items() if (name, number) == (policy, seed)] for seed in (0, 1)]
        for policy in ("random", "lexical")
    )
    assert [r.task_id for r in drawn[0]] == [r.task_id for r in drawn[1]]
    assert [(r.steps, r.valid) for r in drawn[0]] != [(r.steps, r.valid) for r in drawn[1]]
    assert [replace(r, seed=0) for r in players[0]] == [replace(r, seed=0) for r in players[1]], "nothing is drawn"
    assert len({r.conditions.panel for r in found.values()}) == 1


def test_the_panel_is_a_function_of_the_split_alone():
    """Not of a seed, nor of who makes the environment: WebShop's goals were shuffled by each worker's."""
    hashes = set()
    for seed in (None, 1, 2):
        env: Any = gymnasium.make("TextCraft-v0", split="test", disable_env_checker=True)
        env.reset(seed=seed)
        hashes.add(panel_of(env.unwrapped, "test").hash)
    world = evaluated_env(ProtocolSetting("TextCraft-v0", "test", "random"))
    assert hashes == {world.panel.hash} and len(world.panel.tasks) == 211


@given(st.lists(st.text(max_size=5), unique=True, max_size=20), st.integers(0, 20), st.randoms())
def test_a_sample_is_a_function_of_the_ids_and_part_of_a_larger_one(ids, count, random):
    count = min(count, len(ids))
    chosen, shuffled = sample_of(ids, count), random.sample(ids, len(ids))
    assert set(chosen) == set(sample_of(shuffled, count)) and chosen == [task for task in ids if task in chosen]
    assert set(chosen) <= set(sample_of(ids, min(count + 1, len(ids)))) and len(chosen) == count
    if chosen:
        limit = max(hashlib.sha256(task.encode()).digest() for task in chosen)
        assert all(hashlib.sha256(task.encode()).digest() > limit for task in set(ids) - set(chosen))


def test_a_rate_is_weighted_by_episode_however_they_are_batched():
    # 28.8 % of 500 episodes. One batch of 436 has 80 of them, eight batches of 8 have all but 0 to 1: the mean of the
    # batches' means is 89 %, where that of the episodes is 28.8 %.
    results = draw(tasks=500, seeds=1)
    solved = [i < 80 or 436 <= i < 500 for i in range(500)]
    results = [
        replace(r, success=s, score=float(s), ending="done" if s else "budget")
        for r, s in zip(results, solved, strict=True)
    ]
    batches = [results[:436], *(results[i : i + 8] for i in range(436, 500, 8))]
    unweighted = np.mean([np.mean([r.success for r in batch]) for batch in batches])
    rows = []
    for order in (batches, batches[::-1], [[r] for r in results]):
        (row,) = make_rows(groups_of([[r for batch in order for r in batch]]))
        rows.append((row.success, row.score, row.success_low, row.success_high))
    assert unweighted > 0.85 and {row[0] for row in rows} == {0.288} and len(set(rows)) == 1
