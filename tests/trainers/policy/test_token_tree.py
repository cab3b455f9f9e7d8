"""Token trees: their structure, and what a model computes in them against each sequence by itself."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import architecture
from episodes import token_table
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pretended_cuda import flash_on_cpu
from row_by_row import same_gradients, taken_gradients
from tiny_runs import step_table
from transformers import PreTrainedModel

from trainers.policy import attention, tree_plan
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig
from trainers.policy.hidden import Fingerprint, before_tokens
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.tree import TokenSequence, TokenTree, token_tree
from trainers.policy.walk import CachedPast, KeysValues
from trainers.steps import StepTable

SIZE = 7
STYLES = ("llama", "qwen2", "qwen3", "mistral", "gemma3")


def _related(some: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Rows that go on from others, end before them, or part from them inside the response."""
    found = []
    for prompt, response in some:
        found += [([*prompt, *response], [1]), (prompt, response[:1]), (prompt, [*response[:-1], 0, 2])]
    return found


def _tokens(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2), min_size=1, max_size=most)


rows = st.lists(st.tuples(_tokens(24), _tokens(9)), min_size=1, max_size=8).flatmap(
    lambda some: st.lists(st.sampled_from([*some, *_related(some)]), min_size=1, max_size=10)
)
"""Prompts and responses: duplicates, prefixes of each other, single tokens, branches inside a response."""


def _table(some: list[tuple[list[int], list[int]]]) -> StepTable:
    return token_table(some, group_id=np.arange(len(some)) // 3)


def _sequences(some: list[tuple[list[int], list[int]]]) -> list[TokenSequence]:
    first = np.cumsum([0, *(len(response) for _, response in some)]).tolist()
    return [
        TokenSequence.of(np.array([*prompt, *response]), len(prompt) - 1 + np.arange(len(response)), start)
        for (prompt, response), start in zip(some, first, strict=False)
    ]


def _ancestors(tree: TokenTree, token: int) -> list[int]:
    found = [token]
    while (before := int(tree.parent[found[-1]])) >= 0:
        found.append(before)
    return found[::-1]


@given(rows, st.booleans())
def test_the_path_of_each_target_spells_its_sequence(some, share):
    sequences = _sequences(some)
    tree = token_tree(sequences, share=share)
    wanted = [(one.tokens[: place + 1].tolist(), target, index) for one in sequences
              for place, target, index in zip(one.place, one.target, one.index, strict=True)]  # fmt: skip
    found = [(tree.tokens[tree.path(place)].tolist(), target, index)
             for place, target, index in zip(tree.place.tolist(), tree.target, tree.index, strict=True)]  # fmt: skip
    assert found == wanted


@given(rows, st.booleans())
def test_parents_depths_ends_and_chains_tell_of_one_tree(some, share):
    tree = token_tree(_sequences(some), share=share)
    for token in range(len(tree)):
        path = _ancestors(tree, token)
        assert tree.path(token).tolist() == path and tree.depth[token] == len(path) - 1
    assert [begin for begin, _ in tree.chains][1:] == [end for _, end in tree.chains][:-1]
    assert tree.chains[0][0] == 0 and tree.chains[-1][1] == len(tree)
    for begin, end in tree.chains:
        assert (tree.parent[begin + 1 : end] == np.arange(begin, end - 1)).all()
    if share:
        children = list(zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True))
        assert len(set(children)) == len(children), "no token has two children alike"


