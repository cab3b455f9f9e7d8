"""Micro-batches of step rows against the naive way: each step row its own forward pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from episodes import token_table
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import row_logprobs, taken_gradients
from tiny_runs import AGGREGATIONS, model, step_table

from envsuite.core.errors import UsageError
from trainers.policy.config import OptimConfig
from trainers.policy.loss import Objective, token_weights
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches, row_sequences
from trainers.policy.rows import ALWAYS, use_rows
from trainers.policy.tree import depth_first, laid_out, one_token
from trainers.policy.update import Updater

SIZE = 61


def _updater(policy: torch.nn.Module, optim: OptimConfig, objective: Objective) -> Updater:
    sgd = torch.optim.SGD(policy.parameters())
    return Updater(Accelerator(cpu=True), Policy(policy), sgd, optim, objective)


def _off(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


@given(seed=st.integers(0, 10**6), append=st.booleans(), share=st.booleans(), budget=st.integers(1, 200))
def test_micro_batches_have_every_response_token_once_within_the_budget(seed, append, share, budget):
    table = step_table(np.random.default_rng(seed), 5, append=append)
    sequences, _ = row_sequences(table)
    longest = max(len(sequence.tokens) for sequence in sequences)
    trees = list(micro_batches(table, budget, share))
    index = np.concatenate([tree.index for tree in trees])
    assert sorted(index.tolist()) == list(range(len(table.response.values)))
    for tree in trees:
        assert (table.response.values[tree.index] == tree.target).all()
        assert len(tree) <= max(budget, longest)
        rows = table.response.row_of[tree.index]
        assert (np.bincount(rows, minlength=len(table))[rows] == table.response.lengths[rows]).all(), "rows stay whole"


@given(seed=st.integers(0, 10**6), append=st.booleans(), budget=st.integers(1, 200))
def test_one_micro_batch_computes_no_token_twice_and_several_only_what_they_share(seed, append, budget):
    table = step_table(np.random.default_rng(seed), 3, append=append)
    sequences, _ = row_sequences(table)
    distinct = {tuple(each.tokens[:end].tolist()) for each in sequences for end in range(1, len(each.tokens) + 1)}
    (whole,) = micro_batches(table, 10**6, True)
    assert len(whole) == len(distinct)
    apart = sum(map(len, micro_batches(table, 10**6, False)))
    assert len(distinct) <= sum(map(len, micro_batches(table, budget, True))) <= apart
    assert apart == sum(len(sequence.tokens) for sequence in sequences)


@given(seed=st.integers(0, 10**6), budget=st.integers(8, 60), walk=st.sampled_from([None, 1.0, 4 / 3]))
def test_no_other_cuts_compute_less(seed, budget, walk):
    table = step_table(np.random.default_rng(seed), 3, append=True).take(np.arange(7))
    sequences, _ = row_sequences(table)
    order, common = depth_first(sequences)
    lengths = np.array([len(sequences[number].tokens) for number in order])

    def price(begin: int, end: int) -> float:
        tokens = len(laid_out(sequences, order[begin:end], common[begin:end]))
        if tokens <= budget or (walk is None and end - begin == 1):
            return float(tokens)
        return float("inf") if walk is None or tokens > max(budget, 2 * lengths.max()) else walk * tokens

    every = (
        sum(price(*cut) + budget / 64 for cut in itertools.pairwise([0, *inner, len(order)]))
        for size in range(len(order))
        for inner in itertools.combinations(range(1, len(order)), size)
    )
    trees = list(micro_batches(table, budget, True, walk))
    found = sum((1.0 if tree.part is None else walk or 1.0) * len(tree) for tree in trees)
    assert found + len(trees) * budget / 64 <= min(every) + 1e-9
    if walk is not None:
        assert found <= walk * (lengths - common).sum() + 1e-9
        assert all((tree.part is None) == (len(tree) <= budget) for tree in trees)


def test_a_response_without_a_prompt_is_named():
    with pytest.raises(UsageError, match=r"row 1 \(episode 1, step 0\) has a response of 2 tokens to an empty prompt"):
        list(micro_batches(token_table([([1], [2]), ([], [3, 4])]), 100, True))


@pytest.mark.parametrize("objective", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_the_gradient_does_not_depend_on_the_micro_batches(objective):
    table = step_table(np.random.default_rng(5), SIZE)
    advantage = np.random.default_rng(6).normal(size=len(table.response.values))
    found = []
    for budget, alone in ((1, True), (10_000, False), (50, False)):
        policy = model("qwen2", SIZE)
        if alone:
            use_rows(policy, ALWAYS)
        updater = _updater(policy, OptimConfig(tokens_per_microbatch=budget), objective)
        grads = updater.gradient(table, advantage)
        found.append(torch.cat([grads[key].flatten() for key in sorted(grads)]))
    assert _off(found[1], found[0]) < 1e-5
    assert _off(found[2], found[0]) < 1e-5


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    table = step_table(np.random.default_rng(5), SIZE)
    policy = model("llama", SIZE)
    naive = row_logprobs(policy, table)
    lengths = table.response.lengths
    advantage = np.random.default_rng(6).normal(size=len(table.response.values))
    objective = Objective(aggregation="seq-mean-token-mean")
    scale = torch.from_numpy(advantage * token_weights(lengths, objective)).float()
    (-(naive * scale).sum()).backward()
    expected = torch.cat([gradient.flatten() for gradient in taken_gradients(policy).values()])
    table.logprob.values[:] = naive.detach().numpy()
    updater = _updater(policy, OptimConfig(), objective)
    grads = updater.gradient(table, advantage)
    found = torch.cat([grads[f"model.{key}"].flatten() for key, _ in policy.named_parameters()])
    assert _off(found, expected) < 1e-5


def test_a_process_without_a_micro_batch_takes_part_with_one_token_and_adds_nothing():
    policy = Policy(model("qwen2", SIZE))
    stats = policy(one_token())
    assert stats.logprob.shape == (1,) and torch.isfinite(stats.logprob).all()
    (stats.logprob.sum() * 0.0).backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters()), "each is synchronised"
