"""A tree's pass, and the engine's, as one graph once the plan is made: what ``torch.compile`` takes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from architectures import architecture
from pretended_cuda import flash_on_cpu
from row_by_row import same_gradients, taken_gradients

from benchmarks.families import VOCABULARY, built, some_tree
from envsuite.playing.engine import Sampling
from trainers.policy.attention import NAME, attending
from trainers.policy.flat import flatten
from trainers.policy.rows import rows_reason
from trainers.rollout import step_plan
from trainers.rollout.hf_engine import HFEngine


@pytest.mark.seconds
@pytest.mark.parametrize("kernel", [nullcontext, flash_on_cpu], ids=["tiles", "flash"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", pytest.param("qwen3_5_text", marks=pytest.mark.slow)])
def test_the_layers_of_a_tree_are_one_graph_forward_and_backward(name, kernel):
    model = built(name) if name == "qwen3_5_text" else architecture(name, VOCABULARY)
    assert rows_reason(model) is None
    torch._dynamo.reset()
    with kernel(), attending(model, NAME):
        arguments = flatten(some_tree()[0], model).arguments
        outputs, gradients = [], []
        for compute in (model.base_model, torch.compile(model.base_model, fullgraph=True, backend="aot_eager")):
            states = compute(**arguments).last_hidden_state
            states.square().sum().backward()
            outputs.append(states.detach())
            gradients.append(taken_gradients(model))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    same_gradients(gradients[1], gradients[0], near=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", pytest.param("qwen3_5_text", marks=pytest.mark.slow)])
def test_a_decoding_step_is_one_graph_with_the_logits_of_the_eager_one(name, monkeypatch):
    monkeypatch.setattr(step_plan, "COMPILED", False)
    monkeypatch.setattr(step_plan, "_CALL", {"cpu": 5})  # so that the beginning that a group shares is a call
    model = built(name) if name == "qwen3_5_text" else architecture(name, VOCABULARY)
    engine, eager, steps = HFEngine(model), model.forward, []
    torch._dynamo.reset()

    def forward(**arguments: Any) -> Any:
        plan = arguments["slot_plan"]
        kept = {} if plan.cache.states is None else plan.cache.states._buffers
        before = {call: states.clone() for call, states in kept.items()}
        output = eager(**arguments)
        if len(plan.tokens) == len(plan.spans):
            for call, states in before.items():
                before[call] = kept[call].clone()
                kept[call].copy_(states)
            if plan.carried is not None:
                plan.carried.calls = 0
            again = torch.compile(eager, fullgraph=True, backend="aot_eager")(**arguments)
            torch.testing.assert_close(again.logits, output.logits, rtol=0, atol=0)
            assert all((kept[call] == states).all() for call, states in before.items())
            steps.append(len(plan.calls(None)))
        return output

    model.forward = forward
    engine.generate([list(range(9))] * 3 + [[5, 6]], Sampling(max_tokens=3), seed=0)
    assert len(steps) == 2 and min(steps) > 1
