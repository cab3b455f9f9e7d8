import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.policy.loss import ObjectiveConfig
from trainers.policy.loss.kl import kl_estimate

KINDS = ["k1", "abs", "k2", "k3", "k3+"]


def config_of(kind: str, **options: float) -> ObjectiveConfig:
    return ObjectiveConfig(kl=kind, **options)


def value_and_slope(kind: str, difference: float, **options: float) -> tuple[float, float]:
    new = torch.tensor([difference - 2.0], dtype=torch.float64, requires_grad=True)
    kl = kl_estimate(new, torch.tensor([-2.0], dtype=torch.float64), config_of(kind, **options))
    kl.sum().backward()
    return float(kl.detach()), float(new.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_policies_do_not_diverge(kind: str):
    same = torch.tensor([-0.3, -5.0])
    assert kl_estimate(same, same, config_of(kind)).tolist() == [0.0, 0.0]


@given(st.floats(-5, 5))
def test_k2_and_k3_are_never_negative(difference: float):
    assert value_and_slope("k2", difference)[0] >= 0.0
    assert value_and_slope("k3", difference)[0] >= 0.0


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


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_estimate_the_divergence_without_bias(kind: str):
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum()
    estimate = (policy * kl_estimate(policy.log(), reference.log(), config_of(kind))).sum()
    torch.testing.assert_close(estimate, exact)


def test_the_clamps_of_k3_hold_it_and_its_gradient():
    assert value_and_slope("k3", -30.0, kl_log_ratio_clamp=20.0, kl_clamp=10.0) == (10.0, 0.0)
    assert value_and_slope("k3", -5.0, kl_clamp=10.0) == (10.0, 0.0)
