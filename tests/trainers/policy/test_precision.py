"""Computing in bfloat16: weights and optimiser state stay float32, and all parts of a run compute alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from policies import logprobs
from safetensors.torch import load_file
from tiny_runs import model, step_table, tokenizer, write_settings

from envsuite.playing.engine import Sampling
from trainers.credit.critic import ValueModel
from trainers.policy.accumulation import Batch, log_probabilities
from trainers.policy.config import ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.loading import load_model
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.precision import computing
from trainers.policy.update import Updater
from trainers.processes.distributed import run_guarded
from trainers.report.metrics import read_metrics
from trainers.rollout.hf_engine import HFEngine
from trainers.train import main

SIZE = 61
CPU = torch.device("cpu")


def _updater(policy: Policy, optimizer: torch.optim.Optimizer) -> Updater:
    return Updater(Accelerator(cpu=True), policy, optimizer, OptimConfig(lr=1e-6), Objective(), iterations=10)


def test_ten_steps_at_1e_6_move_nearly_every_weight(place):
    loaded = load_model(ModelConfig(path=str(place / "model"), compute_dtype="bfloat16"))
    before = {name: p.detach().clone() for name, p in loaded.named_parameters()}
    policy = Policy(loaded, compute_dtype="bfloat16")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)
    updater = _updater(policy, optimizer)
    rng = np.random.default_rng(0)
    for _ in range(10):
        table = step_table(rng, len(tokenizer()))
        table.logprob.values[:] = log_probabilities(policy, table, OptimConfig())
        updater.update(Batch(table, rng.normal(size=len(table.response.values))), rng)
    assert updater.steps == 10
    moved = total = 0
    for name, p in loaded.named_parameters():
        learnt = (before[name].abs() > 1e-3) & (optimizer.state[p]["exp_avg_sq"] > 0)
        moved += int((p != before[name])[learnt].sum())
        total += int(learnt.sum())
    assert total > 10_000 and moved > 0.99 * total
    for state in optimizer.state.values():
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in loaded.parameters())


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_gradients_in_bfloat16_are_those_in_float32_to_five_per_cent(name):
    table = step_table(np.random.default_rng(1), SIZE)
    advantage = np.random.default_rng(2).normal(size=len(table.response.values))
    found = []
    formats: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
    for compute_dtype in formats:
        policy = Policy(model(name, SIZE), compute_dtype=compute_dtype)
        table.logprob.values[:] = log_probabilities(policy, table, OptimConfig())
        gradient = _updater(policy, torch.optim.SGD(policy.parameters())).gradient(table, advantage)
        assert all(part.dtype == torch.float32 for part in gradient.values())
        found.append(torch.cat([part.flatten() for part in gradient.values()]))
    off = float((found[1] - found[0]).norm() / found[0].norm())
    assert 1e-3 < off < 0.05, "bfloat16 rounds to 0.4 %; without rounding nothing was computed in it"


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("loss", ["ppo", "kl_cov"])
@given(st.integers(0, 50), st.integers(5, 80), st.integers(1, 3))
@settings(max_examples=6, phases=[Phase.generate])
def test_before_the_first_optimiser_step_every_ratio_is_exactly_1(compute_dtype, loss, seed, budget, parts):
    table = step_table(np.random.default_rng(seed), SIZE, groups=4)
    policy = Policy(model("qwen2", SIZE), compute_dtype=compute_dtype)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-30)
    optim = OptimConfig(lr=1e-30, minibatches=parts, tokens_per_microbatch=budget)
    updater = Updater(Accelerator(cpu=True), policy, optimizer, optim, Objective(loss=loss), recompute=True)
    advantage = np.random.default_rng(seed).normal(size=len(table.response.values))
    told = updater.update(Batch(table, advantage), np.random.default_rng(seed)).train
    assert (told["ratio_max"], told["ratio_mean"], told["approx_kl"], told["clip_fraction"]) == (1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_engine_and_trainer_agree_within_bfloat16(temperature):
    policy, table = model("qwen2", SIZE), step_table(np.random.default_rng(3), SIZE, append=False)
    engine = HFEngine(policy, compute_dtype="bfloat16")
    prompts = [table.prompt[row].tolist() for row in range(len(table))]
    done = engine.generate(prompts, Sampling(temperature=temperature, max_tokens=12), seed=0)
    off: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for compute_dtype, differences in off.items():
        with computing(compute_dtype, CPU):  # type: ignore[arg-type]
            for prompt, completion in zip(prompts, done, strict=True):
                own = logprobs(policy, prompt, completion.token_ids, temperature)
                differences.extend(np.abs(own - completion.logprobs).tolist())
    assert np.mean(off["bfloat16"]) < 0.02 / temperature
    assert np.max(off["bfloat16"]) < 0.3 / temperature
    assert np.mean(off["float32"]) > 1e-4, "the engine computes in bfloat16"


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_weights_that_the_engine_rounds_once_are_those_that_autocast_rounds_each_time(name, monkeypatch):
    policy, sampling = model(name, SIZE), Sampling(max_tokens=12)

    def sampled(engine: HFEngine) -> list[np.ndarray]:
        return [done.logprobs for done in engine.generate([[1, 2, 3], [4, 5]], sampling, seed=0)]

    engine = HFEngine(policy, compute_dtype="bfloat16")
    once = sampled(engine)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    engine.sync((), 1)
    after = sampled(engine)
    assert any((one != two).any() for one, two in zip(once, after, strict=True)), "new weights are rounded anew"
    monkeypatch.setattr("trainers.rollout.hf_engine.rounded_weights", lambda *_, **__: {})
    for one, two in zip(after, sampled(HFEngine(policy, compute_dtype="bfloat16")), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_readers_of_hidden_states_compute_in_the_same_format():
    policy, table = model("llama", SIZE), step_table(np.random.default_rng(4), SIZE)
    critic = {kind: ValueModel(policy.base_model, kind) for kind in ("float32", "bfloat16")}
    for value in critic.values():
        torch.nn.init.ones_(value.value.weight)
    (batch, *_) = micro_batches(table, 10_000, True)
    with torch.no_grad():
        values = [critic[kind](batch) for kind in ("float32", "bfloat16")]
    states = [
        at_prompt_ends(policy, table, [Fingerprint()], budget=100, compute_dtype=kind)[0]
        for kind in ("float32", "bfloat16")
    ]
    for exact, rounded in (values, [torch.from_numpy(part) for part in states]):
        assert rounded.dtype == torch.float32
        assert 1e-4 < float((exact - rounded).norm() / exact.norm()) < 0.03


def test_float32_is_computed_in_float32_within_any_autocast():
    policy, table = model("llama", SIZE), step_table(np.random.default_rng(5), SIZE)
    alone = log_probabilities(Policy(policy), table, OptimConfig())
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_array_equal(log_probabilities(Policy(policy), table, OptimConfig()), alone)


def test_a_run_in_bfloat16_with_recomputed_activations_trains_and_saves_float32_weights(place):
    changes = {"model.compute_dtype": "bfloat16", "model.gradient_checkpointing": True, "evaluation.envs": []}
    assert main(["--config", str(write_settings(place, iterations=2, **changes))]) == 0
    records = [r for r in read_metrics(place / "runs/tiny/metrics.jsonl") if "train/logprob_gap" in r]
    assert len(records) == 2 and all(0 < record["train/grad_norm"] < np.inf for record in records)
    # Equal formats, other kernels: rounding differs, but no more than between two ways to compute in bfloat16.
    assert all(1e-6 < record["train/logprob_gap"] < 0.1 for record in records)
    saved = load_file(place / "runs/tiny/checkpoints/iteration-00002/model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


@pytest.mark.parametrize("dtype, minibatches, warned", [("bfloat16", 2, 1), ("bfloat16", 1, 0), ("float32", 2, 0)])
def test_a_clip_range_of_whole_steps_that_rounding_exceeds_is_warned_of_in_one_line(
    dtype, minibatches, warned, place, caplog
):
    changes = {"model.compute_dtype": dtype, "optim.minibatches": minibatches, "evaluation.envs": []}
    assert main(["--config", str(write_settings(place, recipe="gspo", iterations=1, **changes))]) == 0
    said = [line for line in caplog.messages if "clip_low 0.0003 and clip_high 0.0004" in line]
    assert len(said) == warned and not any("\n" in line for line in said)


@pytest.mark.parametrize("before", [False, True])
def test_a_program_computes_without_subnormal_numbers_and_leaves_its_caller_as_it_was(before):
    def subnormal(numbers: int = 100_000) -> int:
        return int((torch.full((numbers,), 1e-40) * 1).count_nonzero())

    def command() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.finfo(np.float32).tiny > 0
        return subnormal()

    torch.set_flush_denormal(before)
    try:
        assert run_guarded(command) == 0
        assert (subnormal(1) == 0) == before
    finally:
        torch.set_flush_denormal(False)
