"""What is complained of in issues of other frameworks, and published figures under these statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from synthetic_results import draw

from envsuite.evaluation.groups import groups_of
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
