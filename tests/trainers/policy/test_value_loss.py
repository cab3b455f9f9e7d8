import pytest
import torch

from trainers.policy.loss.value_loss import value_loss


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