def test_the_tree_does_not_depend_on_the_order_of_the_sequences():
    some = [([1, 2], [0, 1]), ([1], [2, 2]), ([1, 2, 0], [1]), ([0], [1])]
    one, other = token_tree(_sequences(some)), token_tree(_sequences(some[::-1]))
    for name in ("tokens", "depth", "parent", "end"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_tokens_after_the_last_target_are_not_computed_and_images_have_ids_below_zero():
    tree = token_tree([TokenSequence.of(np.array([5, -70_000, -3, 6, 6]), np.array([2]), 0)])
    assert tree.tokens.tolist() == [5, -70_000, -3] and tree.target.tolist() == [6]


def _model(name: str, way: str) -> PreTrainedModel:
    model = architecture(name, SIZE)
    if "adapter" in way:
        add_adapter(model, AdapterConfig(rank=4, alpha=8), "owner/base")
        with torch.no_grad():
            for tensor in (p for key, p in model.named_parameters() if "lora_B" in key):
                tensor.normal_(std=0.2)
    return model


def _alone(model: PreTrainedModel, table: StepTable) -> list[torch.Tensor]:
    """Log-probabilities, entropies and hidden states of each response token, a row at a time, by the model itself."""
    found = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], torch.from_numpy(table.response[row]).long()
        out = model(torch.tensor([[*prompt, *response]]), use_cache=False, output_hidden_states=True)
        ends = range(len(prompt), len(prompt) + len(response))
        scores, inner = out.logits[0, len(prompt) - 1 : -1].log_softmax(-1), out.hidden_states[-2][0]
        found.append((
            scores.gather(1, response[:, None])[:, 0], -(scores.exp() * scores).sum(-1),
            out.hidden_states[-1][0, len(prompt) - 1 : -1], torch.stack([inner[:end].mean(0) for end in ends]),
        ))  # fmt: skip
    return [torch.cat(column) for column in zip(*found, strict=True)]


PLANS = {"tiles": (3, 1000, None), "chains": (3, 4, None), "default": (64, 256, None), "one call": (3, 4, 2**26),
         "some calls": (3, 4, 640)}  # fmt: skip
"""Widths of tiles, lengths from which a chain is attended to by itself, and the most elements of keys that are gathered
for a call of FlashAttention, or ``None`` without it."""


@pytest.mark.parametrize(
    "way",
    ["kept", *(pytest.param(way, marks=pytest.mark.slow) for way in ("recomputed", "adapter")), "adapter, recomputed"],
)
@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=3)
@given(some=rows, budget=st.sampled_from([1, 40, 10_000]))
def test_everything_is_what_independent_sequences_give(name, way, some, budget):
    table, model = _table(some), _model(name, way)
    naive = copy.deepcopy(model)
    naive.set_attn_implementation("eager")
    rng = np.random.default_rng(1)
    weight, spread = (torch.from_numpy(rng.normal(size=len(table.response.values))).float() for _ in range(2))
    logprob, entropy, states, inner = _alone(naive, table)
    expected = (logprob * weight + entropy * spread).sum()
    expected.backward()
    wanted = taken_gradients(naive)
    if "recomputed" in way:
        checkpoint_activations(model)
    for plan, (tile, long, gathered) in PLANS.items():
        note(plan)
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch, nullcontext() if gathered is None else flash_on_cpu():
            patch.setattr(tree_plan, "_NARROW", tile)
            patch.setattr(tree_plan, "_LONG", long)
            patch.setattr(attention, "_GATHERED", gathered)
            policy, loss = Policy(model).train(), 0.0
            for tree in micro_batches(table, budget, True):
                stats, index = policy(tree), torch.from_numpy(tree.index)
                part = (stats.logprob * weight[index] + stats.entropy * spread[index]).sum()
                part.backward()
                loss += float(part.detach())
                torch.testing.assert_close(stats.logprob, logprob[index].detach(), rtol=0, atol=1e-5)
                torch.testing.assert_close(stats.entropy, entropy[index].detach(), rtol=0, atol=1e-5)
            everywhere = np.arange(len(table.response.values))
            model.train(False)
            last, mean = before_tokens(
                model, table, [Fingerprint(), Fingerprint(-2, "mean")], everywhere, budget=budget
            )
        assert loss == pytest.approx(float(expected.detach()), abs=1e-4)
        torch.testing.assert_close(torch.from_numpy(last), states.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.from_numpy(mean), inner.detach(), rtol=1e-5, atol=1e-5)
        same_gradients(taken_gradients(model), wanted, least=1.0)


@pytest.mark.parametrize("way", [nullcontext, flash_on_cpu])
def test_what_is_gathered_is_not_kept_for_the_backward_pass(way):
    """A long prompt with many short branches: the memory that waits for the backward pass grows with tokens alone."""
    rng = np.random.default_rng(0)
    prompt, kept = rng.integers(0, SIZE, 512).tolist(), []
    for branches in (64, 128):
        tree = token_tree(_sequences([(prompt, rng.integers(0, SIZE, 9).tolist()) for _ in range(branches)]))
        held: dict[int, int] = {}

        def pack(tensor: torch.Tensor, held: dict[int, int] = held) -> torch.Tensor:
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
            return tensor

        model = architecture("llama", SIZE)
        model.config.max_position_embeddings = 1024
        policy = Policy(model)
        with way():
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = policy(tree).logprob.sum()
            kept.append(sum(held.values()) / len(tree))
            loss.backward()
    assert kept[1] < 1.1 * kept[0]


