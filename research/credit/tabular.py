"""The map's cells without a network: what sharing weights between states does to the gain of exact credit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.bifurcation.world import PLAINS, Floats, Kind, Walk
from research.credit.cells import Cell

Shares = Literal["nothing", "kind", "parts"]
SHARES: tuple[Shares, ...] = ("nothing", "kind", "parts")
"""A policy has logits for each text; for each kind of place; or sums them over the parts of a text: its kind, its
number, whether the walk is lost, and what all texts have in common."""
RATES = tuple(float(10**power) for power in np.arange(1.0, 5.1, 0.5))
"""Learning rates that are tried, with :data:`TUNING_SEEDS`."""
TUNING_SEEDS = range(900, 908)
"""Seeds that no other stage has."""


def parts_of(kinds: NDArray[np.int64], count: int, shares: Shares) -> NDArray[np.int64]:
    """Returns the rows of the table that each state's logits are the sum of, shape (tasks, places, 2, rows).

    Args:
        kinds: Kinds of places, shape (tasks, places).
        count: Number of kinds.
        shares: What states share.
    """
    places = kinds.shape[1]
    kind, number, lost = np.broadcast_arrays(kinds[..., None], np.arange(places)[:, None], range(2))
    each = {"nothing": [kind + count * (lost + 2 * number)], "kind": [kind]}
    return np.stack(each.get(shares, [kind, count + number, count + places + lost, 0 * lost + count + places + 2]), -1)


def train(cell: Cell, seed: int, rate: float, exact: bool, shares: Shares) -> Floats:
    """Trains a softmax policy by plain gradient on the tasks and as many episodes as a run of the cell has.

    It starts as the player that the cell's base model imitates: right at each fork with the same probability, any door
    elsewhere.

    Args:
        cell: One with final mistakes, the reward at the end, and texts that are the state.
        seed: Chooses tasks and draws.
        rate: θ += rate · mean of Â ∇log π over the steps.
        exact: Credit is Q - V; else GRPO's.
        shares: What states share.

    Returns:
        The expected success before each update and after the last, exact.
    """
    kind = Kind(**cell.kwargs)
    count = kind.forks + PLAINS
    kinds = np.array([Walk(kind, task).places for task in cell.panel(seed)])
    right = np.array([*kind.right, *[-1] * PLAINS])
    odds = cell.start ** (1.0 / cell.decisions)
    own = np.log(odds / (1.0 - odds) * (kind.doors - 1)) * (right[:, None] == range(kind.doors))
    rows, start, right = parts_of(kinds, count, shares), own[kinds][:, :, None], right[kinds]
    weights, rng, success = np.zeros((int(rows.max()) + 1, kind.doors)), np.random.default_rng([seed, 1]), list[float]()
    for iteration in range(cell.iterations + 1):
        logits = start + weights[rows].sum(3)
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        chosen = np.take_along_axis(chances[:, :, 0], right[..., None] % kind.doors, 2)[..., 0]
        passing = np.where(right < 0, 1.0, chosen)
        value = np.cumprod(passing[:, ::-1], 1)[:, ::-1]
        success.append(float(value[:, 0].mean()))
        if iteration == cell.iterations:
            break
        drawn = rng.random((len(kinds), cell.group, cell.horizon, 1, 1))
        doors = (drawn > np.cumsum(chances, -1)[:, None, ..., :-1]).sum(-1)
        passed = (right[:, None] < 0) | (doors[..., 0] == right[:, None])
        lost = np.cumsum(~passed, 2) - ~passed > 0
        if exact:
            after = np.concatenate([value[:, 1:], np.ones((len(kinds), 1))], 1)[:, None]
            credit = np.where(lost, 0.0, np.where(passed, after, 0.0) - value[:, None])
        else:
            returns = passed.all(2, keepdims=True).astype(float)
            spread = returns.std(1, ddof=1, keepdims=True) + 1e-6
            credit = np.broadcast_to((returns - returns.mean(1, keepdims=True)) / spread, lost.shape)
        door = np.where(lost, doors[..., 1], doors[..., 0])
        score = np.eye(kind.doors)[door] - np.where(lost[..., None], chances[:, None, :, 1], chances[:, None, :, 0])
        gradient = np.zeros_like(weights)
        for part in range(rows.shape[-1]):
            each = rows[:, None, ..., part]
            np.add.at(gradient, np.where(lost, each[..., 1], each[..., 0]), credit[..., None] * score)
        weights = weights + rate * gradient / door.size
    return np.array(success)


def areas(cell: Cell, seeds: Iterable[int], rate: float, exact: bool, shares: Shares) -> Floats:
    """Returns the areas of runs in percent, one for each seed."""
    return np.array([100.0 * train(cell, seed, rate, exact, shares)[1:].mean() for seed in seeds])


def tuned_rate(cell: Cell, exact: bool, shares: Shares) -> float:
    """Returns the rate with the greatest mean area."""
    return max(RATES, key=lambda rate: float(areas(cell, TUNING_SEEDS, rate, exact, shares).mean()))


def pairs(cell: Cell, seeds: Sequence[int], shares: Shares) -> tuple[Floats, Floats]:
    """Returns the areas of exact credit and of GRPO in a cell in percent, for each seed; rates are tuned on others."""
    one, other = (areas(cell, seeds, tuned_rate(cell, exact, shares), exact, shares) for exact in (True, False))
    return one, other
