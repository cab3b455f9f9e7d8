"""What a GPU computes is what a CPU computes, to the rounding of the number format."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from gpu_checks import engine_gap, kernel_sums
from gpu_models import SIZE, gpu_model
from tiny_runs import save_model, step_table

from benchmarks.families import alone, some_tree
from envsuite.core.errors import MissingExtra
from trainers.policy import kernels, recurrent
from trainers.policy.accumulation import Batch, log_probabilities
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, AttentionKernel, ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.kernels import check_kernel, choose_kernel
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.optimizer import make_optimizer
from trainers.policy.precision import computing
from trainers.policy.rows import ALWAYS, by_rows, use_rows
from trainers.policy.tree import TokenSequence, token_tree
from trainers.policy.update import Updater
from trainers.settings import ConfigError
from trainers.steps import StepTable

HYBRIDS = {"qwen3_5": ("fla", "causal_conv1d"), "lfm2": ("causal_conv1d",), "bamba": ("mamba_ssm", "causal_conv1d")}
"""Models with recurrent layers or convolutions, and the libraries that compute these where they are installed."""
MODELS = ("llama", "qwen2", "qwen2-sliding", "gemma2", "gpt2")
KERNELS: tuple[AttentionKernel, ...] = ("flex", "flash_attention_2", "flash_attention_3")
OPTIM = OptimConfig(tokens_per_microbatch=200, lr=0.01)
CPU = torch.device("cpu")


def _table() -> StepTable:
    return step_table(np.random.default_rng(0), SIZE, groups=6, members=3)


def _computed(
    name: str,
    device: torch.device,
    dtype: ComputeDtype,
    kernel: AttentionKernel = "sdpa",
    rows: bool = False,
    checkpointing: bool = False,
) -> tuple[np.ndarray, torch.Tensor]:
    """Log-probabilities of the table's response tokens, and the whole gradient, in float32 on the CPU."""
    kernels._compile.cache_clear()  # a run has fewer models, for which the limit is
    table, model = _table(), gpu_model(name).to(device)
    choose_kernel(model, kernel)
    if rows:
        use_rows(model, ALWAYS)
    if checkpointing:
        checkpoint_activations(model)
    policy = Policy(model, temperature=0.7, compute_dtype=dtype)
    config = OptimConfig(tokens_per_microbatch=200)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    advantage = np.random.default_rng(1).normal(size=len(table.response.values))
    logprobs = log_probabilities(policy, table, config)
    table.logprob.values[:] = logprobs  # so that no ratio is clipped, whatever is rounded
    AcceleratorState._reset_state(True)  # a process has one device, and here each in turn
    updater = Updater(Accelerator(cpu=device.type == "cpu"), policy, optimizer, config, Objective())
    found = updater.gradient(table, advantage)
    return logprobs, torch.cat([found[key].flatten().float().cpu() for key in sorted(found)])


def _close(ours: tuple[Any, torch.Tensor], own: tuple[Any, torch.Tensor], gap: float, share: float) -> None:
    assert np.abs(ours[0] - own[0]).mean() <= gap
    assert (ours[1] - own[1]).norm() <= share * own[1].norm()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("name", [*MODELS, *HYBRIDS])
def test_in_float32_log_probabilities_and_gradients_are_those_of_a_cpu(name, rows, device):
    _close(_computed(name, device, "float32", rows=rows), _computed(name, CPU, "float32", rows=rows), 1e-4, 1e-3)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("name", [*MODELS, *HYBRIDS])
def test_in_bfloat16_they_are_those_of_float32_to_its_rounding(name, checkpointing, device):
    ours = _computed(name, device, "bfloat16", checkpointing=checkpointing)
    _close(ours, _computed(name, CPU, "float32"), 0.02, 0.1)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_in_a_tree_is_what_it_is_alone_with_and_without_the_libraries(name, installed, device, monkeypatch):
    """In bfloat16; in float32 the libraries are never used."""
    lacking = [library for library in HYBRIDS[name] if importlib.util.find_spec(library) is None]
    if installed and lacking:
        pytest.skip(f"needs {' and '.join(lacking)}")
    model = gpu_model(name)
    module = sys.modules[type(model).__module__]
    for function in [] if installed else recurrent._IN_TREE.keys() & vars(module).keys():
        monkeypatch.setattr(module, function, inspect.unwrap(vars(module)[function]))
    mixers = [part for part in model.modules() if any(isinstance(child, torch.nn.Conv1d) for child in part.children())]
    if "kwargs" not in inspect.signature(type(mixers[0]).forward).parameters:
        pytest.skip(f"this version of transformers gives the layers of {name} no plan of a tree")
    policy = Policy(model.to(device), compute_dtype="bfloat16")
    assert not by_rows(policy)
    tree, sequences = some_tree()
    with computing("bfloat16", device), torch.no_grad():
        wanted = torch.cat([alone(policy.model, tokens) for tokens in sequences])
    found = policy(tree).logprob
    found.sum().backward()
    assert float((found - wanted).detach().abs().mean()) <= 0.02
    assert all(bool(p.grad.isfinite().all()) for p in policy.parameters() if p.grad is not None)


