"""What the replay buffer takes in, keeps, forgets, and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import table_of
from tiny_runs import step_table

from trainers.credit.crediting import Credit
from trainers.credit.estimators import Advantage
from trainers.credit.spear import self_imitation
from trainers.credit.spear.replay import ReplayBuffer, ReplayConfig, group_means, joined_states
from trainers.credit.spear.schedules import cosine_rise
from trainers.credit.spear.self_imitation import SelfImitation, clipped_tokens, mean_of_top
from trainers.policy.accumulation import Batch
from trainers.policy.loss.selection import covariances, token_sums
from trainers.steps import Ragged, StepTable


def played(iteration: int, returns: Sequence[Sequence[float]], steps: int = 2) -> StepTable:
    """An iteration's rows: groups of episodes of two steps with these returns, ids counting on over iterations."""
    rows = [
        (100 * iteration + g, 1000 * iteration + 10 * g + i, t, value if t == steps - 1 else 0.0, f"{i} {t}", True)
        for g, group in enumerate(returns) for i, value in enumerate(group) for t in reversed(range(steps))
    ]  # fmt: skip
    tokens = Ragged.of([[row[1], row[2] + 1, 3][: 1 + row[2]] for row in rows], np.int64)
    logprob = Ragged(np.linspace(-1, 0, len(tokens.values)).astype(np.float32), tokens.offsets)
    found = {"prompt": tokens, "response": tokens, "logprob": logprob, "token_extra": {}}
    return replace(table_of(rows), **found, extra={"iteration": np.full(len(rows), iteration, np.int64)})


def take_in(buffer: ReplayBuffer, steps: StepTable, advantage: float = 0.0) -> int:
    buffer.enter_means(group_means(steps)[1])
    return buffer.admit(steps, np.full(len(steps), advantage), np.ones(len(steps), np.bool_))


def test_an_episode_enters_if_its_return_is_above_its_group_and_no_filter_left_it_out():
    buffer, steps = ReplayBuffer(ReplayConfig()), played(1, [[0, 1, 1], [2, 2, 2], [3, 0, 0]])
    keep = steps.group_id != 102
    assert buffer.admit(steps, np.zeros(len(steps)), keep) == 2
    assert np.unique(buffer.table.episode_id).tolist() == [1001, 1002]
    assert buffer.table.t.tolist() == [0, 1, 0, 1], "each episode in the order of its steps"
    assert buffer.table.extra["return"].tolist() == [1.0] * 4
    assert not buffer.table.state_key.any(), "texts are not kept"
    assert take_in(buffer, played(2, [[0, 1]])) == 1, "what was added, not what is there"


def test_by_the_rules_of_the_code_the_sign_of_a_rows_own_advantage_decides():
    buffer, steps = ReplayBuffer(ReplayConfig("code")), played(1, [[0, 1]])
    advantage = np.where(steps.t == 0, 0.5, -0.5)
    assert buffer.admit(steps, advantage, np.ones(len(steps), np.bool_)) == 2
    assert buffer.table.t.tolist() == [0, 0] and buffer.entry_count == 2


@given(
    st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=4), max_size=12),
    st.integers(1, 7),
    st.sampled_from(["paper", "code"]),
)
def test_the_baseline_is_the_median_of_the_latest_group_means(means, limit, rules):
    buffer = ReplayBuffer(ReplayConfig(rules), limit)
    history: list[list[float]] = []
    for new in means:
        buffer.enter_means(np.array(new, float))
        if rules == "code":
            while history and sum(map(len, history)) > limit:
                history.pop(0)
            history.append([float(value) for value in new])
        else:
            history = [[*(value for part in history for value in part), *map(float, new)][-limit:]]
    flat = [value for part in history for value in part]
    assert buffer.baseline == (float(np.percentile(flat, 50)) if flat else 0.0)


