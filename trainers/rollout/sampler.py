"""Draws the tasks that an iteration plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainers.rollout.curriculum import SuccessCurriculum, SuccessRates


@dataclass(frozen=True)
class TaskPool:
    """The tasks of one environment that may be drawn."""

    ids: tuple[str, ...]
    weight: float
    types: Mapping[str, str] = field(default_factory=dict)
    """Type of each task."""


class TaskSampler:
    """Draws tasks from several pools: by weight among the pools, without replacement within each until it is used up.

    Args:
        pools: The pools to draw from.
        seed: The same seed draws the same tasks.
        success: Passes over some tasks, by their success so far; ``None`` draws all alike.
    """

    def __init__(self, pools: Sequence[TaskPool], seed: int, success: SuccessCurriculum | None = None) -> None:
        self.pools = tuple(pools)
        self.rates = None if success is None else SuccessRates(success, [pool.types for pool in self.pools])
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._orders: list[list[int]] = [[] for _ in self.pools]

    def draw(self, n: int, first: int = 0) -> list[tuple[int, str]]:
        """``n`` tasks as (index of the pool, task id).

        Pools get their share of ``n`` as exactly as whole numbers allow; what remains is drawn by weight.

        Args:
            n: Number of tasks.
            first: Number of the first task's group; the others count on.
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
        tasks = [tasks[i] for i in self._rng.permutation(len(tasks))]
        if self.rates is not None:
            self.rates.tasks |= dict(enumerate(tasks, first))
        return tasks

    def _next(self, pool: int) -> str:
        while True:
            if not self._orders[pool]:
                self._orders[pool] = self._rng.permutation(len(self.pools[pool].ids)).tolist()
            task = self.pools[pool].ids[self._orders[pool].pop()]
            if self.rates is None or self._rng.random() < self.rates.probability(pool, task):
                return task

    def state(self) -> dict[str, Any]:
        """Returns the state that the next draws depend on, as JSON values."""
        state = self._rng.bit_generator.state
        words = {name: hex(value) for name, value in state["state"].items()}  # 128 bits: more than a JSON number holds
        orders = [list(order) for order in self._orders]
        rates = {} if self.rates is None else {"rates": self.rates.state()}
        return {"rng": {**state, "state": words}, "orders": orders, **rates}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the sampler from its state."""
        words = {name: int(value, 16) for name, value in state["rng"]["state"].items()}
        self._rng.bit_generator.state = {**state["rng"], "state": words}
        self._orders = [list(order) for order in state["orders"]]
        if self.rates is not None:
            self.rates.load(state["rates"])
