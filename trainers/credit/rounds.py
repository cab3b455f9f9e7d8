"""Earlier rounds of rejection sampling, which are imitated again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainers.credit.crediting import Credit
from trainers.credit.estimators.groups import Floats
from trainers.credit.spear.replay import RETURN
from trainers.credit.spear.self_imitation import SelfImitation
from trainers.policy.accumulation import Batch
from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable


class EarlierRounds(SelfImitation):
    """What the last rounds accepted. Each process keeps the episodes that it played."""

    def advance(
        self, credit: Credit, iteration: int, logprobs: Callable[[StepTable], Floats]
    ) -> tuple[Batch | None, dict[str, float]]:
        """Returns the rows of earlier rounds, then stores those of this one; every process must call this.

        Args:
            credit: Credited steps of the iteration.
            iteration: Its number, from 1.
            logprobs: Is not asked.

        Returns:
            This process's rows to imitate (``None`` in all processes where there are none), and metrics.
        """
        self.buffer.forget(iteration)
        table = self.buffer.table
        batch = Batch(table, np.repeat(table.extra[RETURN], table.response.lengths))
        sums = {"rows": float(len(table)), "stored": float(self.buffer.entry_count)}
        weights = credit.advantage.per_step
        assert weights is not None  # those of rft
        sums["admitted"] = float(self.buffer.admit(credit.table, weights, credit.keep))
        parts = all_gather_object(self.accelerator, sums)
        totals = {f"replay/{name}": sum(part[name] for part in parts) for name in sums}
        return (batch if totals["replay/rows"] else None), totals
