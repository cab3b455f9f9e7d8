from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from told import lacks
from transformers import Gemma2Config, PreTrainedConfig, Qwen2Config

from envsuite.core.errors import DataError
from trainers.planning.dry_run import DryRun, DryRunRows, MemoryTrial, count_parameters, on_meta
from trainers.planning.hardware import GPUS, Machines
from trainers.planning.meter import WEIGHTS
from trainers.planning.plan import FRAGMENTS, RunPlan, RunPlanner, kept_tokens
from trainers.planning.program import NAMES, PLAN, main, shape_of
from trainers.planning.settling import settle
from trainers.planning.workload import Workload
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.sharding import SYNC
from trainers.processes import distributed, memory
from trainers.rollout.config import PromptConfig
from trainers.rollout.kv_cache import PAGE
from trainers.run.cli import parse
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError

ROWS = DryRunRows(3, 40, 24)
SHAPE = {
    "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip


def shape(layers: int = 2, tied: bool = True) -> PreTrainedConfig:
    return Qwen2Config(num_hidden_layers=layers, tie_word_embeddings=tied, **SHAPE)


def dry(model: ModelConfig | None = None, ranks: int = 1, layers: int = 2, state: str = "float32") -> DryRun:
    optim = OptimConfig(state=state)  # type: ignore[arg-type]
    return MemoryTrial(shape(layers), model or ModelConfig(), optim, ranks, ranks, ROWS).run()


@pytest.mark.parametrize(
    ("name", "billions", "without_embeddings", "rounding"),
    [
        ("qwen2.5-1.5b", 1.54, 1.31, 0.01),
        ("qwen2.5-7b", 7.61, 6.53, 0.01),
        ("qwen3-1.7b", 1.7, 1.4, 0.05),
        ("qwen3-32b", 32.8, 31.2, 0.05),
    ],
)
def test_a_shipped_shape_has_as_many_weights_as_its_model_card_says(name, billions, without_embeddings, rounding):
    found = on_meta(shape_of("", name))
    count = sum(p.numel() for p in found.parameters())
    embeddings = {id(m.weight): m.weight.numel() for m in (found.get_input_embeddings(), found.get_output_embeddings())}
    assert count / 1e9 == pytest.approx(billions, abs=rounding)
    assert (count - sum(embeddings.values())) / 1e9 == pytest.approx(without_embeddings, abs=rounding)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_shape_can_be_made(name):
    assert sum(p.numel() for p in on_meta(shape_of("", name)).parameters()) > 1e9


def test_full_training_in_float32_holds_sixteen_bytes_a_weight_and_moments_of_eight_bits_a_quarter():
    sizes = dry().sizes
    count = sum(p.numel() for p in on_meta(shape()).parameters())
    assert sizes.parameters == sizes.trained == count
    assert (sizes.weights, sizes.gradients, sizes.moments) == (4 * count, 4 * count, 8 * count)
    assert dry(state="8bit").sizes.moments == pytest.approx(sizes.moments / 4, rel=0.1)


@pytest.mark.seconds
def test_lora_trains_only_its_adapter_and_halves_frozen_weights_in_bfloat16():
    model = ModelConfig(compute_dtype="bfloat16", adapter=AdapterConfig(rank=4, base="bfloat16"))
    sizes, whole = dry(model).sizes, dry().sizes
    assert sizes.parameters == whole.parameters
    assert 0 < sizes.trained < whole.trained / 10
    assert sizes.weights == 2 * sizes.parameters + 4 * sizes.trained
    assert (sizes.gradients, sizes.moments) == (4 * sizes.trained, 8 * sizes.trained)


def test_sharding_divides_weights_gradients_and_moments_and_nothing_else():
    one, four = dry(), dry(ModelConfig(shard="full"), ranks=4)
    for name in ("weights", "gradients", "moments"):
        assert getattr(four.sizes, name) == pytest.approx(getattr(one.sizes, name) / 4, rel=0.01), name
    assert four.sizes.parameters == one.sizes.parameters
    assert four.sizes.copied == one.sizes.copied
    assert four.update.kinds["activations"] == pytest.approx(one.update.kinds["activations"], rel=0.1)
    hybrid = MemoryTrial(shape(), ModelConfig(shard="hybrid"), OptimConfig(), 4, 2, ROWS).run()
    assert hybrid.sizes.weights == pytest.approx(one.sizes.weights / 2, rel=0.01), "by the processes of a machine"


@pytest.mark.seconds
def test_a_sharded_model_in_bfloat16_holds_no_more_weights_in_passing_where_it_is_deeper():
    model = ModelConfig(shard="full", compute_dtype="bfloat16")
    trials = [MemoryTrial(shape(layers), model, OptimConfig(), 4, 4, ROWS, on_gpu=True) for layers in (4, 8)]
    few, more = (trial._run().update.kinds[WEIGHTS] for trial in trials)
    assert few == more


@pytest.mark.seconds
def test_checkpointing_takes_less_memory_and_more_products():
    plain, saving = dry(layers=4), dry(ModelConfig(gradient_checkpointing=True), layers=4)
    assert saving.update.peak < 0.7 * plain.update.peak
    assert 1.1 * plain.update.products < saving.update.products < 1.4 * plain.update.products


def test_products_are_those_of_a_forward_and_two_backward_passes():
    found = dry().update.products
    count = sum(p.numel() for name, p in on_meta(shape()).named_parameters() if p.dim() == 2 and "embed" not in name)
    logits = 6 * SHAPE["vocab_size"] * SHAPE["hidden_size"] * ROWS.count * ROWS.response
    assert found == pytest.approx(6 * count * ROWS.tokens + logits, rel=0.2)  # and attention


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_shallow_models_stand_for_a_deep_one(ranks, checkpointing):
    model = ModelConfig(gradient_checkpointing=checkpointing, shard="full", compute_dtype="bfloat16")
    trial = MemoryTrial(shape(12), model, OptimConfig(), ranks, ranks, ROWS)
    whole, grown = trial._run(), trial.run()
    assert grown.sizes == whole.sizes
    for name in ("update", "step", "scoring"):
        assert getattr(grown, name).peak == pytest.approx(getattr(whole, name).peak, rel=0.01), name
        assert getattr(grown, name).products == pytest.approx(getattr(whole, name).products, rel=1e-6), name


@pytest.mark.slow
def test_layers_of_several_kinds_are_kept_in_their_pattern():
    gemma = Gemma2Config(num_hidden_layers=10, head_dim=16, sliding_window=16, **SHAPE)
    trial = MemoryTrial(gemma, ModelConfig(), OptimConfig(), 1, 1, ROWS)
    assert trial.run().update.peak == pytest.approx(trial._run().update.peak, rel=0.01)


@pytest.mark.slow
def test_the_largest_micro_batch_is_the_last_that_fits():
    where = Machines(1, 1, replace(GPUS["L4"], memory=1.9 * 2**30))
    planner = RunPlanner(shape(), where, steps=50, prompt=200, response=100)
    words = "--prompt.max_tokens 412 --rollout.slots 1 --rollout.sampling.max_tokens 100"
    config = parse(words.split(), PLAN).config
    largest = planner.largest(planner.plan(config))
    assert largest is not None and largest > 2 * 512
    assert planner.with_tokens(config, largest).fits
    assert not planner.with_tokens(config, largest + 2 * 512).fits


@pytest.mark.seconds
def test_what_a_run_leaves_to_its_plan_is_the_fastest_that_fits():
    config = TrainConfig(model=ModelConfig(compute_dtype="bfloat16", shard="full"))

    def planned(memory: float, **changes: Any) -> RunPlan:
        where = Machines(1, 2, replace(GPUS["H100"], memory=memory / (1 - FRAGMENTS)))
        planner = RunPlanner(shape(), where, steps=5, prompt=400, response=100, _known=known)
        return planner.plan(replace(config, model=replace(config.model, **changes)))

    known: dict[str, DryRun] = {}
    whole, kept, recomputed = 4 * count_parameters(shape()), planned(9e9), planned(9e9, gradient_checkpointing=True)
    assert kept.adds_up_once and recomputed.adds_up_once, "what is set stays"
    peaks = [plan.peaks["update"] - less for plan in (kept, recomputed) for less in (0, whole)]
    assert peaks == sorted(peaks, reverse=True), "and this is what orders them"
    choices = [(False, True), (False, False), (True, True), (True, False)]
    for number, (peak, choice) in enumerate(zip(peaks, choices, strict=True)):
        plan = planned(peak + 1.0)
        assert (plan.config.model.gradient_checkpointing, plan.adds_up_once) == choice, number
    least = planned(peaks[3] - 9.0)
    assert least.config.model.gradient_checkpointing is True and not least.adds_up_once
    assert kept.seconds["update"] < planned(peaks[1] + 1.0).seconds["update"]
    cpu = RunPlanner(shape(), Machines(1, 1, replace(GPUS["L4"], measured=True)), 5, 40, 24).plan(TrainConfig())
    assert cpu.config.model.gradient_checkpointing is False and not cpu.adds_up_once


def test_a_run_on_gpus_is_planned_before_its_model_is_loaded_and_one_on_a_cpu_is_not(monkeypatch, tmp_path):
    shape().save_pretrained(tmp_path)
    config = TrainConfig(model=ModelConfig(path=str(tmp_path), shard="full"), prompt=PromptConfig(max_tokens=300))
    rooms = {"most": [9e9, 9e9], "least": [9e9, 1e9], "none": [9e9, 9e9]}
    monkeypatch.setattr(memory, "free", lambda device: 9e9)
    kwargs: dict[str, bool] = {}
    state = SimpleNamespace(plugin_kwargs=kwargs)
    for name, expected in (("most", (False, False)), ("least", (True, True)), ("none", ("auto", True))):
        device = torch.device("cpu" if name == "none" else "cuda")
        monkeypatch.setattr(distributed, "all_gather_object", lambda *_, name=name: rooms[name])
        gpus: Any = SimpleNamespace(num_processes=2, device=device, gradient_state=state)
        assert (settle(config, gpus).model.gradient_checkpointing, kwargs[SYNC]) == expected, name
    monkeypatch.setattr(MemoryTrial, "run", lambda self: (_ for _ in ()).throw(DataError("it depends on values")))
    one: Any = SimpleNamespace(num_processes=1, device=torch.device("cuda"), gradient_state=state)
    assert settle(config, one) == config


@pytest.mark.seconds
def test_vllm_takes_its_share_throughout_or_while_the_model_does_not_train():
    where = Machines(1, 1, GPUS["H100"])
    planner, config = RunPlanner(shape(), where, steps=5, prompt=40, response=24), TrainConfig()
    for options, share, sleeps in (
        ({}, 0.3, True),
        ({"arguments": {"gpu-memory-utilization": 0.5}, "sleep": True}, 0.5, True),
        ({"arguments": {"gpu-memory-utilization": 0.5}, "sleep": False}, 0.5, False),
        ({"place": "process"}, 0.3, True),
        ({"place": "process", "memory": 0.2, "sleep": False}, 0.2, False),
    ):
        rollout = replace(config.rollout, engine="vllm", engine_options=options)
        plan = planner.plan(replace(config, rollout=rollout))
        size = {name: parts.get("vLLM", 0.0) for name, parts in {**plan.phases, "held": plan.held}.items()}
        expected = {**dict.fromkeys(size, 0.0), "rollout" if sleeps else "held": share * where.device.memory}
        assert size == pytest.approx(expected), options


def test_a_compact_memory_bounds_prompts():
    config = TrainConfig(prompt=PromptConfig(memory="compact(300)"))
    work = Workload.of(config, shape(), Machines(1, 1, GPUS["H100"]), steps=5, prompt=None, response=24)
    assert (work.longest_prompt, work.prompt, work.merges) == (300, 300, True)
    with pytest.raises(ConfigError, match="--prompt-tokens is 301"):
        Workload.of(config, shape(), Machines(1, 1, GPUS["H100"]), steps=5, prompt=301, response=24)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Plans for a tiny shape; returns the status, standard output and standard error."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen2", "num_hidden_layers": 2, **SHAPE}))

    def planned(words: str) -> tuple[int, str, str]:
        status = main(["--model-shape", str(file), *words.split()])
        told = capsys.readouterr()
        return status, told.out, told.err

    return planned


