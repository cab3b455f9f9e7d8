"""Cosines between the gradients of steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from episodes import token_table
from tiny_runs import model

from trainers.policy import coupling
from trainers.policy.coupling import gradient_cosines
from trainers.policy.model import Policy

STEPS = token_table([((1, 2, 3), (4, 5)), ((1, 2, 3), (4, 5)), ((7, 8), (9,)), ((1, 2, 3), (6, 5))])


def test_equal_steps_have_equal_gradients_and_others_the_models_own():
    net = model("qwen2", 16)
    found = gradient_cosines(Policy(net), STEPS)
    assert found.shape == (6,) and found[0] == pytest.approx(1.0, abs=1e-5)
    rows = []
    for prompt, response in (((1, 2, 3), (4, 5)), ((7, 8), (9,))):
        logits = net(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        loss = logits.log_softmax(-1)[range(len(response)), response].sum()
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))]))
    expected = torch.nn.functional.cosine_similarity(*rows, dim=0).item()
    assert found[1] == found[2] == pytest.approx(expected, abs=1e-4) and abs(expected) < 0.9


def test_of_a_large_model_the_last_layer_and_some_weights_stand_for_all(monkeypatch):
    whole = gradient_cosines(Policy(model("qwen2", 16)), STEPS)
    monkeypatch.setattr(coupling, "SMALL", 1000)
    last = gradient_cosines(Policy(model("qwen2", 16)), STEPS)
    assert last[0] == pytest.approx(1.0, abs=1e-5) and not np.allclose(last, whole, atol=0.01)
    monkeypatch.setattr(coupling, "_COMPONENTS", 4000)
    assert gradient_cosines(Policy(model("qwen2", 16)), STEPS) == pytest.approx(last, abs=0.15)


def test_a_single_step_has_no_other():
    assert len(gradient_cosines(Policy(model("qwen2", 16)), STEPS.take(np.array([0])))) == 0
    assert len(gradient_cosines(Policy(model("qwen2", 16)), STEPS.take(np.array([], np.int64)))) == 0
