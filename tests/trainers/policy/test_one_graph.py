"""A tree's pass as one graph, forward and backward, once the plan of the tree is made: what ``torch.compile`` takes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from architectures import architecture
from pretended_cuda import flash_on_cpu
from row_by_row import same_gradients, taken_gradients

from benchmarks.families import VOCABULARY, built, some_tree
from trainers.policy.attention import NAME, attending
from trainers.policy.flat import flatten
from trainers.policy.rows import rows_reason


@pytest.mark.seconds
@pytest.mark.parametrize("kernel", [nullcontext, flash_on_cpu], ids=["tiles", "flash"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", pytest.param("qwen3_5_text", marks=pytest.mark.slow)])
def test_the_layers_of_a_tree_are_one_graph_forward_and_backward(name: str, kernel: Any) -> None:
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
