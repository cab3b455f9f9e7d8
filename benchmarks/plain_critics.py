"""The methods whose critic has several outputs in plain Python, row by row; see :mod:`benchmarks.plain_python`."""

from __future__ import annotations

from typing import Any

from benchmarks.plain_python import Numbers, Plain, Rows, floats, mean_std
from trainers.steps import StepTable


def _gae(reward: list[Any], value: list[Any], orders: list[list[int]], gamma: float, lam: float) -> list[Any]:
    """Generalised advantages along each of the orders."""
    out: list[Any] = [0.0] * len(reward)
    for order in orders:
        ahead: Any = 0.0
        after: Any = 0.0
        for i in reversed(order):
            ahead = reward[i] + gamma * after - value[i] + gamma * lam * ahead
            after, out[i] = value[i], ahead
    return out


def vetta(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """A^turn (γ = λ = 0.95) + A^tok (1, 1) - its mean over the turn."""  # noqa: RUF002
    rows, offsets = Rows(steps, numbers), steps.response.offsets.tolist()
    orders = list(rows.rows.values())
    turn = _gae(rows.reward, numbers(steps.extra["value"]), orders, 0.95, 0.95)
    earned: list[Any] = [0.0] * offsets[-1]
    tokens: list[list[int]] = [[] for _ in orders]
    for order, places in zip(orders, tokens, strict=True):
        for row in order:
            places.extend(range(offsets[row], offsets[row + 1]))
            if places:  # a turn without tokens pays the last token before it
                earned[places[-1]] += rows.reward[row]
    token = _gae(earned, numbers(steps.token_extra["value"].values), tokens, 1.0, 1.0)
    out: list[Any] = [0.0] * offsets[-1]
    for row in range(len(rows)):
        own = token[offsets[row] : offsets[row + 1]]
        for i, advantage in enumerate(own):
            out[offsets[row] + i] = turn[row] + advantage - sum(own) / len(own)
    return out


def hiper(steps: StepTable, numbers: Numbers = floats) -> list[Any]:
    """Low, high and switch advantages (γ = λ = 1, λ of segments 0.95), each normalised, in their blocks."""  # noqa: RUF002
    rows, offsets = Rows(steps, numbers), steps.response.offsets.tolist()
    v_high, v_low = numbers(steps.extra["value_high"]), numbers(steps.extra["value_low"])
    begins, block = steps.extra["segment"].tolist(), steps.token_extra["block"].values.tolist()
    low: list[Any] = [0.0] * len(rows)
    high: dict[int, Any] = {}
    for own in rows.rows.values():
        starts = [at for at, row in enumerate(own) if at == 0 or begins[row]]
        value: Any = 0.0
        advantage: Any = 0.0
        for start, end in reversed(list(zip(starts, [*starts[1:], len(own)], strict=True))):
            turns = own[start:end]
            after, ahead = value, 0.0
            for row in reversed(turns):
                ahead = rows.reward[row] + after - v_low[row] + ahead
                low[row], after = ahead, v_low[row]
            advantage = sum(rows.reward[row] for row in turns) + value - v_high[turns[0]] + 0.95 * advantage
            value, high[turns[0]] = v_high[turns[0]], advantage
    chosen, probability = steps.extra["switch"].tolist(), numbers(steps.extra["switch_probability"])
    parts = zip(chosen, probability, v_high, v_low, strict=True)
    switch = [(1.0 * q - p) * (one - other) for q, p, one, other in parts]
    low, switch = _normalised(low), _normalised(switch)
    high = dict(zip(high, _normalised(list(high.values())), strict=True))
    out: list[Any] = [0.0] * offsets[-1]
    for row in range(len(rows)):
        tokens = range(offsets[row], offsets[row + 1])
        acts = any(block[i] == 3 for i in tokens)
        for i in tokens:
            out[i] = low[row] if block[i] == 3 or not acts else 0.0
            out[i] += high.get(row, 0.0) if block[i] == 2 else 0.0
            out[i] += switch[row] if block[i] == 1 else 0.0
    return out


def _normalised(values: list[Any]) -> list[Any]:
    mean, std = mean_std(values, ddof=0)
    return [(value - mean) / (std + 1e-8) for value in values]


CRITICS: dict[str, Plain] = {"vetta": vetta, "hiper": hiper}
"""By the estimators' names."""
