"""Log-probabilities and entropies from hidden states, a part of the tokens at a time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import COMPUTED, architecture
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from policies import logprobs
from pretended_cuda import GIB, moved, pretended_cuda
from row_by_row import Largest
from tiny_runs import step_table
from transformers import CohereConfig, CohereForCausalLM

from trainers.policy import statistics
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.statistics import OutputLayer

SIZE, WIDTH, TOKENS = 23, 6, 11


def _naive(layer: torch.nn.Linear, softcap: float | None, states: torch.Tensor, target: torch.Tensor, heat: float):  # type: ignore[no-untyped-def]
    logits = layer(states)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    rows = (logits / heat).log_softmax(-1)
    return rows.gather(1, target[:, None])[:, 0], -(rows.exp() * rows).sum(-1)


@given(
    rows=st.integers(1, TOKENS + 1),
    temperature=st.sampled_from([0.4, 1.0, 1.7]),
    softcap=st.sampled_from([None, 2.0]),
    bias=st.booleans(),
    frozen=st.booleans(),
    terms=st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)]),
)
@examples(max_examples=60)
def test_values_and_gradients_are_those_of_the_whole_logits(rows, temperature, softcap, bias, frozen, terms):
    torch.manual_seed(1)
    layer = torch.nn.Linear(WIDTH, SIZE, bias=bias, dtype=torch.float64).requires_grad_(not frozen)
    states = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    target, weight = torch.randint(0, SIZE, (TOKENS,)), torch.randn(2, TOKENS, dtype=torch.float64)
    wanted = [states, *(p for p in layer.parameters() if p.requires_grad)]

    def gradients(logprob: torch.Tensor, entropy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = torch.zeros(())
        for factor, some, value in zip(terms, weight, (logprob, entropy), strict=True):
            if factor:  # a term that is left out has no gradient at all
                loss = loss + factor * (some * value).sum()
        return torch.autograd.grad(loss, wanted)

    stats = OutputLayer(layer, softcap, elements=rows * SIZE).stats(states, target, temperature)
    logprob, entropy = _naive(layer, softcap, states, target, temperature)
    torch.testing.assert_close(stats.logprob, logprob)
    torch.testing.assert_close(stats.entropy, entropy)
    for ours, own in zip(gradients(stats.logprob, stats.entropy), gradients(logprob, entropy), strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COMPUTED)
def test_the_parts_of_a_micro_batch_give_what_the_whole_gives(name, compute_dtype):
    model, table = architecture(name, SIZE), step_table(np.random.default_rng(3), SIZE)
    policy = Policy(model, temperature=0.4, compute_dtype=compute_dtype).train()
    assert policy.output is not None, "the logits of every model that is computed here come in parts"
    found = []
    for elements in (1, 5 * SIZE, 10**9):
        policy.output = replace(policy.output, elements=elements)
        for batch in micro_batches(table, 10_000, True):
            stats = policy(batch)
            (stats.logprob.sum() + 0.1 * stats.entropy.sum()).backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    scale = max(float(gradient.abs().max()) for gradient in found[-1])
    near = 1e-5 if compute_dtype == "float32" else 2e-2  # bfloat16 rounds the weight's gradient once per part
    for parts in found[:-1]:
        for ours, own in zip(parts, found[-1], strict=True):
            assert float((ours - own).abs().max()) < near * scale


def test_no_more_logits_exist_at_a_time_than_are_allowed():
    model, table = architecture("llama", SIZE), step_table(np.random.default_rng(3), SIZE)
    policy = Policy(model).train()
    for elements, most in ((3 * SIZE, 3 * SIZE), (10**9, len(table.response.values) * SIZE)):
        assert policy.output is not None
        policy.output = replace(policy.output, elements=elements)
        with Largest(policy.output.layer.weight) as seen:
            for batch in micro_batches(table, 10_000, True):
                policy(batch).logprob.sum().backward()
        assert seen.elements == most


@pytest.mark.parametrize(("room", "most"), [(0, 3), (4 * 16 * SIZE * 5, 5), (63 * GIB, 24)])
def test_on_a_gpu_the_gradient_of_the_weight_is_added_to_less_often_where_memory_is_free(room, most, monkeypatch):
    torch.manual_seed(1)
    layer, states = torch.nn.Linear(WIDTH, SIZE, bias=False), torch.randn(30, WIDTH)
    target, gradients = torch.randint(0, SIZE, (30,)), []
    monkeypatch.setattr(statistics, "free", lambda device: room)
    sizes: list[int] = []
    inner = statistics._gradient
    monkeypatch.setattr(
        statistics, "_gradient", lambda logits, *rest: sizes.append(len(logits)) or inner(logits, *rest)
    )
    for place in (nullcontext, pretended_cuda):
        with place():
            one = moved(layer) if place is pretended_cuda else layer
            where = one.weight.device
            stats = OutputLayer(one, elements=3 * SIZE).stats(states.to(where), target.to(where), 1.0)
            gradients.append(torch.autograd.grad(stats.logprob.sum(), one.weight)[0].as_subclass(torch.Tensor))
    assert sizes[:10] == [3] * 10 and max(sizes[10:]) == most and sum(sizes[10:]) == 30
    torch.testing.assert_close(gradients[1], gradients[0])


def test_logits_that_are_no_linear_function_of_the_states_are_the_models_own():
    torch.manual_seed(0)
    config = CohereConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        logit_scale=0.25, initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model, table = CohereForCausalLM(config), step_table(np.random.default_rng(3), SIZE)
    policy = Policy(model)
    assert policy.output is None
    (batch,) = micro_batches(table, 10_000, False)
    logprob = policy(batch).logprob.detach()
    for row in range(3):
        where = np.flatnonzero(np.isin(batch.index, np.flatnonzero(table.response.row_of == row)))
        own = logprobs(model, table.prompt[row], table.response[row])
        np.testing.assert_allclose(logprob[where], own, rtol=1e-4, atol=1e-5)