@pytest.mark.slow
def test_a_plan_that_fits_says_so_in_tables_and_in_json(run):
    words = "--gpus 2xH100 --prompt.max_tokens 100 --rollout.sampling.max_tokens 28"
    status, out, _ = run(words)
    assert status == 0
    told = "It fits … libraries … decode … tokens/s … ESTIMATES; never measured: several GPUs, float32"
    assert not lacks(" ".join(out.split()), told), out
    status, out, _ = run(f"{words} --json yes")
    found = json.loads(out)
    assert status == 0 and found["fits"]
    assert found["needed"] == pytest.approx(
        sum(found["held"].values()) + max(sum(p.values()) for p in found["phases"].values()), abs=20
    )


@pytest.mark.slow
def test_a_plan_that_does_not_fit_says_what_to_change(run, monkeypatch):
    monkeypatch.setitem(GPUS, "L4", replace(GPUS["L4"], memory=1.85 * 2**30))
    status, out, _ = run("--gpus L4 --prompt.max_tokens 1500 --rollout.sampling.max_tokens 500 --rollout.slots 1")
    assert status == 3
    assert "IT DOES NOT FIT" in out and "What to change" in out
    assert "--model.gradient_checkpointing true" in out


@pytest.mark.slow
def test_where_keys_and_values_do_not_fit_the_plan_names_what_bounds_them(run, monkeypatch):
    monkeypatch.setitem(GPUS, "L4", replace(GPUS["L4"], memory=2.0 * 2**30))
    words = "--gpus L4 --prompt.max_tokens 3000 --rollout.sampling.max_tokens 1000"
    status, out, _ = run(words)
    assert status == 3
    for setting in ("rollout.slots", "rollout.engine_options.cache_tokens"):
        (value,) = re.findall(rf"--{setting} (\d+) .*yes", out)
        status, out_then, _ = run(f"{words} --{setting} {value}")
        assert status == 0, out_then


