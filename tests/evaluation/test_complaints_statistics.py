"""What is complained of in issues of other frameworks, and published figures under these statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic_results import draw, group, lost

from envsuite.evaluation.groups import groups_of
from envsuite.evaluation.statistics import wilson
from envsuite.evaluation.tables import make_rows


def test_a_rate_is_weighted_by_episode_however_they_are_batched() -> None:
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


def test_a_rate_over_strata_of_different_size_is_no_mean_of_the_strata() -> None:
    results = [replace(r, stratum="rare" if i < 3 else "common") for i, r in enumerate(draw(tasks=90, seeds=1))]
    results = [replace(r, success=r.stratum == "rare", ending="done") for r in results]
    whole, common, rare = make_rows([group(results)], "stratum")
    assert (rare.success, common.success) == (1.0, 0.0) and whole.success == 3 / 90


@pytest.mark.seconds
@pytest.mark.parametrize("correlation", [0.05, 0.5, 0.9])
def test_one_frozen_policy_on_five_seeds_lies_within_its_own_interval(correlation: float) -> None:
    inside = total = 0
    for run in range(12):
        results = draw(rate=0.86, tasks=128, seeds=5, correlation=correlation, rng=run)
        whole, *seeds = make_rows([group(results)], "seed")
        assert whole.success_std is not None
        for row in seeds:
            assert whole.success_low is not None and whole.success_high is not None and row.success is not None
            # A single seed's own interval, and that of all five, have the rate of the other in them.
            assert row.success_low is not None and row.success_high is not None
            inside += row.success_low <= whole.success <= row.success_high  # type: ignore[operator]
            total += 1
    assert inside / total >= 0.95


def test_three_seeds_of_128_games_at_83_6_and_86_7_and_89_1_percent_are_one_rate() -> None:
    solved = [107, 111, 114]
    assert [round(100 * s / 128, 1) for s in solved] == [83.6, 86.7, 89.1]
    test = stats.chi2_contingency([solved, [128 - s for s in solved]], correction=False)
    assert 0.4 < test.pvalue < 0.5
    low, high = wilson(sum(solved), 384)
    assert (round(100 * low, 1), round(100 * high, 1)) == (82.7, 89.5)
    for successes in solved:
        bounds = wilson(successes, 128)
        assert bounds[0] <= sum(solved) / 384 <= bounds[1]
    # The standard deviation that chance alone gives such seeds, where every game is as hard as another.
    assert np.std([s / 128 for s in solved], ddof=1) < np.sqrt(0.865 * 0.135 / 128)


def test_what_the_infrastructure_broke_changes_no_rate() -> None:
    results = draw(seeds=3)
    broken = [replace(r, seed=9) for r in lost(results[:30])]
    (sound,), (both,) = (make_rows([group(r)]) for r in (results, [*results, *broken]))
    for name in ("success", "success_low", "success_high", "success_std", "score", "steps", "episodes", "tasks"):
        assert getattr(sound, name) == getattr(both, name)
    assert both.broken == 30 and not both.complete
