"""Kernels of attention against PyTorch's own, as far as a CPU can run them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from architectures import architecture
from pretended_cuda import varlen_attention
from torch.nn.attention.flex_attention import create_mask
from transformers import AttentionInterface, PreTrainedModel

from envsuite.core.errors import DataError, MissingExtra
from trainers.policy import kernels
from trainers.policy.attention import NAME, attending
from trainers.policy.config import ModelConfig
from trainers.policy.flat import flatten
from trainers.policy.kernels import NAMES, check_kernel, choose_kernel, kernel_of, seen_tokens, varlen_tree_attention
from trainers.policy.loading import load_model
from trainers.policy.model import Policy
from trainers.policy.selfcheck import sample_tree
from trainers.policy.tree import TokenSequence, TokenTree, token_tree
from trainers.policy.tree_plan import TreePlan
from trainers.settings import ConfigError

SIZE = 31
CPU = torch.device("cpu")
COMPUTED = ("llama", "qwen2", "qwen2-sliding", "gemma2", "gemma3", "mistral")


def _tree(shared: bool) -> TokenTree:
    tree, sequences = sample_tree(SIZE)
    if shared:
        return tree
    return token_tree([TokenSequence.of(one, np.arange(len(one) - 1), 0) for one in sequences], share=False)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("shared", [True, False])
def test_the_mask_of_blocks_sees_the_path_of_a_token(window, shared):
    tree = _tree(shared)
    tokens = len(tree)
    found = create_mask(seen_tokens(TreePlan(tree, CPU), window), None, None, tokens, tokens, device="cpu")[0, 0]
    for token in range(tokens):
        assert found[token].nonzero()[:, 0].tolist() == tree.path(token)[-(window or tokens) :].tolist()


def _logits(model: PreTrainedModel, tree: TokenTree, name: str) -> torch.Tensor:
    flat = flatten(tree, model)
    with attending(model, name):
        return model(**flat.arguments, logits_to_keep=flat.place).logits[0]


@pytest.mark.seconds
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", COMPUTED)
def test_flex_attention_gives_the_log_probabilities_of_pytorchs_attention(name):
    model, tree = architecture(name, SIZE), _tree(True)
    with torch.no_grad():
        ours, own = (_logits(model, tree, kernel).log_softmax(-1) for kernel in (NAMES["flex"], NAME))
    torch.testing.assert_close(ours, own, rtol=0, atol=1e-5)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """The graphs that are compiled where FlexAttention is, as on a GPU; what computes them is PyTorch itself."""
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    monkeypatch.setattr(kernels, "_INTERPRETED", set())
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)  # gradients on a CPU
    monkeypatch.setattr("trainers.policy.model.kernel_of", lambda model: NAMES["flex"])
    kernels._compile.cache_clear()
    yield graphs
    kernels._compile.cache_clear()


def _long_tree(tokens: int) -> TokenTree:
    """Two sequences that begin alike, of so many tokens together."""
    rng = np.random.default_rng(tokens)
    first, ends = rng.integers(0, SIZE, tokens // 2), (tokens // 4, tokens - tokens // 2 - tokens // 4)
    sequences = [np.concatenate([first, rng.integers(0, SIZE, end)]) for end in ends]
    return token_tree([TokenSequence.of(one, np.arange(len(one) - 1), n * tokens) for n, one in enumerate(sequences)])


WINDOWS = {"llama": 1, "qwen2-sliding": 2, "gemma2": 2, "gemma3": 2, "mistral": 1}
"""Kinds of layers of an architecture: by their sliding window, or none."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_few_functions_are_compiled_for_rows_of_any_length(name, compiled):
    policy = Policy(architecture(name, SIZE))
    for part, budget in ((None, 3), (160, 6)):  # in one pass, then in parts, all but the first behind a path
        counts = []
        for tokens in (290, 411, 523, 700, 999):
            tree = replace(_long_tree(tokens), part=part)
            with torch.no_grad():
                policy(tree)
            policy(tree)
            counts.append(len(compiled) // WINDOWS[name])
        assert counts[1:] == [budget] * 4, "with and without gradients, and the mask"


@pytest.mark.slow
def test_at_the_limit_of_compilations_a_row_is_refused_and_not_computed_by_a_matrix_of_all_scores(
    compiled, monkeypatch
):
    monkeypatch.setattr(kernels, "_VARIANTS", 1)
    policy = Policy(architecture("llama", SIZE))
    with torch.no_grad():
        policy(_long_tree(290))
        policy(_long_tree(411))
        with pytest.raises(DataError, match=r"model.attention is flex, which was compiled 1 times.*set it to sdpa"):
            policy(_long_tree(20))
    assert len(compiled) == 2, "the mask and the attention"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", COMPUTED)
def test_gathered_keys_give_the_logits_and_gradients_of_pytorchs_attention(name, shared):
    AttentionInterface.register("test_varlen", partial(varlen_tree_attention, varlen=lambda: varlen_attention))
    model, tree = architecture(name, SIZE), _tree(shared)
    found = []
    for kernel in ("test_varlen", NAME):
        model.zero_grad()
        logits = _logits(model, tree, kernel)
        logits.log_softmax(-1)[:, 0].sum().backward()
        found.append((logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    (ours, gradient), (own, expected) = found
    torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-5)
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("kernel", [NAMES["flex"], "test_varlen"])
def test_attention_sinks_are_refused(kernel):
    AttentionInterface.register("test_varlen", partial(varlen_tree_attention, varlen=lambda: varlen_attention))
    with pytest.raises(DataError, match=r"attention sinks.*set it to sdpa"):
        _logits(architecture("gpt_oss", SIZE), _tree(True), kernel)


def test_a_model_on_a_cpu_attends_as_pytorch_does():
    model = architecture("llama", SIZE)
    choose_kernel(model, "flex")
    assert kernel_of(model) == NAME
    assert kernel_of(model.to("meta")) == NAMES["flex"]
    assert kernel_of(architecture("llama", SIZE).to("meta")) == NAME, "the choice is the model's own"


def test_transformers_takes_no_kernel_for_one_of_its_own():
    assert not any(word in name for name in NAMES.values() for word in ("flash", "flex", "sdpa", "eager"))


def test_kernels_in_float32_are_refused():
    with pytest.raises(ConfigError, match=r"attention is flex.*compute_dtype: bfloat16, or attention: sdpa"):
        ModelConfig(attention="flex")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
@pytest.mark.parametrize("kernel", ["flex", "flash_attention_2", "flash_attention_3"])
def test_without_a_gpu_kernels_are_refused_before_weights_are_looked_for(kernel):
    with pytest.raises(ConfigError, match=f"model.attention is {kernel}, which needs CUDA.*sdpa"):
        load_model(ModelConfig(path="no/such-model", attention=kernel, compute_dtype="bfloat16"))


def _gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> Callable[[str], None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    return lambda kernel: check_kernel(ModelConfig(attention=kernel, compute_dtype="bfloat16"))  # type: ignore[arg-type]


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch):
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)
    check = _gpu(monkeypatch, (9, 0))
    check("flex")
    with pytest.raises(MissingExtra, match=r"pip install flash-attn .*flex or sdpa"):
        check("flash_attention_2")
    with pytest.raises(MissingExtra, match=r"flash_attn_interface, for Hopper.*setup.py install"):
        check("flash_attention_3")


def test_flash_attention_3_is_refused_on_other_gpus_than_hopper(monkeypatch):
    module = types.ModuleType("flash_attn_interface")
    module.flash_attn_varlen_func = varlen_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    _gpu(monkeypatch, (9, 0))("flash_attention_3")
    with pytest.raises(ConfigError, match="for Hopper GPUs, and this one is a GPU"):
        _gpu(monkeypatch, (8, 0))("flash_attention_3")


def test_heads_that_flex_attention_cannot_compile_are_refused(monkeypatch):
    model = architecture("llama", SIZE)
    model.config.head_dim = 8
    choose_kernel(model, "flex")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    choose_kernel(model, "sdpa")
    with pytest.raises(ConfigError, match=r"flex, which on a GPU needs heads of 16.*have 8; set it to sdpa"):
        choose_kernel(model, "flex")
    model.config.head_dim = 16
    choose_kernel(model, "flex")
