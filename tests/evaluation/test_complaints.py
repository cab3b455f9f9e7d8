"""The complaints about today's frameworks, one test each.

``tests/trainers/run/test_evaluation_results.py`` has those of the trainers: slots, workers and processes change no
result there.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.cli import main
from envsuite.evaluation.protocol import ProtocolSetting, evaluated_env, panel_of, sample_of
from envsuite.evaluation.results import EpisodeResult, read_results


def measured(folder: Path, *words: object) -> dict[tuple[str, str, int], EpisodeResult]:
    """Runs ``envsuite eval run``; returns the results by policy, task and seed, without durations."""
    assert main(["eval", "run", *map(str, words), "--out", str(folder)]) == 0
    return {(r.conditions.policy, *r.key): replace(r, seconds=0.0) for r in read_results(folder)}


PLAIN = ("TextCraft-v0", "--policy", "random", "--policy", "lexical", "--sample", 5, "--steps", 6, "--seeds", 2)


@pytest.mark.slow
def test_the_number_of_workers_changes_neither_tasks_nor_results(tmp_path: Path) -> None:
    found = [measured(tmp_path / str(workers), *PLAIN, "--workers", workers) for workers in (0, 1, 3)]
    assert found[0] == found[1] == found[2] and len(found[0]) == 20


def test_the_order_of_play_changes_no_result(tmp_path: Path) -> None:
    """One seed after the other, or more of them later: the same episodes, but for how many were asked for."""
    at_once = measured(tmp_path / "at-once", *PLAIN, "--workers", 0)
    measured(tmp_path / "later", *PLAIN[:-1], 1, "--workers", 0)
    later = measured(tmp_path / "later", *PLAIN, "--workers", 0)
    assert {key: replace(result, seeds=2) for key, result in later.items()} == at_once


def test_seeds_differ_in_sampled_actions_and_not_in_the_panel(tmp_path: Path) -> None:
    found = measured(tmp_path, *PLAIN, "--workers", 0)
    drawn, players = (
        [[r for (name, _, number), r in found.items() if (name, number) == (policy, seed)] for seed in (0, 1)]
        for policy in ("random", "lexical")
    )
    assert [r.task_id for r in drawn[0]] == [r.task_id for r in drawn[1]]
    assert [(r.steps, r.valid) for r in drawn[0]] != [(r.steps, r.valid) for r in drawn[1]]
    assert [replace(r, seed=0) for r in players[0]] == [replace(r, seed=0) for r in players[1]], "nothing is drawn"
    assert len({r.conditions.panel for r in found.values()}) == 1


def test_the_panel_is_a_function_of_the_split_alone() -> None:
    """Not of a seed, nor of who makes the environment: WebShop's goals were shuffled by each worker's."""
    hashes = set()
    for seed in (None, 1, 2):
        env: Any = gymnasium.make("TextCraft-v0", split="test", disable_env_checker=True)
        env.reset(seed=seed)
        hashes.add(panel_of(env.unwrapped, "test").hash)
    world = evaluated_env(ProtocolSetting("TextCraft-v0", "test", "random"))
    assert hashes == {world.panel.hash} and len(world.panel.tasks) == 211


@given(st.lists(st.text(max_size=5), unique=True, max_size=20), st.integers(0, 20), st.randoms())
def test_a_sample_is_a_function_of_the_ids_and_part_of_a_larger_one(ids: list[str], count: int, random: Any) -> None:
    count = min(count, len(ids))
    chosen, shuffled = sample_of(ids, count), random.sample(ids, len(ids))
    assert set(chosen) == set(sample_of(shuffled, count)) and chosen == [task for task in ids if task in chosen]
    assert set(chosen) <= set(sample_of(ids, min(count + 1, len(ids)))) and len(chosen) == count
    if chosen:
        limit = max(hashlib.sha256(task.encode()).digest() for task in chosen)
        assert all(hashlib.sha256(task.encode()).digest() > limit for task in set(ids) - set(chosen))
