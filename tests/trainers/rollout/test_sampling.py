"""Tokens are drawn from the distribution that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envsuite.playing.engine import Sampling
from trainers.policy.guard import DivergenceError
from trainers.rollout.sampling import mix, sample, uniforms


def expected_distribution(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Temperature, then top-k, then top-p, token by token."""
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    kept = order[: sampling.top_k] if sampling.top_k else order
    total, mass, nucleus = weights[kept].sum(), 0.0, []
    for token in kept:
        if mass >= sampling.top_p * total:
            break
        nucleus.append(token)
        mass += weights[token]
    out = np.zeros(len(weights))
    out[nucleus] = weights[nucleus]
    return out / out.sum()


@pytest.mark.parametrize("width", [12, 1500])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=5),
        Sampling(top_p=0.7),
        Sampling(temperature=1.4, top_k=9, top_p=0.8),
    ],
)
def test_frequencies_match_the_distribution_by_chi_square(width, sampling):
    draws = 20_000 if width < 100 else 5_000
    rng = np.random.default_rng(0)
    logits = np.full(width, -30.0)
    likely = rng.choice(width, 12, replace=False)
    logits[likely] = rng.normal(size=12) * 1.5
    uniform = uniforms(np.arange(draws, dtype=np.uint64), np.zeros(draws, np.uint64))
    ids, logprobs = sample(torch.tensor(logits).float().expand(draws, -1), [sampling] * draws, uniform)
    wanted = expected_distribution(logits, sampling)
    counts = np.bincount(ids, minlength=width)
    assert counts[wanted == 0].sum() == 0
    big = wanted * draws > 5
    chi = ((counts[big] - wanted[big] * draws) ** 2 / (wanted[big] * draws)).sum()
    freedom = big.sum() - 1
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 4
    tempered = torch.tensor(logits / sampling.temperature).log_softmax(-1)[ids]
    np.testing.assert_allclose(logprobs, tempered.numpy(), atol=1e-5)


@given(
    st.integers(1, 700),
    st.integers(0, 2**32),
    st.sampled_from([0.0, np.nextafter(1, 0), 0.5]),
    st.sampled_from([Sampling(), Sampling(top_p=0.3), Sampling(top_k=3), Sampling(temperature=0.01)]),
)
def test_a_token_of_no_probability_is_never_drawn(width, seed, draw, sampling):
    rng = np.random.default_rng(seed)
    logits = np.where(rng.random(width * 3) < 0.7, -np.inf, rng.normal(size=width * 3) * 10)
    logits[rng.integers(width * 3)] = 1.0
    ids, logprobs = sample(torch.tensor(logits)[None], [sampling], np.array([draw]))
    assert np.isfinite(logits[ids.item()]) and np.isfinite(logprobs.item())


def test_rows_with_settings_of_their_own_are_drawn_as_if_alone():
    settings = [Sampling(), Sampling(temperature=0), Sampling(top_k=2), Sampling(), Sampling(top_p=0.5, temperature=2)]
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    draws = np.linspace(0.1, 0.9, 5)
    together, logprobs = sample(logits, settings, draws)
    alone = [sample(logits[i : i + 1], settings[i : i + 1], draws[i : i + 1])[0].item() for i in range(5)]
    assert together.tolist() == alone
    assert together[1] == logits[1].argmax()
    for row, temperature in enumerate((1, 1, 1, 1, 2)):  # greedy rows have log-probabilities at temperature 1
        expected = (logits[row] / temperature).log_softmax(-1)[together[row]]
        assert abs(logprobs[row] - expected) < 1e-5


def test_uniforms_depend_on_seed_and_position_only_and_are_uniform():
    seeds = np.arange(3000, dtype=np.uint64)
    first = uniforms(seeds, np.full(3000, 7, np.uint64))
    np.testing.assert_array_equal(uniforms(seeds[::-1], np.full(3000, 7, np.uint64))[::-1], first)
    second = uniforms(seeds, np.full(3000, 8, np.uint64))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
    counts, _ = np.histogram(np.concatenate([first, second]), bins=20, range=(0, 1))
    assert ((counts - 300) ** 2 / 300).sum() < 19 + 4 * np.sqrt(38) + 4
    assert mix(-1, 0) == mix(2**64 - 1, 0) != mix(-1, 1)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
def test_logits_that_are_not_finite_are_an_error_with_a_remedy(spoilt, temperature):
    logits = torch.zeros(2, 700)
    logits[1, 678] = spoilt
    with pytest.raises(DivergenceError, match=r"the model's logits are not finite.* lower optim\.lr"):
        sample(logits, [Sampling(temperature=temperature)] * 2, np.array([0.5, 0.5]))
