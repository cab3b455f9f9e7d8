import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UsageError
from trainers.policy.loss import BatchTotals, ObjectiveConfig, token_weights

MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
some_lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8).map(lambda rows: np.array(rows, np.int64))


def config_of(mode: str, **options: object) -> ObjectiveConfig:
    return ObjectiveConfig(aggregation=mode, horizon=10 if mode == "seq-mean-token-sum-norm" else None, **options)


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


def test_without_norm_by_sequences_the_loss_grows_with_the_batch():
    config = config_of("seq-mean-token-sum-norm", norm_by_sequences=False)
    np.testing.assert_allclose(token_weights(np.array([1, 2]), config), [0.1, 0.1, 0.1])


def test_averaging_over_episodes_gives_a_long_episode_no_more_weight():
    weights = token_weights(np.array([1, 1, 1, 2]), ObjectiveConfig(average="episodes"), episode=np.array([7, 7, 7, 9]))
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4])


def test_averaging_over_episodes_without_knowing_them_is_refused():
    with pytest.raises(UsageError, match="needs the episode of each step row"):
        token_weights(np.array([1]), ObjectiveConfig(average="episodes"))
