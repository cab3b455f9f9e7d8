"""AdamW as one kernel, and with moments in 8 bit: it learns like AdamW, takes the memory it says, and resumes."""

from __future__ import annotations

import sys

import pytest
import torch
from pretended_cuda import moved, pretended_cuda
from safetensors.torch import load_file
from tiny_runs import tokenizer, write_settings
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from envsuite.core.errors import MissingExtra
from trainers.policy.config import OptimConfig
from trainers.policy.optimizer import make_optimizer
from trainers.policy.stateful import OptimizerState
from trainers.train import main

EIGHT = OptimConfig(lr=1e-2, state="8bit")


@pytest.fixture
def torchao() -> None:
    pytest.importorskip("torchao", reason="torchao is not installed: pip install 'envsuite[8bit]'")


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 8))


def _step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    given = torch.randn(64, 96, generator=torch.Generator().manual_seed(seed))
    (module(given) - 1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_without_torchao_the_setting_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MissingExtra, match=r"optim.state: 8bit needs torchao \(.*\): pip install 'envsuite\[8bit\]'"):
        make_optimizer(_module().parameters(), EIGHT)


def test_frozen_parameters_are_left_out():
    module = _module()
    module[0].requires_grad_(False)
    (group,) = make_optimizer(module.parameters(), OptimConfig()).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in module[2].parameters()]


def test_on_a_gpu_one_kernel_takes_the_step_and_what_it_leaves_goes_on_on_a_cpu():
    plain, own, config = _module(), _module(), OptimConfig(lr=1e-2, weight_decay=0.1)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    with pretended_cuda():
        there = moved(_module())
        fused = make_optimizer(there.parameters(), config)
        _step(there, fused, 0)
        state = OptimizerState(there, fused).state()
        own.load_state_dict(there.state_dict())
    again = make_optimizer(own.parameters(), config)
    OptimizerState(own, again).load(state)
    assert [optimizer.param_groups[0]["fused"] for optimizer in (fused, again)] == [True, None]
    _step(own, again, 1)
    for seed in (0, 1):
        _step(plain, expected, seed)
    for ours, wanted in zip(own.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_moments_in_8_bit_learn_alike_and_are_saved_and_restored_bit_for_bit(torchao):
    modules = [_module(), _module(), _module()]
    optimizers = [
        make_optimizer(m.parameters(), c) for m, c in zip(modules[:2], (EIGHT, OptimConfig(lr=1e-2)), strict=True)
    ]
    for seed in range(6):
        for module, optimizer in zip(modules[:2], optimizers, strict=True):
            _step(module, optimizer, seed)
    weights = [torch.cat([p.detach().flatten() for p in module.parameters()]) for module in modules]
    moved = [weights[number] - weights[2] for number in (0, 1)]
    assert float((moved[0] - moved[1]).norm() / moved[1].norm()) < 0.05
    state = OptimizerState(modules[0], optimizers[0]).state()
    large = state["state"]["0.weight"]["exp_avg"]["parts"]
    assert sum(part.nbytes for part in large.values()) < 0.6 * modules[0][0].weight.nbytes
    again = make_optimizer(modules[2].parameters(), EIGHT)
    OptimizerState(modules[2], again).load(state)
    modules[2].load_state_dict(modules[0].state_dict())
    for seed in (6, 7):
        _step(modules[0], optimizers[0], seed)
        _step(modules[2], again, seed)
    assert all(torch.equal(a, b) for a, b in zip(modules[0].parameters(), modules[2].parameters(), strict=True))


@pytest.mark.slow
def test_a_run_with_moments_in_8_bit_resumes_to_the_same_end(torchao, place):
    wide = LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, eos_token_id=tokenizer().eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(wide).save_pretrained(place / "model")  # its moments are large enough to be quantised
    for name, iterations, more in (("whole", 4, []), ("parts", 2, []), ("parts", 4, ["--resume"])):
        changes = {"optim.state": "8bit", "optim.schedule": "constant"}  # it would depend on the number of iterations
        config = write_settings(place, output=str(place / name), iterations=iterations, **changes)
        assert main(["--config", str(config), *more]) == 0
    ends = [place / name / "tiny" / "checkpoints" / "iteration-00004" for name in ("whole", "parts")]
    assert any(key.endswith("/parts/codes") for key in load_file(ends[0] / "optimizer.safetensors"))
    one, two = (load_file(end / "model.safetensors") for end in ends)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert (ends[0] / "optimizer.safetensors").read_bytes() == (ends[1] / "optimizer.safetensors").read_bytes()