def test_recalibration_leaves_what_is_better_than_the_policy_has_become():
    buffer = ReplayBuffer(ReplayConfig())
    take_in(buffer, played(1, [[0, 1], [0, 3]]))
    assert buffer.recalibrate().tolist() == [0.0, 0.0, 2.0, 2.0], "P50 of 0.5 and 1.5 is 1"
    table, advantage = buffer.select_rows()
    assert np.unique(table.episode_id).tolist() == [1011] and advantage.tolist() == [2.0, 2.0]
    assert len(ReplayBuffer(ReplayConfig("code")).select_rows()[0]) == 0
    take_in(buffer, played(2, [[4, 4], [4, 4], [4, 4]]))
    assert len(buffer.select_rows()[0]) == 0, "the policy solves more now"


def test_a_group_whose_mean_is_off_by_rounding_is_no_better_than_its_median():
    buffer = ReplayBuffer(ReplayConfig())
    take_in(buffer, played(1, [[0.0, 1.1]]))
    buffer.enter_means(np.array([1.1 - 2e-16] * 3))
    assert buffer.recalibrate().tolist() == [0.0, 0.0]


def test_what_counts_towards_full_is_all_or_what_is_useful():
    stored, useful = ReplayBuffer(ReplayConfig(size=2)), ReplayBuffer(ReplayConfig("code", size=2))
    for buffer in (stored, useful):
        take_in(buffer, played(1, [[0, 1], [0, 3]], steps=1), advantage=1.0)
    assert stored.useful_count == 2 and stored.full(2) and not stored.full(1)
    assert useful.useful_count == 1 and not useful.full(3) and useful.full(4), "more than 1.5 times the size"


def test_old_episodes_are_forgotten_and_clearing_keeps_the_group_means():
    buffer = ReplayBuffer(ReplayConfig("code"))
    take_in(buffer, played(1, [[1]]), advantage=1.0)
    take_in(buffer, played(2, [[0]]), advantage=1.0)
    assert buffer.forget(6) == 0 and buffer.forget(7) == 2
    assert np.unique(buffer.table.extra["iteration"]).tolist() == [2]
    buffer.clear()
    assert buffer.entry_count == 0 and buffer.baseline == 0.5


returns = st.lists(st.lists(st.integers(0, 3).map(float), min_size=1, max_size=3), min_size=1, max_size=4)


def same(one: ReplayBuffer, two: ReplayBuffer) -> None:
    left, right = one.state(), two.state()
    assert list(left) == list(right)
    for name, array in left.items():
        assert_array_equal(array, right[name], err_msg=name)
        assert array.dtype == right[name].dtype


@given(st.lists(returns, max_size=4), st.lists(returns, max_size=3))
def test_a_restored_buffer_goes_on_as_the_one_that_was_saved(before, after):
    buffer, other = ReplayBuffer(ReplayConfig(), 5), ReplayBuffer(ReplayConfig(), 5)
    for iteration, groups in enumerate(before, start=1):
        take_in(buffer, played(iteration, groups))
    other.restore(buffer.state())
    same(buffer, other)
    for iteration, groups in enumerate(after, start=1 + len(before)):
        assert take_in(buffer, played(iteration, groups)) == take_in(other, played(iteration, groups))
    same(buffer, other)
    assert buffer.baseline == other.baseline


@given(st.lists(returns, min_size=1, max_size=4), st.integers(1, 3))
def test_buffers_of_several_processes_are_saved_as_one_and_shared_out_again(iterations, ranks):
    whole, parts = ReplayBuffer(ReplayConfig()), [ReplayBuffer(ReplayConfig()) for _ in range(ranks)]
    for iteration, groups in enumerate(iterations, start=1):
        steps = played(iteration, groups)
        means = group_means(steps)[1]
        for rank, buffer in enumerate([whole, *parts], start=-1):
            own = np.ones(len(steps), np.bool_) if rank < 0 else steps.group_id % ranks == rank
            buffer.enter_means(means)
            buffer.admit(steps, np.zeros(len(steps)), own)
    together = ReplayBuffer(ReplayConfig())
    together.restore(joined_states([part.state() for part in parts]))
    same(whole, together)
    for rank, part in enumerate(parts):
        again = ReplayBuffer(ReplayConfig())
        again.restore(whole.state(), rank, ranks)
        same(part, again)


