from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from flat_tokens import Batch, batches, entropy, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite.core.errors import UnknownName, UsageError
from trainers.policy.loss import BatchTotals, Objective, token_weights
from trainers.policy.loss.config import CorrectionConfig
from trainers.policy.loss.policy_loss import PolicyLoss, kl_estimate, merge_metrics, policy_loss
from trainers.policy.loss.selection import covariances, eligible, selected_tokens
from trainers.policy.loss.token_losses import LOSSES
from trainers.policy.loss.value_loss import value_loss

CONFIGS = {
    "grpo": Objective(),
    "dapo": Objective(clip_high=0.28, aggregation="token-mean"),
    "dr_grpo": Objective(aggregation="seq-mean-token-sum-norm", horizon=8),
    "dual": Objective(dual_clip=3.0, aggregation="seq-mean-token-sum"),
    "unclipped": Objective(clip_low=None, clip_high=None),
    "step": Objective(ratio="step", average="episodes"),
    "gspo": Objective(ratio="sequence", clip_low=3e-4, clip_high=4e-4),
    "product": Objective(ratio="product"),
    "cispo": Objective(loss="cispo", clip_low=None, clip_high=4.0, aggregation="token-mean"),
    "gmpo": Objective(loss="gmpo", clip_low=0.4, clip_high=0.4),
    "gpg": Objective(loss="gpg"),
    "k1": Objective(kl="k1", kl_coef=0.1),
    "k2": Objective(kl="k2", kl_coef=0.1),
    "k3": Objective(kl="k3", kl_coef=0.1),
    "abs": Objective(kl="abs", kl_coef=0.1),
    "clip_cov": Objective(loss="clip_cov", cov_fraction=0.2, cov_low=0.0),
    "kl_cov": Objective(loss="kl_cov", cov_fraction=0.2),
    "entropy": Objective(entropy_coef=0.1, aggregation="seq-mean-token-sum"),
}
each_config = pytest.mark.parametrize("name", CONFIGS)


def gradient(batch: Batch, config: Objective) -> torch.Tensor:
    new = batch.new.clone().requires_grad_()
    batch.loss(config, new).loss.backward()
    assert new.grad is not None
    return new.grad


@each_config
@settings(max_examples=30)
@given(batch=batches, cut=st.integers(0, 6))
def test_micro_batches_add_up_to_the_loss_and_the_gradient_of_the_whole(name, batch, cut):
    config = CONFIGS[name]
    new = batch.new.clone().requires_grad_()
    rows = np.arange(len(batch.lengths))
    cut = min(cut, len(rows))
    parts = [batch.part(config, rows[:cut], new), batch.part(config, rows[cut:], new)]
    total = parts[0].loss + parts[1].loss
    total.backward()
    whole = batch.loss(config)
    torch.testing.assert_close(total.detach(), whole.loss)
    torch.testing.assert_close(new.grad, gradient(batch, config))
    merged = merge_metrics([(part.metrics, part.tokens) for part in parts])
    assert merged == pytest.approx(merge_metrics([(whole.metrics, whole.tokens)]), abs=1e-9)


@pytest.mark.seconds
@each_config
@settings(max_examples=30)
@given(batch=batches, seed=st.integers(0, 1000))
def test_the_order_of_the_rows_does_not_matter(name, batch, seed):
    config, order = CONFIGS[name], np.random.default_rng(seed).permutation(len(batch.lengths))
    tokens = torch.from_numpy(np.concatenate([np.flatnonzero(batch.row.numpy() == row) for row in order]))
    mixed = Batch(
        batch.lengths[order],
        batch.episode[order],
        *(column[tokens] for column in (batch.new, batch.old, batch.ref, batch.advantage)),
    )
    torch.testing.assert_close(mixed.loss(config).loss, batch.loss(config).loss)
    torch.testing.assert_close(gradient(mixed, config), gradient(batch, config)[tokens])


# The trick of gspo and the constant weight of cispo make their gradients differ from the slope of their value.
@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"gspo", "cispo"}))
def test_the_gradient_is_the_slope_of_the_loss(name):
    batch, config = make_batch([3, 1, 4, 0, 2], seed=3), CONFIGS[name]
    exact = gradient(batch, config)
    for token in range(len(batch.new)):
        moved = [batch.new.clone(), batch.new.clone()]
        for values, shift in zip(moved, (1e-6, -1e-6), strict=True):
            values[token] += shift
        slope = (batch.loss(config, moved[0]).loss - batch.loss(config, moved[1]).loss) / 2e-6
        assert slope == pytest.approx(float(exact[token]), abs=1e-6)


