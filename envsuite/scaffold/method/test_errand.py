"""What the method makes of a few returns: python -m pytest test_errand.py."""

import numpy as np
from errand import Errand

from trainers.steps import Ragged, StepTable


def group_of(*returns):
    """A step table of a group: episodes of one task, one step each, with these returns."""
    rows = len(returns)
    tokens = Ragged.of([[1, 2]] * rows, np.int64)
    return StepTable(
        group_id=np.zeros(rows, np.int64),
        episode_id=np.arange(rows),
        t=np.zeros(rows, np.int64),
        reward=np.array(returns, np.float64),
        state_key=np.array(["start"] * rows, object),
        valid=np.ones(rows, np.bool_),
        prompt=tokens,
        response=tokens,
        logprob=Ragged(np.zeros(2 * rows, np.float32), tokens.offsets),
    )


def test_the_middle_episode_of_a_group_has_the_advantage_zero():
    """And the best one counts as much as it is better."""
    assert Errand()(group_of(0.0, 1.0, 9.0)).per_step.tolist() == [-1.0, 0.0, 8.0]