def test_keys_and_values_are_those_of_the_episodes_that_one_process_plays():
    config = TrainConfig(prompt=PromptConfig(max_tokens=300))
    for gpus, slots in ((1, 128), (4, 32), (16, 8)):  # 16 tasks of 8 episodes, at most rollout.slots: 128
        work = Workload.of(config, shape(), Machines(1, gpus, GPUS["H100"]), steps=5, prompt=40, response=24)
        assert work.slots == slots and work.running == slots * (300 + 512 + PAGE)
        assert kept_tokens(work, {}) == 2 * work.running
        assert kept_tokens(work, {"cache_tokens": 0}) == work.running, "running requests have theirs in any case"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("8xH1000", "H1000 … nearest: H100 … A100 … cpu"),
        ("many", "many … H100"),
        ("0xH100", "0xH100 … 8xH100"),
        ("", "--gpus is missing"),
        (
            "H100 --prompt.max_tokens 4000",
            "prompt.max_tokens + rollout.sampling.max_tokens is 4512 … 4096 tokens at most",
        ),
        (
            "H100 --prompt.max_tokens 900 --optim.tokens_per_microbatch 1000",
            "optim.tokens_per_microbatch is 1000 … is 1412 … prompt.max_tokens",
        ),
        (
            "H100 --rollout.engine_options.max_length 5000",
            "rollout.engine_options: max_length is 5000 … 4096 tokens at most … model.path",
        ),
        (
            "H100 --rollout.engine vllm --rollout.engine_options.arguments.tensor-parallel-size 3",
            "tensor-parallel-size is 3 … 4 attention heads",
        ),
        ("3xH100", "rollout.tasks is 16 … --gpus 3xH100 … multiple of 3"),
        ("H100 --model.adapter.targets [q]", "model.adapter.targets: q … q_proj"),
        ("H100 --response-tokens 600", "--response-tokens is 600 … rollout.sampling.max_tokens is 512"),
        ("H100 --steps 0", "--steps 0 … whole number"),
        ("H100 --model-shape qwen9", "qwen2.5-7b"),
    ],
)
def test_settings_that_contradict_each_other_are_named(run, words, told):
    status, _, err = run(words and f"--gpus {words}")
    assert status == 2 and not lacks(err, told), err


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_run_with_vllm_needs_it_here_and_its_plan_does_not():
    words = ["--rollout.engine", "vllm"]
    assert parse(words, PLAN).config.rollout.engine == "vllm"
    with pytest.raises(ConfigError, match="has no vLLM; name one that has"):
        parse(words)


def test_a_folder_with_a_configuration_alone_can_be_planned(tmp_path):
    shape().save_pretrained(tmp_path)
    assert shape_of(str(tmp_path), None).hidden_size == SHAPE["hidden_size"]
