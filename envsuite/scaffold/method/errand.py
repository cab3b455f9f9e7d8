"""errand: returns against the median of their group; one lucky episode does not make all others bad."""

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators import Advantage, Estimator
from trainers.credit.estimators.groups import episode_codes, first_rows, group_codes
from trainers.credit.estimators.returns import episode_returns
from trainers.steps import StepTable


@dataclass(frozen=True)
class Errand(Estimator):
    """A = (R(τ) - median R) / scale over the episodes of one task; a step has the advantage of its episode."""

    scale: float = 1.0
    """Divides the difference; a setting: method.options.scale."""

    def __call__(self, steps: StepTable) -> Advantage:
        """Returns an advantage for each step of the batch."""
        returns, group = episode_returns(steps), group_codes(steps.group_id)
        once = first_rows(episode_codes(steps))  # one row of each episode
        median = [np.median(returns[once][group[once] == code]) for code in range(group.max(initial=-1) + 1)]
        advantage = (returns - np.asarray(median)[group]) / self.scale if len(steps) else returns
        return Advantage(per_step=advantage, diagnostics={"above_median": float((advantage > 0).mean())})