@settings(max_examples=50)
@given(batch=batches)
def test_the_clipped_surrogate_is_that_of_a_plain_loop(batch):
    config, total, start = Objective(clip_low=0.1, clip_high=0.3, dual_clip=2.0), 0.0, 0
    filled = [length for length in batch.lengths if length]
    for length in batch.lengths:
        row = 0.0
        for token in range(start, start + length):
            ratio, advantage = np.exp(float(batch.new[token] - batch.old[token])), float(batch.advantage[token])
            gain = min(ratio * advantage, min(max(ratio, 0.9), 1.3) * advantage)
            row -= max(gain, 2.0 * advantage) if advantage < 0 else gain
        total += row / max(length, 1) / len(filled)
        start += length
    assert float(batch.loss(config).loss) == pytest.approx(total, abs=1e-10)


@given(batch=batches)
def test_step_and_sequence_ratios_agree_where_the_advantage_is_one_number_a_step(batch):
    step, sequence = Objective(ratio="step"), Objective(ratio="sequence")
    torch.testing.assert_close(batch.loss(step).loss, batch.loss(sequence).loss)
    torch.testing.assert_close(gradient(batch, step), gradient(batch, sequence))


@given(batch=batches)
def test_on_the_policy_that_sampled_every_ratio_gives_the_policy_gradient(batch):
    fresh = replace(batch, new=batch.old.clone())
    plain = gradient(fresh, Objective(loss="gpg"))
    for config in (
        Objective(),
        Objective(ratio="step"),
        Objective(ratio="sequence"),
        Objective(loss="cispo"),
        Objective(loss="gmpo"),
    ):
        torch.testing.assert_close(gradient(fresh, config), plain)


def one_token(log_ratio: float, advantage: float, config: Objective) -> tuple[PolicyLoss, float]:
    """The loss of a token, and the gradient of its log-probability."""
    new = torch.tensor([log_ratio - 1.0], requires_grad=True)
    columns = torch.tensor([-1.0]), torch.tensor([advantage]), torch.tensor([0]), torch.tensor([1.0])
    result = policy_loss(new, *columns, config=config)
    result.loss.backward()
    assert torch.isfinite(result.loss) and torch.isfinite(new.grad).all()
    return result, float(new.grad)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [
        (0.1, 1.0, True),
        (0.5, 1.0, False),  # above 1.28, rewarded already
        (0.5, -1.0, True),
        (-0.5, 1.0, True),
        (-0.5, -1.0, False),  # below 0.8, punished already
        (1.5, -1.0, False),  # beyond the dual clip
    ],
)
def test_the_gradient_vanishes_exactly_where_the_clip_says(log_ratio, advantage, moves):
    result, slope = one_token(log_ratio, advantage, Objective(clip_high=0.28, dual_clip=3.0))
    assert (slope != 0.0) == moves
    assert (float(result.metrics["clip_fraction"]) > 0) == (not moves and log_ratio < 1)
    assert (float(result.metrics["dual_clip_fraction"]) > 0) == (log_ratio > 1)


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    _, slope = one_token(3.0, 1.0, Objective(loss="cispo", clip_low=None, clip_high=1.0))
    assert slope == pytest.approx(-2.0)


def test_a_huge_log_ratio_stays_finite():
    one_token(500.0, -1.0, Objective())


def test_clip_cov_takes_out_at_most_its_share_of_the_tokens():
    batch = make_batch([20, 20], seed=1, spread=0.05)
    config = Objective(
        loss="clip_cov", clip_high=None, clip_low=None, cov_fraction=0.1, cov_low=0.0, aggregation="token-mean"
    )
    result = batch.loss(config)
    assert float(result.metrics["selected_fraction"]) == pytest.approx(0.1)
    assert int((gradient(batch, config) == 0).sum()) == 4


def test_kl_cov_charges_the_tokens_of_highest_covariance():
    batch = make_batch([10, 10], seed=2)
    free = Objective(loss="kl_cov", cov_fraction=0.1, cov_kl_coef=0.0, aggregation="token-sum")
    charged = replace(free, cov_kl_coef=2.0)
    extra = batch.loss(charged).loss - batch.loss(free).loss
    covariance = (batch.advantage - batch.advantage.mean()) * (batch.new - batch.new.mean())
    top = covariance.topk(2).indices
    assert float(extra) == pytest.approx(2.0 * float((batch.new - batch.old)[top].abs().sum()))


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_no_tokens_cost_nothing(loss):
    empty = torch.zeros(0, requires_grad=True)
    result = policy_loss(
        empty, empty.detach(), empty.detach(), torch.zeros(0, dtype=torch.int64), empty.detach(),
        config=Objective(loss=loss), selected=torch.zeros(0, dtype=torch.bool),
    )  # fmt: skip
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0 and result.tokens == 0
    assert all(np.isfinite(float(value)) for value in result.metrics.values())