def test_group_means_are_over_episodes_and_not_over_rows():
    steps = played(1, [[0, 3], [6, 6]])
    ids, means = group_means(steps)
    assert ids.tolist() == [100, 101] and means.tolist() == [1.5, 6.0]
    assert [len(part) for part in group_means(played(1, []))] == [0, 0]


@given(st.integers(0, 10**6), st.integers(2, 200), st.floats(0.0, 1.0))
def test_masked_tokens_are_candidates_and_few_of_each_episode(seed, tokens, share):
    rng = np.random.default_rng(seed)
    covariance, episode = rng.normal(size=tokens), rng.integers(0, 4, tokens)
    masked = clipped_tokens(covariance, episode, 0.2, 1.5, share, np.random.default_rng(seed).random(len(covariance)))
    inside = (covariance >= 0.2) & (covariance <= 1.5)
    assert not (masked & ~inside).any()
    for code in np.unique(episode):
        budget = max(1, round(share * int((episode == code).sum()))) if share > 0 else 0
        assert masked[episode == code].sum() == min(budget, inside[episode == code].sum())
    again = clipped_tokens(covariance, episode, 0.2, 1.5, share, np.random.default_rng(seed).random(len(covariance)))
    assert_array_equal(masked, again)


def test_covariances_of_a_share_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    logprob, advantage = rng.normal(size=9), rng.normal(size=9)
    whole = covariances(logprob, advantage)
    sums = token_sums(logprob[:4], advantage[:4]) + token_sums(logprob[4:], advantage[4:])
    assert_allclose(covariances(logprob[:4], advantage[:4], sums), whole[:4])
    assert_allclose(whole.mean(), np.cov(logprob, advantage, ddof=0)[0, 1])
    assert mean_of_top(np.arange(100.0), 0.02) == 98.5 and mean_of_top(np.arange(100.0), 0.0002) == 99.0


def test_equal_advantages_have_no_covariance_and_nothing_is_masked():
    covariance = covariances(np.linspace(-3, 0, 50), np.full(50, 0.5))
    assert not clipped_tokens(
        covariance, np.zeros(50, np.int64), 0.1, 9.0, 0.5, np.random.default_rng(0).random(50)
    ).any()


# -- What self-imitation gives to the update


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
def test_the_loss_of_what_is_imitated_has_the_weight_of_the_warm_up(iteration):
    expected = float(cosine_rise(iteration, 8))
    assert iteration >= 8 or 0.0 < expected < 1.0
    assert_allclose(_imitated(iteration, mask=0.0).factor, expected)


def test_a_masked_token_has_no_weight_and_every_other_that_of_the_warm_up():
    batch = _imitated(4, mask=0.3, cov=(-1e9, 1e9))
    assert set(batch.factor.tolist()) == {0.0, float(cosine_rise(4, 8))}
    share = (batch.factor == 0.0).mean()
    assert 0.05 < share < 0.5


def test_the_range_in_which_tokens_are_masked_is_measured_on_what_the_first_iteration_learns_from(monkeypatch):
    credit = _credit(1)
    credit.keep[::2] = False
    monkeypatch.setattr(self_imitation, "LOW_SHARE", 0.5)
    monkeypatch.setattr(self_imitation, "HIGH_SHARE", 0.25)
    imitation = _fresh()
    imitation.advance(credit, 1, _logprobs)
    kept = credit.keep[credit.table.response.row_of]
    logprob = credit.table.logprob.values[kept].astype(np.float64)
    advantage = credit.table.reward[credit.table.response.row_of][kept]
    falling = np.sort((logprob - logprob.mean()) * (advantage - advantage.mean()))[::-1]
    assert imitation.bounds == pytest.approx([falling[: int(share * kept.sum())].mean() for share in (0.5, 0.25)])


def test_what_was_measured_and_stored_goes_on_in_another_process_that_loads_it():
    one, other = _fresh(), _fresh()
    other.load(one.state())
    assert other.bounds is None
    one.advance(_credit(1), 1, _logprobs)
    other.load(one.state())
    assert other.bounds == one.bounds is not None and other.buffer.entry_count == one.buffer.entry_count > 0
