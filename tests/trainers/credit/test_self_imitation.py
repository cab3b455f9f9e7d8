"""What self-imitation gives to the update: the weight of its loss, and the tokens that take no part."""

from __future__ import annotations

import numpy as np
import pytest
from accelerate import Accelerator
from numpy.testing import assert_allclose
from tiny_runs import step_table

from trainers.credit.crediting import Credit
from trainers.credit.estimators import Advantage
from trainers.credit.spear.replay import ReplayConfig
from trainers.credit.spear.schedules import cosine_rise
from trainers.credit.spear.self_imitation import SelfImitation
from trainers.policy.accumulation import Batch
from trainers.steps import StepTable


def _credit(iteration: int) -> Credit:
    table = step_table(np.random.default_rng(iteration), 61, groups=4, members=4)
    table = table.with_columns(iteration=np.full(len(table), iteration, np.int64))
    table.logprob.values[:] = _logprobs(table)
    return Credit(table, Advantage(per_step=table.reward), np.ones(len(table), np.bool_))


def _logprobs(table: StepTable) -> np.ndarray:
    return np.linspace(-3.0, -0.1, len(table.response.values))


def _imitated(iteration: int, **settings: object) -> Batch:
    """What a buffer that was filled in one iteration gives in another."""
    imitation = SelfImitation(ReplayConfig(size=1, warmup=8, **settings), Accelerator(cpu=True), seed=0)
    assert imitation.advance(_credit(1), 1, _logprobs)[0] is None
    batch, _ = imitation.advance(_credit(iteration), iteration, _logprobs)
    assert batch is not None and batch.factor is not None and len(batch.factor) == len(batch.table.response.values)
    return batch


def _fresh(**settings: object) -> SelfImitation:
    return SelfImitation(ReplayConfig(**settings), Accelerator(cpu=True), seed=0)


@pytest.mark.parametrize("iteration", [2, 4, 7, 8, 50])
def test_the_loss_of_what_is_imitated_has_the_weight_of_the_warm_up(iteration: int) -> None:
    expected = float(cosine_rise(iteration, 8))
    assert iteration >= 8 or 0.0 < expected < 1.0
    assert_allclose(_imitated(iteration, mask=0.0).factor, expected)


def test_a_masked_token_has_no_weight_and_every_other_that_of_the_warm_up() -> None:
    batch = _imitated(4, mask=0.3, cov_low=-1e9, cov_high=1e9)
    assert set(batch.factor.tolist()) == {0.0, float(cosine_rise(4, 8))}
    share = (batch.factor == 0.0).mean()
    assert 0.05 < share < 0.5


def test_what_is_imitated_is_better_than_the_median_of_the_groups() -> None:
    batch = _imitated(2, mask=0.0)
    assert (batch.advantage > 0.0).all() and set(batch.table.extra["iteration"].tolist()) == {1}


def test_the_range_in_which_tokens_are_masked_is_measured_on_what_the_first_iteration_learns_from() -> None:
    credit = _credit(1)
    credit.keep[::2] = False
    imitation = _fresh(cov_low_share=0.5, cov_high_share=0.25)
    imitation.advance(credit, 1, _logprobs)
    kept = credit.keep[credit.table.response.row_of]
    logprob = credit.table.logprob.values[kept].astype(np.float64)
    advantage = credit.table.reward[credit.table.response.row_of][kept]
    falling = np.sort((logprob - logprob.mean()) * (advantage - advantage.mean()))[::-1]
    assert imitation.bounds == pytest.approx([falling[: int(share * kept.sum())].mean() for share in (0.5, 0.25)])


def test_what_was_measured_and_stored_goes_on_in_another_process_that_loads_it() -> None:
    one, other = _fresh(), _fresh()
    other.load(one.state())
    assert other.bounds is None
    one.advance(_credit(1), 1, _logprobs)
    other.load(one.state())
    assert other.bounds == one.bounds is not None and other.buffer.stored == one.buffer.stored > 0