@pytest.mark.parametrize(
    ("config", "correction"),
    [
        (Objective(kl="k3", kl_coef=0.1), None),
        (Objective(entropy_coef=0.1), None),
        (Objective(loss="clip_cov"), None),
        (Objective(), CorrectionConfig()),
    ],
)
def test_a_term_without_its_column_is_refused(config, correction):
    flat = torch.zeros(3)
    with pytest.raises(AssertionError):
        policy_loss(flat, flat, flat, torch.arange(3), flat, config=config, correction=correction)


@given(batch=batches)
def test_the_entropy_bonus_is_aggregated_as_the_loss_is_and_its_gradient_is_the_naive_one(batch):
    plain, bonus = Objective(average="episodes"), Objective(average="episodes", entropy_coef=0.3)
    new = batch.new.clone().requires_grad_()
    (-0.3 * (batch.weight(plain) * entropy(new)).sum()).backward()
    torch.testing.assert_close(gradient(batch, bonus) - gradient(batch, plain), new.grad)


# A token's loss moves its own log-probability alone.
TOKEN_RATIOS = ["grpo", "dapo", "dr_grpo", "dual", "unclipped", "cispo", "gpg", "clip_cov", "kl_cov"]
CORRECTIONS = {
    "token-truncate": CorrectionConfig(cap=1.2),
    "token-mask": CorrectionConfig(cap=1.3, floor=0.8),
    "sequence-truncate": CorrectionConfig(level="sequence", cap=1.5),
    "sequence-mask": CorrectionConfig(level="sequence", cap=2.0, floor=0.0),
}


@pytest.mark.parametrize("name", CORRECTIONS)
@given(batch=batches, loss=st.sampled_from(TOKEN_RATIOS))
def test_with_engine_weights_the_gradient_is_that_of_a_plain_loop(name, batch, loss):
    correction, config, start = CORRECTIONS[name], CONFIGS[loss], 0
    expected, cut = [], 0
    plain = gradient(batch, config)
    for length in batch.lengths:
        gaps = (batch.old - batch.ref)[start : start + length]
        for token in range(length):
            weight = float(gaps.sum().exp() if correction.level == "sequence" else gaps[token].exp())
            outside = weight > correction.cap or weight < (correction.floor or 0.0)
            cut += outside
            kept = min(weight, correction.cap) if correction.floor is None else weight * (not outside)
            expected.append(kept * plain[start + token])
        start += length
    new = batch.new.clone().requires_grad_()
    result = batch.loss(config, new, correction)
    result.loss.backward()
    torch.testing.assert_close(new.grad, torch.stack(expected))
    assert float(result.metrics["engine_weight_cut"]) == pytest.approx(cut / len(expected))


@pytest.mark.parametrize("correction", CORRECTIONS)
@each_config
@settings(max_examples=5)
@given(batch=batches)
def test_where_engine_and_trainer_agree_the_correction_changes_no_bit(name, correction, batch):
    same = replace(batch, ref=batch.old)
    new = [batch.new.clone().requires_grad_() for _ in range(2)]
    results = [same.loss(CONFIGS[name], new[0]), same.loss(CONFIGS[name], new[1], CORRECTIONS[correction])]
    for result in results:
        result.loss.backward()
    assert torch.equal(results[0].loss, results[1].loss) and torch.equal(new[0].grad, new[1].grad)
    told = results[1].metrics
    assert (told["engine_weight_mean"], told["engine_weight_max"], told["engine_weight_cut"]) == (1.0, 1.0, 0.0)


def test_the_divergence_and_the_bonus_are_not_weighed_by_the_correction():
    batch = make_batch([3, 2], seed=1)
    config = Objective(kl="k2", kl_coef=0.5, entropy_coef=0.5)
    with_weights, without = (batch.loss(config, None, each) for each in (CorrectionConfig(cap=1.0), None))
    for name in ("kl_loss", "entropy_loss"):
        assert torch.equal(with_weights.metrics[name], without.metrics[name])
    assert not torch.equal(with_weights.metrics["policy_loss"], without.metrics["policy_loss"])


