"""Merged steps, shared prefixes and micro-batches against the naive way: each step row its own forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import AGGREGATIONS, model, step_table

from trainers.policy.attention import PrefixPlan
from trainers.policy.config import OptimConfig
from trainers.policy.loss import ObjectiveConfig, token_weights
from trainers.policy.model import Policy
from trainers.policy.packing import merge_steps, micro_batches, one_token
from trainers.policy.selfcheck import sample_batch
from trainers.policy.update import Updater
from trainers.steps import StepTable

SIZE = 61


def _naive(policy: torch.nn.Module, table: StepTable) -> torch.Tensor:
    """Log-probability of each response token, a row at a time."""
    parts = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], table.response[row]
        if len(response):
            logits = policy(torch.tensor([[*prompt, *response]])).logits[0].float().log_softmax(-1)
            where = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
            parts.append(logits[where, torch.tensor(response)])
    return torch.cat(parts)


def _gradient(policy: torch.nn.Module) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    policy.zero_grad()
    return found


def _updater(policy: torch.nn.Module, optim: OptimConfig, objective: ObjectiveConfig) -> Updater:
    sgd = torch.optim.SGD(policy.parameters())
    return Updater(Accelerator(cpu=True), Policy(policy), sgd, optim, objective)


def _off(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


@given(seed=st.integers(0, 10**6), append=st.booleans(), vocabulary=st.sampled_from([2, 61]))
def test_every_response_token_is_in_exactly_one_span_and_every_prompt_before_it(
    seed: int, append: bool, vocabulary: int
) -> None:
    table = step_table(np.random.default_rng(seed), vocabulary, append=append)
    sequences = merge_steps(table)
    spans = [(sequence, span) for sequence in sequences for span in sequence.spans]
    assert sorted(span.row for _, span in spans) == np.flatnonzero(table.response.lengths).tolist()
    for sequence, span in spans:
        assert sequence.tokens[: span.start].tolist() == table.prompt[span.row].tolist()
        assert sequence.tokens[span.start : span.start + span.length].tolist() == table.response[span.row].tolist()
        assert table.episode_id[span.row] == table.episode_id[sequence.spans[0].row]
    for sequence in sequences:
        assert sequence.prompt_length == sequence.spans[0].start
        assert len(sequence.tokens) == sequence.spans[-1].start + sequence.spans[-1].length
    if append:
        whole = len(np.unique(table.episode_id[table.response.lengths > 0]))
        assert len(sequences) == whole, "a memory that appends gives one sequence an episode"


@given(seed=st.integers(0, 10**6), append=st.booleans(), share=st.booleans(), budget=st.integers(1, 200))
def test_micro_batches_cover_every_response_token_once_within_the_budget(
    seed: int, append: bool, share: bool, budget: int
) -> None:
    table = step_table(np.random.default_rng(seed), 5, append=append)
    sequences = merge_steps(table)
    longest = max(len(sequence.tokens) for sequence in sequences)
    batches = list(micro_batches(table, sequences, budget, share))
    index = np.concatenate([batch.index for batch in batches])
    assert sorted(index.tolist()) == list(range(len(table.response.values)))
    for batch in batches:
        assert (table.response.values[batch.index] == batch.target).all()
        assert batch.tokens <= max(budget, longest)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_log_probabilities_and_gradients_are_those_of_independent_rows(name: str, share: bool, budget: int) -> None:
    rng = np.random.default_rng(budget)
    policy = model(name, SIZE)
    for append in (True, False):
        table = step_table(rng, SIZE, append=append)
        weight = torch.from_numpy(rng.normal(size=len(table.response.values))).float()
        naive = _naive(policy, table)
        (naive * weight).sum().backward()
        expected = _gradient(policy)
        wrapped = Policy(policy)
        found = torch.zeros_like(naive)
        for batch in micro_batches(table, merge_steps(table), budget, share):
            stats = wrapped(batch)
            index = torch.from_numpy(batch.index)
            found[index] = stats.logprob.detach()
            (stats.logprob * weight[index]).sum().backward()
        assert float((found - naive.detach()).abs().max()) < 1e-5
        assert _off(_gradient(policy), expected) < 1e-5


@pytest.mark.parametrize("objective", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_the_gradient_does_not_depend_on_the_micro_batches(objective: ObjectiveConfig) -> None:
    table = step_table(np.random.default_rng(5), SIZE)
    advantage = np.random.default_rng(6).normal(size=len(table.response.values))
    found = []
    for budget, share in ((1, False), (10_000, True), (50, True)):
        policy = model("qwen2", SIZE)
        optim = OptimConfig(tokens_per_microbatch=budget, share_prefix=share)
        updater = _updater(policy, optim, objective)
        grads = updater.gradient(table, advantage)
        found.append(torch.cat([grads[key].flatten() for key in sorted(grads)]))
    assert _off(found[1], found[0]) < 1e-5
    assert _off(found[2], found[0]) < 1e-5


def test_at_ratio_one_the_gradient_is_the_policy_gradient() -> None:
    table = step_table(np.random.default_rng(5), SIZE)
    policy = model("llama", SIZE)
    naive = _naive(policy, table)
    lengths = table.response.lengths
    advantage = np.random.default_rng(6).normal(size=len(table.response.values))
    objective = ObjectiveConfig(aggregation="seq-mean-token-mean")
    scale = torch.from_numpy(advantage * token_weights(lengths, objective)).float()
    (-(naive * scale).sum()).backward()
    expected = _gradient(policy)
    table.logprob.values[:] = naive.detach().numpy()
    updater = _updater(policy, OptimConfig(), objective)
    grads = updater.gradient(table, advantage)
    found = torch.cat([grads[f"model.{key}"].flatten() for key, _ in policy.named_parameters()])
    assert _off(found, expected) < 1e-5


def test_a_process_without_a_micro_batch_takes_part_with_one_token_and_adds_nothing() -> None:
    policy = Policy(model("qwen2", SIZE))
    stats = policy(one_token())
    assert stats.logprob.shape == (1,) and torch.isfinite(stats.logprob).all()
    (stats.logprob.sum() * 0.0).backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters()), "each is synchronised"


def test_a_prefix_is_masked_only_where_a_window_is_narrower() -> None:
    batch, _ = sample_batch(SIZE)
    plan = PrefixPlan(batch, torch.device("cpu"))
    width = batch.prefix.shape[1]
    assert plan.prefix_mask(None) is None and plan.prefix_mask(width) is None, "the kernel knows plain causal attention"
    mask = plan.prefix_mask(3)
    assert mask is not None
    back = torch.arange(width)[:, None] - torch.arange(width)
    assert torch.equal(mask[0, 0], (back >= 0) & (back < 3))
