"""The methods that read signals of the policy in plain Python, row by row; see :mod:`benchmarks.plain_python`."""

from __future__ import annotations

import itertools
import math
from typing import Any

from benchmarks.plain_python import Numbers, Plain, Rows, floats, grpo, mean_std
from trainers.steps import StepTable


def _token_means(rows: Rows, column: list[Any], offsets: list[int]) -> list[Any]:
    return [
        sum(column[begin:end]) / length if length else 0.0
        for (begin, end), length in zip(itertools.pairwise(offsets), rows.length, strict=True)
    ]


def empg(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """A^E exp(-h) / mean exp(-h) + 0.05 exp(-h'), minus the mean."""
    rows = Rows(steps, numbers)
    entropy = _token_means(rows, numbers(steps.token_extra["entropy"].values), steps.response.offsets.tolist())
    low, high = min(entropy), max(entropy)
    clear = [math.exp(-(value - low) / (high - low + 1e-8)) for value in entropy]
    mean = sum(clear) / len(clear)
    out = [episode * own / mean for episode, own in zip(grpo(steps, numbers), clear, strict=True)]
    for own in rows.rows.values():
        for row, following in itertools.pairwise(own):
            out[row] += 0.05 * clear[following]
    mean = sum(out) / len(out)
    return [value - mean for value in out]


def hcapo(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """z(R) + z(Q) with Q = clip(p / mean p) 0.95^k R, at least 0 in a successful episode."""
    rows = Rows(steps, numbers)
    means = _token_means(rows, numbers(steps.token_extra["hindsight_logprob"].values), steps.response.offsets.tolist())
    won, returns = steps.extra["success"].tolist(), rows.returns()
    value, tasks = [0.0] * len(rows), rows.by_group()
    for episode, own in rows.rows.items():
        likely = [math.exp(means[row] / 5.0) for row in own]
        mean = sum(likely) / len(likely)
        for place, row in enumerate(own):
            ratio = min(max(likely[place] / mean, 0.8), 1.2)
            value[row] = ratio * 0.95 ** (len(own) - 1 - place) * returns[episode]
    out = [0.0] * len(rows)
    for episodes in tasks.values():
        of_task = [row for episode in episodes for row in rows.rows[episode]]
        for episode in episodes:
            for row in rows.rows[episode]:
                term = _z(value[row], [value[other] for other in of_task])
                out[row] = _z(returns[episode], [returns[other] for other in episodes])
                out[row] += max(term, 0.0) if won[row] else term
    return out


def _z(value: Any, values: list[Any]) -> Any:
    mean, std = mean_std(values, ddof=0)
    return (value - mean) / std if std else 0.0


SIGNALS: dict[str, Plain] = {"empg": empg, "hcapo": hcapo}
"""By the estimators' names."""
