"""Aggregation of token losses, estimates of the divergence, and the loss of values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UsageError
from trainers.policy.loss import BatchTotals, Objective, token_weights
from trainers.policy.loss.policy_loss import kl_estimate
from trainers.policy.loss.value_loss import value_loss

MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
some_lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8).map(lambda rows: np.array(rows, np.int64))


def config_of(mode: str, **options: object) -> Objective:
    return Objective(aggregation=mode, horizon=10 if mode.endswith("-norm") else None, **options)


def naive(losses: list[np.ndarray], mode: str) -> float:
    filled = [row for row in losses if len(row)]
    if not filled:
        return 0.0
    if mode == "token-mean":
        return float(np.concatenate(filled).mean())
    if mode == "token-sum":
        return float(np.concatenate(filled).sum())
    each = {"sum": np.sum, "mean": np.mean, "norm": lambda row: row.sum() / 10}[mode.rsplit("-", 1)[1]]
    return float(np.mean([each(row) for row in filled]))


@pytest.mark.parametrize("mode", MODES)
@given(lengths=some_lengths)
def test_the_weighted_sum_is_the_aggregation_that_the_name_says(mode: str, lengths: np.ndarray):
    losses = np.random.default_rng(0).normal(size=lengths.sum())
    rows = np.split(losses, np.cumsum(lengths)[:-1])
    weights = token_weights(lengths, config_of(mode))
    assert weights @ losses == pytest.approx(naive(rows, mode), abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("average", ["steps", "episodes"])
@given(lengths=some_lengths, cut=st.integers(0, 8))
def test_two_ranks_that_know_the_totals_have_the_weights_of_one(mode: str, average: str, lengths: np.ndarray, cut: int):
    if average == "episodes" and mode.startswith("token-"):
        return
    config = config_of(mode, average=average)
    cut = min(cut, len(lengths))
    episode = np.r_[np.arange(cut) // 2, 100 + np.arange(len(lengths) - cut) // 2]
    parts = [(lengths[:cut], episode[:cut]), (lengths[cut:], episode[cut:])]
    each = [BatchTotals.of(rows, config, episodes) for rows, episodes in parts]
    totals = BatchTotals(
        *(sum(sizes) for sizes in zip(*((t.tokens, t.sequences, t.episodes) for t in each), strict=True))
    )
    shares = [token_weights(rows, config, totals=totals, episode=episodes) for rows, episodes in parts]
    np.testing.assert_allclose(np.concatenate(shares), token_weights(lengths, config, episode=episode), rtol=1e-12)


def test_rows_without_tokens_count_only_where_asked_for():
    lengths = np.array([2, 0])
    np.testing.assert_allclose(token_weights(lengths, config_of("seq-mean-token-sum")), [1.0, 1.0])
    np.testing.assert_allclose(token_weights(lengths, config_of("seq-mean-token-sum", count_empty=True)), [0.5, 0.5])


def test_the_sum_over_all_tokens_may_be_divided_by_the_horizon():
    config = config_of("token-sum-norm")
    np.testing.assert_allclose(token_weights(np.array([1, 2]), config), [0.1, 0.1, 0.1])


def test_averaging_over_episodes_gives_a_long_episode_no_more_weight():
    weights = token_weights(np.array([1, 1, 1, 2]), Objective(average="episodes"), episode=np.array([7, 7, 7, 9]))
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4])


def test_averaging_over_episodes_without_knowing_them_is_refused():
    with pytest.raises(UsageError, match="needs the episode of each step row"):
        token_weights(np.array([1]), Objective(average="episodes"))


def value_and_slope(kind: str, difference: float, **options: float) -> tuple[float, float]:
    new = torch.tensor([difference - 2.0], dtype=torch.float64, requires_grad=True)
    kl = kl_estimate(new, torch.tensor([-2.0], dtype=torch.float64), Objective(kl=kind, **options))
    kl.sum().backward()
    return float(kl.detach()), float(new.grad)


@given(st.floats(-3, 3))
def test_each_estimator_is_its_formula(difference: float):
    assert value_and_slope("k1", difference)[0] == pytest.approx(difference, abs=1e-9)
    assert value_and_slope("abs", difference)[0] == pytest.approx(abs(difference), abs=1e-9)
    assert value_and_slope("k2", difference)[0] == pytest.approx(difference**2 / 2, abs=1e-9)
    assert value_and_slope("k3", difference)[0] == pytest.approx(math.exp(-difference) - 1 + difference, abs=1e-9)


@given(st.floats(-3, 3))
def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2(difference: float):
    value, slope = value_and_slope("k3+", difference)
    assert value == pytest.approx(value_and_slope("k3", difference)[0], abs=1e-9)
    assert slope == pytest.approx(value_and_slope("k2", difference)[1], abs=1e-9)


def test_the_clamps_of_k3_hold_it_and_its_gradient():
    assert value_and_slope("k3", -30.0, kl_log_ratio_clamp=20.0, kl_clamp=10.0) == (10.0, 0.0)
    assert value_and_slope("k3", -5.0, kl_clamp=10.0) == (10.0, 0.0)


def test_without_clip_it_is_half_the_squared_error():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    result = value_loss(value, torch.zeros(2), torch.tensor([0.0, 0.0]), torch.tensor([0.5, 0.5]), clip=None)
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(0.5 * (1 + 4) / 2)
    assert value.grad.tolist() == [0.5, 1.0]


def test_a_value_that_moved_past_the_clip_towards_its_target_moves_no_further():
    value = torch.tensor([1.0, 1.0], requires_grad=True)
    result = value_loss(value, torch.tensor([0.0, 0.9]), torch.tensor([2.0, 2.0]), torch.ones(2), clip=0.5)
    result.loss.backward()
    assert value.grad.tolist() == [0.0, -1.0]
    assert float(result.clip_fraction) == 0.5
