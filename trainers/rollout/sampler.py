"""Draws the tasks that an iteration plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TaskPool:
    """The tasks of one environment that may be drawn."""

    ids: tuple[str, ...]
    weight: float


class TaskSampler:
    """Draws tasks from several pools: by weight among the pools, without replacement within each until it is used up.

    Args:
        pools: The pools to draw from.
        seed: The same seed draws the same tasks.
    """

    def __init__(self, pools: Sequence[TaskPool], seed: int) -> None:
        self.pools = tuple(pools)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._orders: list[list[int]] = [[] for _ in self.pools]

    def draw(self, n: int) -> list[tuple[int, str]]:
        """``n`` tasks as (index of the pool, task id).

        Pools get their share of ``n`` as exactly as whole numbers allow; what remains is drawn by weight.
        """
        weights = np.array([pool.weight for pool in self.pools], np.float64)
        exact = n * weights / weights.sum()
        counts = np.floor(exact).astype(int)
        fractions = exact - counts
        for pool in (
            self._rng.choice(len(self.pools), size=n - counts.sum(), p=fractions / fractions.sum())
            if fractions.any()
            else ()
        ):
            counts[pool] += 1
        tasks = [(pool, self._next(pool)) for pool, count in enumerate(counts) for _ in range(count)]
        return [tasks[i] for i in self._rng.permutation(len(tasks))]

    def _next(self, pool: int) -> str:
        if not self._orders[pool]:
            self._orders[pool] = self._rng.permutation(len(self.pools[pool].ids)).tolist()
        return self.pools[pool].ids[self._orders[pool].pop()]

    def state(self) -> dict[str, Any]:
        """Returns the state that the next draws depend on, as JSON values."""
        state = self._rng.bit_generator.state
        words = {name: hex(value) for name, value in state["state"].items()}  # 128 bits: more than a JSON number holds
        return {"rng": {**state, "state": words}, "orders": [list(order) for order in self._orders]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the sampler from its state."""
        words = {name: int(value, 16) for name, value in state["rng"]["state"].items()}
        self._rng.bit_generator.state = {**state["rng"], "state": words}
        self._orders = [list(order) for order in state["orders"]]