@pytest.mark.cuda_only
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "gpt2"])
def test_kernels_of_attention_have_the_log_probabilities_and_gradients_of_pytorchs(name, kernel, checkpointing, device):
    _available(kernel)
    ours = _computed(name, device, "bfloat16", kernel, checkpointing=checkpointing)
    _close(ours, _computed(name, device, "bfloat16"), 0.02, 0.1)


@pytest.mark.cuda_only
def test_rows_of_many_lengths_are_computed_by_flex_attention_without_a_matrix_of_all_scores(device):
    _available("flex")
    kernels._compile.cache_clear()
    model = gpu_model("llama").to(device)
    choose_kernel(model, "flex")
    policy = Policy(model, compute_dtype="bfloat16")
    torch.cuda.reset_peak_memory_stats()
    for tokens in range(1000, 16_000, 500):
        tree = token_tree([TokenSequence.of(np.arange(tokens) % SIZE, np.arange(tokens - 1), 0)])
        with torch.no_grad():
            policy(tree)
        policy(tree).logprob.sum().backward()
    assert torch.cuda.max_memory_allocated() < 2**31, "those of four heads would take 3.8 GB in float32, and copies"


def _available(kernel: AttentionKernel) -> None:
    try:
        check_kernel(ModelConfig(attention=kernel, compute_dtype="bfloat16"))
    except (ConfigError, MissingExtra) as error:  # says what is missing
        pytest.skip(str(error))


def test_hidden_states_are_those_of_a_cpu(device):
    wanted = [Fingerprint(layer, pooling) for layer in (-1, -2) for pooling in ("last", "mean")]
    found = [at_prompt_ends(gpu_model("qwen2").to(place), _table(), wanted, budget=100) for place in (device, CPU)]
    for ours, own in zip(*found, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-3, atol=1e-3)


@pytest.mark.cuda_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["causal", "masked", "plain", "one"])
def test_the_engines_kernel_gives_the_sums_that_merging_needs(shape, dtype, device):
    kernel_sums(shape, dtype, device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_and_trainer_agree(name, dtype, device):
    gap = engine_gap(gpu_model(name).to(device), dtype, OPTIM)
    assert gap <= (1e-4 if dtype == "float32" else 0.02)


@pytest.mark.parametrize("state", ["float32", "8bit"])
def test_the_optimiser_learns(state, device):
    if state == "8bit" and importlib.util.find_spec("torchao") is None:
        pytest.skip("needs torchao: pip install 'envsuite[8bit]'")
    table = _table()
    policy = Policy(gpu_model("qwen2").to(device), compute_dtype="bfloat16")
    config = OptimConfig(tokens_per_microbatch=500, lr=0.003, state="8bit" if state == "8bit" else "float32")
    optimizer = make_optimizer(policy.parameters(), config)
    updater = Updater(Accelerator(cpu=device.type == "cpu"), policy, optimizer, config, Objective(loss="gpg"))
    before = log_probabilities(policy, table, config).mean()
    for step in range(5):
        updater.update(Batch(table, np.ones(len(table.response.values))), np.random.default_rng(step))
    assert log_probabilities(policy, table, config).mean() > before + 0.1


@pytest.mark.parametrize("base", ["bfloat16", "nf4"])
def test_an_adapter_on_frozen_weights_learns_and_its_reference_stays(base, device, tmp_path):
    pytest.importorskip("peft", reason="needs peft: pip install 'envsuite[lora]'")
    if base == "nf4":
        if device.type == "cpu":
            pytest.skip("a rehearsal on the CPU leaves out what needs CUDA")
        pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install bitsandbytes")
    from trainers.policy.adapter import as_reference, keep_reference

    save_model(tmp_path)
    adapter = AdapterConfig(rank=8, alpha=16, base=base)
    settings = ModelConfig(path=str(tmp_path), compute_dtype="bfloat16", adapter=adapter, gradient_checkpointing=True)
    model, tokenizer = load_model(settings).to(device), load_tokenizer(settings)
    table = step_table(np.random.default_rng(0), len(tokenizer), groups=6, members=3)
    policy = Policy(model, compute_dtype="bfloat16")
    keep_reference(model)
    config = OptimConfig(tokens_per_microbatch=500, lr=0.02)
    optimizer = make_optimizer(policy.parameters(), config)
    updater = Updater(Accelerator(cpu=device.type == "cpu"), policy, optimizer, config, Objective(loss="gpg"))
    before = log_probabilities(policy, table, config)
    for step in range(5):
        updater.update(Batch(table, np.ones(len(table.response.values))), np.random.default_rng(step))
    assert log_probabilities(policy, table, config).mean() > before.mean() + 0.05
    with as_reference(model):
        np.testing.assert_allclose(log_probabilities(policy, table, config), before, atol=0.05)
