"""Cells without a network: updates equal to plain loops over steps, with the values of dynamic programming."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envsuite.bifurcation.world import DoorState, Kind, Walk
from research.credit.cells import Cell
from research.credit.tabular import SHARES, Shares, pairs, train

CELL = Cell("tiny", 5, 2, 0.3, tasks=2, group=4, iterations=1)


def parts(kind: int, place: int, lost: int, shares: Shares) -> list[Any]:
    """Names of what a state's logits are the sum of."""
    if shares == "nothing":
        return [("text", kind, place, lost)]
    return [("kind", kind)] if shares == "kind" else [("kind", kind), ("number", place), ("lost", lost), "all"]


def plainly(cell: Cell, seed: int, rate: float, exact: bool, shares: Shares) -> float:
    """Expected success after one update, step by step."""
    kind, walks = Kind(**cell.kwargs), {task: Walk(Kind(**cell.kwargs), task) for task in cell.panel(seed)}
    odds, weights = cell.start ** (1.0 / cell.decisions), defaultdict[Any, Any](lambda: np.zeros(3))

    def chances(walk: Walk, state: DoorState) -> Any:
        right = walk.right(state.place)
        start = np.array([odds if door == right else (1.0 - odds) / 2 for door in range(3)])
        logits = np.log(start) if right is not None else np.zeros(3)
        logits = logits + sum(weights[part] for part in parts(walk.places[state.place], *state, shares))
        return np.exp(logits) / np.exp(logits).sum()

    def values(walk: Walk) -> Any:
        each = [[[chances(walk, DoorState(place, lost))] for lost in range(2)] for place in range(kind.horizon)]
        return walk.values(np.array(each), kind.horizon)

    drawn = np.random.default_rng([seed, 1]).random((cell.tasks, cell.group, cell.horizon))
    gradient, before = defaultdict[Any, Any](lambda: np.zeros(3)), {task: values(walk) for task, walk in walks.items()}
    for number, (task, walk) in enumerate(walks.items()):
        steps, returns = [], []
        for episode in range(cell.group):
            state, total = DoorState(0), 0.0
            for place in range(kind.horizon):
                door = int((drawn[number, episode, place] > np.cumsum(chances(walk, state))[:-1]).sum())
                steps.append((episode, state, door))
                state, reward = walk.after(state, door)
                total += reward
            returns.append(total)
        spread = np.std(returns, ddof=1) + 1e-6
        for episode, state, door in steps:
            q, v = before[task]
            credit = (returns[episode] - np.mean(returns)) / spread
            if exact:
                credit = q[(state.place, *state, 0, door)] - v[(state.place, *state, 0)]
            for part in parts(walk.places[state.place], *state, shares):
                gradient[part] += credit * (np.eye(3)[door] - chances(walk, state)) / drawn.size
    weights |= {part: rate * found for part, found in gradient.items()}
    return float(np.mean([values(walk)[1][0, 0, 0, 0] for walk in walks.values()]))


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("exact", [False, True])
def test_an_update_is_that_of_plain_loops(shares: Shares, exact: bool) -> None:
    for seed in range(3):
        found = train(CELL, seed, 20.0, exact, shares)
        assert found[0] == pytest.approx(0.3)
        assert found[1] == pytest.approx(plainly(CELL, seed, 20.0, exact, shares), abs=1e-12)
        assert abs(found[1] - found[0]) > 1e-3


def test_without_sharing_grpo_is_near_the_most_and_with_it_exact_credit_has_room() -> None:
    cell = Cell("small", 8, 3, 0.4)
    exact, grpo = pairs(cell, range(10), "nothing")
    assert exact.shape == grpo.shape == (10,) and 98.0 < grpo.mean() < exact.mean()
    exact, grpo = pairs(replace(cell, start=0.02), range(10), "nothing")
    assert grpo.mean() < 80.0 and (exact - grpo).mean() > 15.0
    exact, grpo = pairs(cell, range(10), "parts")
    assert grpo.mean() < 80.0 and (exact - grpo).mean() > 5.0