@settings(max_examples=30)
@given(
    batch=batches,
    parts=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    loss=st.sampled_from(["clip_cov", "kl_cov"]),
)
def test_what_a_loss_picks_does_not_depend_on_how_the_tokens_are_spread(batch, parts, loss):
    config = Objective(loss=loss, cov_fraction=0.3, cov_low=0.0)
    columns = [column.numpy() for column in (batch.new, batch.old, batch.advantage)]
    columns.append(np.random.default_rng(0).random(len(columns[0])))
    whole = selected_tokens(*columns, config)
    rank_of = np.array(parts)[batch.row.numpy()]
    barrier, box = threading.Barrier(3), [np.zeros(0)] * 3

    def process(rank: int) -> bool:
        def every(value: np.ndarray) -> list[np.ndarray]:
            box[rank] = value
            barrier.wait()
            values = list(box)
            barrier.wait()
            return values

        own = rank_of == rank
        return np.array_equal(selected_tokens(*(column[own] for column in columns), config, every), whole[own])

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(process, range(3)))


@pytest.mark.parametrize("fraction", [0.05, 0.2])
def test_clip_cov_leaves_alone_what_the_clip_or_the_bounds_exclude(fraction):
    batch, config = make_batch([30, 30], seed=3), Objective(loss="clip_cov", cov_fraction=fraction, cov_low=0.1)
    new, old, advantage = (column.numpy() for column in (batch.new, batch.old, batch.advantage))
    covariance = (new - new.mean()) * (advantage - advantage.mean())
    picked = selected_tokens(new, old, advantage, np.random.default_rng(0).random(60), config)
    ratio = np.exp(new - old)
    clipped = np.where(advantage > 0, ratio > 1.2, ratio < 0.8)
    assert picked.sum() == int(fraction * 60) and not (picked & clipped).any()
    assert (covariance[picked] > 0.1).all() and (covariance[picked] < 5.0).all()


def test_clip_cov_picks_among_the_tokens_that_the_clip_lets_learn():
    log_ratio, advantage = np.log([1.3, 1.3, 0.7, 0.7]), np.array([1.0, -1.0, 1.0, -1.0])
    config = Objective(loss="clip_cov", cov_low=0.1, clip_low=0.2, clip_high=0.2)
    assert eligible(np.ones(4), log_ratio, advantage, config).tolist() == [False, True, True, False]
    assert eligible(np.array([0.1, 0.2, 9.0]), np.zeros(3), np.ones(3), config).tolist() == [False, True, False]
    free = replace(config, clip_low=None, clip_high=None)
    assert eligible(np.ones(4), log_ratio, advantage, free).all()


def test_one_token_alone_has_no_covariance():
    assert covariances(np.array([-1.0]), np.array([2.0])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"clip_high": -0.1}, UsageError, "clip_high is -0.1"),
        ({"dual_clip": 1.0}, UsageError, r"dual_clip is 1\.0; it must be greater than 1"),
        ({"dual_clip": 3.0, "loss": "cispo"}, UsageError, "dual_clip belongs to loss 'ppo'"),
        ({"loss": "gpg", "ratio": "step"}, UsageError, "loss 'gpg' is defined on token ratios"),
        ({"aggregation": "token-mean", "average": "episodes"}, UsageError, "needs a seq-mean aggregation"),
        ({"kl_coef": -0.1, "kl": "k1"}, UsageError, "kl_coef is -0.1"),
        ({"kl": "k4"}, UnknownName, "Nearest: 'k"),
    ],
)
def test_settings_that_contradict_each_other_and_words_that_are_no_choice_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        Objective(**options)


def test_the_bounds_of_clips_are_settings():
    Objective(clip_low=0.0)
    Objective(clip_low=1.0)


# -- aggregation of token losses, estimates of the divergence, and the loss of values ----------------------------------


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
def test_the_weighted_sum_is_the_aggregation_that_the_name_says(mode, lengths):
    losses = np.random.default_rng(0).normal(size=lengths.sum())
    rows = np.split(losses, np.cumsum(lengths)[:-1])
    weights = token_weights(lengths, config_of(mode))
    assert weights @ losses == pytest.approx(naive(rows, mode), abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("average", ["steps", "episodes"])
@given(lengths=some_lengths, cut=st.integers(0, 8))
def test_two_ranks_that_know_the_totals_have_the_weights_of_one(mode, average, lengths, cut):
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
def test_each_estimator_is_its_formula(difference):
    assert value_and_slope("k1", difference)[0] == pytest.approx(difference, abs=1e-9)
    assert value_and_slope("abs", difference)[0] == pytest.approx(abs(difference), abs=1e-9)
    assert value_and_slope("k2", difference)[0] == pytest.approx(difference**2 / 2, abs=1e-9)
    assert value_and_slope("k3", difference)[0] == pytest.approx(math.exp(-difference) - 1 + difference, abs=1e-9)


@given(st.floats(-3, 3))
def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2(difference):
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
