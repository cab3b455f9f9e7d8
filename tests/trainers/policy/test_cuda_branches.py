"""CUDA's branches, forced on the CPU and with values (:mod:`pretended_cuda`), against what a CPU computes."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from architectures import architecture
from gpu_checks import engine_gap, kernel_sums
from pretended_cuda import OnGPU, moved, pretended_cuda, varlen_attention
from transformers import PreTrainedModel

from benchmarks.families import built, some_tree
from envsuite.playing.engine import Sampling
from trainers.policy.attention import Scoring, _runs_flash, _takes_flash
from trainers.policy.config import ComputeDtype, OptimConfig
from trainers.policy.kernels import NAMES, choose_kernel, kernel_of
from trainers.policy.model import Policy
from trainers.policy.rows import by_rows
from trainers.rollout.plain_engine import PlainEngine

OPTIM = OptimConfig(tokens_per_microbatch=200)
LIBRARIES = {"qwen3_5_text": "torch_chunk_gated_delta_rule", "bamba": "mamba2_chunk_scan"}
"""By model the function of transformers that a library computes on a GPU."""


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with pretended_cuda() as device:
        yield device


def _trained(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of a tree, and the whole gradient."""
    tree, _ = some_tree()
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=len(tree.index))).float()
    found = policy(tree).logprob
    (found * weight).sum().backward()
    gradients = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return found.detach().as_subclass(torch.Tensor), torch.cat(gradients)


def _off(ours: tuple[torch.Tensor, torch.Tensor], own: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
    """The mean difference of log-probabilities, and the relative one of gradients."""
    return np.array([float((ours[0] - own[0]).abs().mean()), float((ours[1] - own[1]).norm() / own[1].norm())])


def _like_a_cpu(ours: tuple[torch.Tensor, torch.Tensor], name: str, dtype: ComputeDtype) -> None:
    """Up to rounding: in bfloat16 no further from the values in float32 than a CPU is, in about."""
    own = _trained(Policy(_model(name)))
    near = 1e-5 if dtype == "float32" else 1.5 * _off(_trained(Policy(_model(name), compute_dtype=dtype)), own)
    assert (_off(ours, own) <= near).all(), (_off(ours, own), near)


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen2", "qwen2_sliding", "gemma2", "qwen3_5_text", "lfm2", "bamba"])
def test_a_tree_on_a_gpu_has_the_log_probabilities_and_gradients_of_a_cpu(name, dtype, gpu):
    policy = Policy(moved(_model(name)), compute_dtype=dtype)
    assert policy.model.device == gpu and not by_rows(policy)
    _like_a_cpu(_trained(policy), name, dtype)


def test_pytorchs_flash_attention_is_taken_where_it_fits(gpu, monkeypatch):
    def takes(size: int = 64, values: int | None = None, sinks: Any = None, softcap: float | None = None) -> bool:
        query, value = (torch.zeros(3, 4, n or size, dtype=torch.bfloat16, device=gpu) for n in (size, values))
        return _takes_flash(query, value, sinks, Scoring(softcap=softcap))

    assert takes() and takes(8) and takes(192) and takes(256)
    assert not (takes(20) or takes(200) or takes(264) or takes(values=32) or takes(sinks=1.0) or takes(softcap=5.0))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert not takes()
    for name in ("is_flash_attention_available", "flash_sdp_enabled"):
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.cuda, name, lambda: False)
            assert not takes()
    assert not _runs_flash(gpu, torch.float32) and not _runs_flash(torch.device("cpu"), torch.bfloat16)


def _model(name: str) -> PreTrainedModel:
    return architecture("qwen2-sliding", 61) if name == "qwen2_sliding" else built(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["causal", "masked", "plain", "one"])
def test_the_engines_kernel_gives_the_sums_that_merging_needs(shape, dtype, gpu):
    kernel_sums(shape, dtype, gpu)


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2-sliding", "gemma2", "qwen3_5_text", "bamba"])
def test_engine_and_trainer_agree_on_a_gpu(name, dtype, gpu):
    def made() -> PreTrainedModel:
        return built(name) if name in LIBRARIES else architecture(name, 61)

    near = 1e-5 if dtype == "float32" else 2 * engine_gap(made(), dtype, OPTIM)
    assert engine_gap(moved(made()), dtype, OPTIM) <= near


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_is_taken_on_a_gpu_and_gives_the_gradients_of_pytorchs(kernel, gpu, monkeypatch):
    def varlen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **named: Any) -> Any:
        assert query.dtype == key.dtype == value.dtype == torch.bfloat16 and isinstance(query, OnGPU)
        calls.append(query.shape)
        out = varlen_attention(query, key, value, **named)
        return (out, None) if kernel == "flash_attention_3" else out

    calls: list[torch.Size] = []
    module = types.ModuleType("a kernel")
    module.flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernel.replace("flash_attention_2", "flash_attn").replace(
        "flash_attention_3", "flash_attn_interface"), module)  # fmt: skip
    model = moved(built("qwen2"))
    choose_kernel(model, kernel)
    assert kernel_of(model) == NAMES[kernel]
    policy = Policy(model, compute_dtype="bfloat16")
    calls.clear()
    _like_a_cpu(_trained(policy), "qwen2", "bfloat16")
    assert len(calls) == model.config.num_hidden_layers


@pytest.mark.parametrize("first", ["trained", "sampled"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_compute_on_a_gpu_in_bfloat16_and_nowhere_else(name, first, gpu, monkeypatch):
    calls: list[bool] = []
    on_cpu, in_float32, sampled, rounded = (built(name) for _ in range(4))
    _installed(type(on_cpu).__module__, LIBRARIES[name], monkeypatch, calls)
    if first == "sampled":
        PlainEngine(moved(sampled)).generate([[1, 2, 3]], Sampling(max_tokens=2))
    _like_a_cpu(_trained(Policy(moved(in_float32))), name, "float32")
    _trained(Policy(on_cpu, compute_dtype="bfloat16"))
    assert not calls, "on a CPU, and in float32"
    _like_a_cpu(_trained(Policy(moved(rounded), compute_dtype="bfloat16")), name, "bfloat16")
    assert True in calls and False in calls, "with states that a run goes on from, and without"


def _installed(module: str, name: str, monkeypatch: pytest.MonkeyPatch, calls: list[bool]) -> None:
    """As if a library was installed, which refuses float32 and the CPU."""
    plain: Callable[..., Any] = inspect.unwrap(vars(sys.modules[module])[name])

    @functools.wraps(plain)
    def library(*args: Any, **named: Any) -> Any:
        assert args[0].device.type == "cuda" and args[0].dtype == torch.bfloat16
        calls.append(any(named.get(state) is not None for state in ("initial_state", "initial_states")))
        return plain(*args, **named)

    monkeypatch.setattr(sys.modules[module], name, library)