@pytest.mark.seconds
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", [*STYLES, "gpt2", "gemma2", "gpt_oss"])
@settings(max_examples=3)
@given(some=rows, most=st.integers(1, 40))
def test_a_tree_in_parts_gives_what_it_gives_in_one_pass(name, checkpointing, some, most):
    table, found = _table(some), []
    (tree,) = micro_batches(table, 10_000, True)
    rng = np.random.default_rng(1)
    weight, spread = (torch.from_numpy(rng.normal(size=len(tree.target))).float() for _ in range(2))
    for part, way in ((None, nullcontext), (most, nullcontext), (most, flash_on_cpu)):
        model = architecture(name, SIZE)
        if checkpointing:
            checkpoint_activations(model)
        with pytest.MonkeyPatch.context() as patch, way():
            patch.setattr(tree_plan, "_LONG", 256 if part is None else 4)
            stats = Policy(model).train()(replace(tree, part=part))
            (stats.logprob * weight + stats.entropy * spread).sum().backward()
        found.append((model, stats))
    (one, whole), *others = found
    wanted = taken_gradients(one)
    for other, parts in others:
        torch.testing.assert_close(parts.logprob, whole.logprob, rtol=0, atol=1e-5)
        torch.testing.assert_close(parts.entropy, whole.entropy, rtol=0, atol=1e-5)
        same_gradients(taken_gradients(other), wanted, least=1.0)


def test_a_pass_of_a_tree_in_parts_has_no_more_tokens_than_are_allowed_and_computes_each_once():
    tree = token_tree(_sequences([([1] * 30, [0, 1, 2] * 3), ([1] * 30, [2, 1]), ([0, 1], [1])]))
    policy, widths = Policy(architecture("llama", SIZE)), []
    policy.model.base_model.layers[0].register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    with torch.no_grad():
        policy(replace(tree, part=7))
    assert max(widths) == 7 and sum(widths) == len(tree)


@pytest.mark.seconds
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_nothing_of_a_tree_in_parts_is_left_after_its_backward_pass(checkpointing, monkeypatch):
    tree = token_tree(_sequences([([1] * 30, [0, 1, 2] * 3), ([1] * 30, [2, 1]), ([0, 1], [1])]))
    model, made = architecture("llama", SIZE), []
    joined = CachedPast.join

    def noted(self: CachedPast, layer: int, key: torch.Tensor, value: torch.Tensor) -> KeysValues:
        made.append(weakref.ref(key))
        return joined(self, layer, key, value)

    monkeypatch.setattr(CachedPast, "join", noted)
    if checkpointing:
        checkpoint_activations(model)
    Policy(model).train()(replace(tree, part=7)).logprob.sum().backward()
    gc.collect()
    assert len(made) > 20 and [one() for one in made if one() is not None] == []


def test_a_tree_is_computed_in_parts_where_that_saves_work_or_a_row_is_too_long():
    prompt = list(range(7)) * 10
    table = _table([([*prompt, row % 3, row // 3], [1, 2]) for row in range(9)])

    def parts(budget: int, walk: float | None) -> list[int | None]:
        return [tree.part for tree in micro_batches(table, budget, True, walk)]

    assert parts(1000, 1.0) == [None], "one micro-batch computes nothing twice"
    assert parts(80, None) == [None] * 3 and parts(80, 1.0) == [80], "three compute the prompt three times"
    assert parts(80, 4.0) == [None] * 3 and parts(72, 4.0) == [72], "a row does not fit"


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", STYLES)
def test_recomputed_layers_give_the_same_gradient_bit_for_bit(name, compute_dtype):
    table, gradients = step_table(np.random.default_rng(3), SIZE), []
    for recomputes in (False, True):
        model = architecture(name, SIZE)
        if recomputes:
            checkpoint_activations(model)
        policy = Policy(model, compute_dtype=compute_dtype).train()
        for batch in micro_batches(table, 40):
            stats = policy(batch)
            (stats.logprob.sum() + 0.1 * stats.entropy.sum()).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert gradients[0] and all(torch.equal(kept, again) for kept, again in zip(*gradients, strict=True))
