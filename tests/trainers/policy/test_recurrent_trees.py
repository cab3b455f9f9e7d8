"""Recurrent layers and convolutions in a tree of tokens, or by rows: what each sequence gives by itself."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import same_gradients, taken_gradients
from transformers import PreTrainedModel

from benchmarks.families import alone, built, some_tree
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig
from trainers.policy.model import Policy
from trainers.policy.precision import computing
from trainers.policy.recurrent import TreeLevels
from trainers.policy.rows import by_rows, use_rows
from trainers.policy.tree import TokenSequence, TokenTree, token_tree

SIZE = 61
DELTA = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"]
CONVOLUTIONS = ["lfm2", "lfm2_moe"]
STATE_SPACES = ["bamba", "nemotron_h", "granitemoehybrid", "falcon_h1", "zamba2"]
FAMILIES = DELTA + CONVOLUTIONS + STATE_SPACES
ROWS = ["jamba", "mamba", "bloom", "recurrent_gemma"]
"""Families that are computed by rows."""


def forest(sequences: list[np.ndarray]) -> TokenTree:
    return token_tree([TokenSequence.of(own, np.arange(len(own) - 1), 100 * n) for n, own in enumerate(sequences)])


def adapted(one: PreTrainedModel) -> None:
    add_adapter(one, AdapterConfig(rank=4), "base")
    torch.manual_seed(9)
    with torch.no_grad():
        for name, parameter in one.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["plain", "recomputed", "adapted"])
@pytest.mark.parametrize("name", FAMILIES + ROWS)
def test_log_probabilities_and_gradients_are_those_of_single_sequences(name, kind):
    one = built(name)
    if kind == "adapted":
        adapted(one)
    tree, sequences = some_tree()
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(tree.index))).float()
    wanted = torch.cat([alone(one, tokens) for tokens in sequences])
    (wanted * weight).sum().backward()
    gradients = taken_gradients(one)
    if kind == "recomputed":
        checkpoint_activations(one)
    policy = Policy(one).train()
    assert by_rows(policy) == (name in ROWS) and len(tree) < sum(map(len, sequences)), "a tree shares"
    found = policy(tree).logprob
    (found * weight).sum().backward()
    near = 1e-5 if name in ROWS else 1e-4
    assert float((found - wanted).detach().abs().max()) < near
    same_gradients(taken_gradients(one), gradients, near)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "bamba"])
def test_an_adapter_on_weights_in_bfloat16_is_computed_in_a_tree(name):
    one = built(name).to(torch.bfloat16)
    add_adapter(one, AdapterConfig(rank=4, base="bfloat16"), "base")
    policy = Policy(one, compute_dtype="bfloat16")
    assert not by_rows(policy)
    tree, sequences = some_tree()
    with computing("bfloat16", one.device):
        wanted = torch.cat([alone(one, tokens) for tokens in sequences])
    assert float((policy(tree).logprob - wanted).detach().abs().mean()) < 0.05, "rounding alone"


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has modules of transformers compute in float64 what they compute in float32."""
    for name in ("qwen3_5", "lfm2", "bamba"):
        module = sys.modules.get(f"transformers.models.{name}.modeling_{name}")
        if module is None:
            built({"qwen3_5": "qwen3_5_text"}.get(name, name))
            module = sys.modules[f"transformers.models.{name}.modeling_{name}"]
        source = re.sub(r"torch\.float(32)?\b", "torch.float64", inspect.getsource(module)).replace(
            ".float()", ".double()"
        )
        exact = ModuleType(f"{module.__name__}_doubled")
        exact.__package__, exact.__file__ = module.__package__, module.__file__
        monkeypatch.setitem(sys.modules, exact.__name__, exact)
        exec(compile(source, exact.__name__, "exec"), vars(exact))
    yield


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "bamba"])
def test_in_float64_a_tree_differs_from_rows_by_rounding_alone(name, doubled):
    """And in float32 it is no further from the values in float64 than rows are."""
    tree, _ = some_tree()
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(tree.index)))
    torch.manual_seed(0)
    template, found = built(name), {}
    exact = sys.modules[f"{type(template).__module__}_doubled"]
    for kind, dtype in itertools.product(("tree", "rows"), (torch.float64, torch.float32)):
        place = exact if dtype is torch.float64 else sys.modules[type(template).__module__]
        one = vars(place)[type(template).__name__](template.config).to(dtype)
        one.load_state_dict(template.state_dict())
        if kind == "rows":
            use_rows(one, "a test")
        policy = Policy.__new__(Policy)
        torch.nn.Module.__init__(policy)
        policy.model, policy.temperature, policy.output = one.train(), 1.0, None
        policy.compute_dtype = "float32"
        assert by_rows(policy) == (kind == "rows")
        logprob = policy(tree).logprob
        (logprob * weight.to(logprob.dtype)).sum().backward()
        found[kind, dtype] = (logprob.detach().double(), {n: g.double() for n, g in taken_gradients(one).items()})
    near = found["rows", torch.float64]
    assert found["tree", torch.float64][0].sub(near[0]).abs().max() < 1e-10
    same_gradients(found["tree", torch.float64][1], near[1], 1e-10)
    off = [float((found[kind, torch.float32][0] - near[0]).abs().mean()) for kind in ("tree", "rows")]
    assert off[0] < 1.5 * off[1] + 1e-7, off


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=12), min_size=1, max_size=8))
def test_a_tree_is_cut_into_runs_that_go_on_from_the_ends_of_others(texts):
    tree = forest([np.array(text) for text in texts])
    kept = np.flatnonzero(np.arange(len(tree)) % 5 == 3)
    levels = TreeLevels.of(tree, torch.device("cpu"), kept)
    seen, ends, last = [], np.zeros(0, np.int64), list[int]()
    for depth, level in enumerate(levels.levels):
        after = []
        for runs in level:
            for row, parent in zip(runs.tokens.numpy(), runs.parents.numpy(), strict=True):
                own = row[row < len(tree)]
                assert (np.diff(own) == 1).all() and (tree.parent[own[1:]] == own[:-1]).all()
                assert tree.parent[own[0]] == (ends[parent] if depth else -1)
                assert depth or (tree.parent[: own[0]] < 0).sum() == parent
                after.append(own[-1])
            seen += runs.tokens.numpy().ravel()[runs.real.numpy()].tolist()
            lengths = (runs.tokens.numpy() < len(tree)).sum(1)
            assert 2 * lengths.min() >= lengths.max()
        ends = np.array(after)
        last += after
    assert np.array(last)[slice(None) if levels.kept is None else levels.kept.numpy()].tolist() == kept.tolist()
    assert sorted(seen) == list(range(len(tree))) and np.array(seen)[levels.order.numpy()].tolist() == sorted(seen)
    assert sum(runs.tokens.numel() for level in levels.levels for runs in level) < 2 * len(tree)
