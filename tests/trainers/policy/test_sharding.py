"""A policy that is sharded over processes computes what one process computes, and a run with one is a run."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from ranks import on_ranks
from sharding_cases import CASES, Result, all_computed, critics, exchanged, refused, run, seen, sent_to_servers
from tiny_runs import model, save_model, summary, tokenizer, weights, without_times, write_settings
from update_cases import GROUPS_OF, SIZE, table

from envsuite.playing.engine import Completion, Sampling
from trainers.policy.adapter import add_adapter, trained_weights
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_model
from trainers.policy.sharding import spreads
from trainers.policy.weight_files import WeightFiles
from trainers.rollout.engine import EngineSetup
from trainers.rollout.hf_engine import HFEngine
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError

QUICK = ["float64", "float64, adapter", "float64, offloaded", "float64, once a step"]
EXACT = [name for name in CASES if CASES[name].double]
ROUNDED = [name for name in CASES if not CASES[name].double]


def _same(found: list[Result], one: Result, near: float, after: float) -> None:
    """All processes have the gradient of one up to ``near``, and what follows an update up to ``after``."""
    for rank, result in enumerate(found):
        rows = np.isin(table().group_id, GROUPS_OF[len(found)][rank])
        tokens = rows[table().response.row_of]
        pairs = [("gradient", result.gradient, one.gradient, near), ("weights", result.weights, one.weights, after)]
        pairs.append(("logprobs", result.logprobs, one.logprobs[tokens], after))
        if one.reference is not None and result.reference is not None:
            pairs.append(("reference", result.reference, one.reference[tokens], after))
        if one.merged is not None and result.merged is not None:
            pairs.append(("merged", result.merged, one.merged, after))
        for states, other in zip(result.states, one.states, strict=True):
            pairs.append(("states", states, other[rows], max(after, 1e-6)))  # kept in float32
        for what, mine, other, within in pairs:
            assert mine.shape == other.shape, what
            if mine.numel():
                assert float((mine - other).abs().max() / other.abs().max()) <= within, (what, rank)
        told = {key: value for key, value in result.train.items() if key != "computed_tokens"}
        assert told == pytest.approx({key: one.train[key] for key in told}, rel=after, abs=after)
        assert result.probe == pytest.approx(one.probe, rel=max(after, 1e-6))


def _spread(found: list[Result], one: Result, parts: int) -> None:
    """Every process holds its part of what one process holds, up to padding."""
    for result in found:
        assert result.held == pytest.approx(one.held / parts, rel=0.02)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "ranks, names", [(2, QUICK), *(pytest.param(ranks, EXACT, marks=pytest.mark.slow) for ranks in (2, 4))]
)
def test_sharded_processes_have_the_gradients_updates_and_states_of_one(ranks, names):
    (one,), many = on_ranks(all_computed, 1, names), on_ranks(all_computed, ranks, names)
    for name in names:
        found = [each[name] for each in many]
        _same(found, one[name], 1e-12, 1e-9)
        _spread(found, one[name], {"none": 1, "full": ranks, "hybrid": ranks // 2}[CASES[name].shard])


@pytest.mark.slow
def test_in_float32_and_bfloat16_sharded_processes_have_the_gradient_of_one():
    (one,), two = on_ranks(all_computed, 1, [*ROUNDED, "float64"]), on_ranks(all_computed, 2, ROUNDED)
    exact = one["float64"].gradient
    for name in ROUNDED:
        found = [each[name] for each in two]
        bfloat16 = CASES[name].compute_dtype == "bfloat16"
        if bfloat16:  # an update of AdamW makes other weights of the last bit of a gradient
            gradient = one[name].gradient
            apart = max(float((f.gradient - gradient).abs().max() / gradient.abs().max()) for f in found)
            assert apart <= 2.0**-8, (name, apart)  # a CPU may round products of other shapes otherwise: half a digit
        else:
            _same(found, one[name], 1e-6, 1e-4)
        if not CASES[name].adapted:
            off = float((found[0].gradient - exact).norm() / exact.norm())
            assert off < (2e-2 if bfloat16 else 1e-5), (name, off)


@pytest.mark.seconds
def test_in_bfloat16_layers_are_gathered_in_it_and_gradients_may_be_added_up_once_a_step():
    names = ["float32", "bfloat16", "bfloat16, once a step"]
    (found, _) = on_ranks(exchanged, 2, names)
    passes, counts, sizes = zip(*(found[name] for name in names), strict=True)
    print(f"\n{passes[0]} passes; collectives and their bytes: {dict(zip(names, found.values(), strict=True))}")
    gather, half, reduce = ("gather", "torch.float32"), ("gather", "torch.bfloat16"), ("reduce", "torch.float32")
    groups = 2 + 1  # layers, and what lies outside of them
    assert passes[0] > 2 and len({*passes}) == 1
    assert counts[0] == {gather: 2 * groups * passes[0], reduce: groups * passes[0]}
    groups += 2  # norms, which stay in float32
    assert counts[1] == {gather: (2 + 4) * passes[0], half: 4 * passes[0], reduce: groups * passes[0]}
    assert sizes[1][half] == (sizes[0][gather] - sizes[1][gather]) / 2 and sizes[1][reduce] == sizes[0][reduce]
    assert counts[2] == {**counts[1], reduce: groups} and sizes[2] == {**sizes[1], reduce: sizes[1][reduce] / passes[0]}


@pytest.mark.seconds
def test_a_critic_of_its_own_is_spread_and_learns_what_one_process_learns(tmp_path):
    model("qwen2", SIZE, seed=3).save_pretrained(tmp_path)
    (one,), many = on_ranks(critics, 1, str(tmp_path), "none"), on_ranks(critics, 2, str(tmp_path), "full")
    for rank, found in enumerate(many):
        tokens = np.isin(table().group_id, GROUPS_OF[2][rank])[table().response.row_of]
        np.testing.assert_allclose(found.values, one.values[tokens], atol=1e-3)
        np.testing.assert_array_equal(found.restored, found.values)
        torch.testing.assert_close(found.weights, one.weights, rtol=0, atol=1e-3)
        assert found.learnt["value_grad_norm"] == pytest.approx(one.learnt["value_grad_norm"], rel=1e-3)
        assert found.held == pytest.approx(one.held / 2, rel=0.05)


@pytest.mark.seconds
def test_an_output_folder_that_a_process_does_not_see_is_refused_at_the_start(tmp_path):
    first, second = on_ranks(seen, 2, str(tmp_path / "runs/tiny"), str(tmp_path / "elsewhere/tiny"))
    assert first[0] == second[0] == "" and not list((tmp_path / "runs/tiny").iterdir())
    assert f"output is {tmp_path}/elsewhere, where" in second[1] and "that all machines of the run share" in second[1]
    assert "output is" in first[1], "the other process says the same"


# -- engine ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_with_a_copy_samples_bit_for_bit_as_one_without(dtype, adapted):
    policy = model("qwen2", SIZE)  # tied embeddings
    if adapted:
        add_adapter(policy, AdapterConfig(rank=4), "owner/base")
    config = ModelConfig(compute_dtype=dtype)
    engines = [
        HFEngine.from_setup(EngineSetup(policy, tokenizer(), config, 4, Accelerator(cpu=True), structure))
        for structure in (None, deepcopy(policy))
    ]
    assert engines[0].model is policy and engines[1].model is not policy

    def sampled(engine: HFEngine) -> list[Completion]:
        return engine.generate([[1, 2, 3], [4, 5], [6] * 9], Sampling(max_tokens=8), seed=3)

    def equal() -> bool:
        pairs = zip(*map(sampled, engines), strict=True)
        return all(
            np.array_equal(a.logprobs, b.logprobs) and np.array_equal(a.token_ids, b.token_ids) for a, b in pairs
        )

    assert equal()
    with torch.no_grad():
        for _, tensor in trained_weights(policy):
            tensor.add_(0.05 * torch.randn_like(tensor))
    engines[0].sync([], 1)
    assert not equal(), "the copy has the weights of before"
    for engine in engines:
        engine.sync([], 2)
    assert equal()
    engines[1].rest()
    assert not sum(parameter.untyped_storage().nbytes() for parameter in engines[1].model.parameters())
    for engine in engines:
        engine.sync([], 3)
    assert equal(), "the update had the memory of the copy"


@pytest.mark.seconds
def test_vllm_is_sent_the_whole_adapter_of_a_sharded_policy_as_it_is_and_what_is_below_it_once(tmp_path):
    updates = {spread: on_ranks(sent_to_servers, 2, spread, str(tmp_path))[0] for spread in ("none", "full")}
    first, second = updates["full"]
    adapter = {name for name in first if ".lora_" in name}
    assert adapter == second.keys() and all(first[name].dtype == torch.float32 for name in adapter)
    assert all(first[name].dtype == torch.bfloat16 for name in first.keys() - adapter)
    for sharded, whole in zip(updates["full"], updates["none"], strict=True):
        assert sharded.keys() == whole.keys()
        assert all(torch.equal(sharded[name], whole[name]) for name in whole)


# -- runs ------------------------------------------------------------------------------------------------------------

KL: dict[str, Any] = {"method.objective.kl": "k3", "method.objective.kl_coef": 0.1}


def _run(place: Path, name: str, ranks: int, resume: str | None = None, **changes: Any) -> Path:
    """A run on so many processes; returns its folder."""
    config = write_settings(place, name=name, **{"checkpoint_every": 1, "keep_checkpoints": 9, **KL, **changes})
    on_ranks(run, ranks, str(config), resume)
    return place / "runs" / name


def _near(found: list[dict[str, Any]], other: list[dict[str, Any]], within: float) -> None:
    assert len(found) == len(other) > 1
    for one, two in zip(found, other, strict=True):
        assert one.keys() == two.keys()
        assert {k: v for k, v in one.items() if k != "time"} == pytest.approx(two, rel=within, abs=within)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_model(folder / "model")
    return folder


@pytest.mark.slow
def test_a_run_of_two_sharded_processes_is_one_of_two_copies_and_its_checkpoint_anybodys(place):
    whole = _run(place, "whole", 2, iterations=2)
    sharded = _run(place, "sharded", 2, iterations=2, **{"model.shard": "full"})
    _near(without_times(sharded), without_times(whole), 1e-4)
    assert summary(sharded)["model"] == summary(whole)["model"], "counts of parameters"
    for part in ("model", "optimizer"):
        files = [WeightFiles(folder / "checkpoints/iteration-00002", part).map_tensors() for folder in (sharded, whole)]
        assert files[0].keys() == files[1].keys()
        for key, tensor in files[1].items():
            torch.testing.assert_close(files[0][key], tensor, rtol=1e-3, atol=1e-3, msg=key)
    loaded = load_model(ModelConfig(path=str(sharded / "checkpoints/iteration-00002")))
    assert loaded.config.architectures == ["Qwen2ForCausalLM"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model.compute_dtype": "bfloat16", "model.gradient_checkpointing": True},
        {"model.adapter": {"rank": 4, "alpha": 8}},
        {"recipe": "bipace"},
        {"recipe": "ppo", "method.critic.kind": "head"},
        {"recipe": "ppo", "method.critic.kind": "model"},
        {"recipe": "gigpo+spear"},
        {"method.reference": "cpu"},
        {"model.shard": "hybrid"},
        {"model.offload": True},
    ],
    ids=lambda changes: next(iter(changes)) if len(changes) > 1 else "=".join(map(str, *changes.items())),
)
def test_methods_that_read_the_policy_run_sharded_as_they_do_in_copies(place, changes):
    kl = {} if "recipe" in changes else KL
    name = f"{abs(hash(str(changes)))}"
    made = {"iterations": 2, "checkpoint_every": 2, **kl, **changes}
    whole = _run(place, f"whole-{name}", 2, **{**made, "model.shard": "none", "model.offload": False})
    sharded = _run(place, f"sharded-{name}", 2, **{"model.shard": "full", **made})
    coarse = changes.get("model.compute_dtype") == "bfloat16"
    _near(without_times(sharded)[:2], without_times(whole)[:2], 2e-2 if coarse else 1e-4)


SHARING = {
    *("tokens/distinct", "tokens/least", "tokens/shared", "tokens/shareable", "tokens/prefill"),
    "train/computed_tokens",
}
"""Metrics that say how many tokens are common to what a process computes."""


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"model.adapter": {"rank": 4}}], ids=["whole model", "adapter"])
def test_a_sharded_run_goes_on_bit_for_bit_and_on_another_number_of_processes(place, changes):
    tag = "adapter" if changes else "all"
    changes = {**changes, "optim.schedule": "constant"}  # another would follow from the number of iterations
    full = {**changes, "model.shard": "full"}
    through = _run(place, f"through-{tag}", 2, iterations=3, **full)
    _run(place, f"again-{tag}", 2, iterations=2, **full)
    again = _run(place, f"again-{tag}", 2, "auto", iterations=3, **full)
    assert without_times(again)[-3:] == without_times(through)[-3:]
    last = "checkpoints/iteration-00003"
    assert weights(again / last) == weights(through / last)
    for name, ranks, shard in (("one", 1, "full"), ("copies", 2, "none"), ("hybrid", 2, "hybrid")):
        other = place / "runs" / f"{name}-{tag}"
        shutil.copytree(through, other)
        second = str(other / "checkpoints/iteration-00002")
        _run(place, other.name, ranks, second, iterations=3, **{**changes, "model.shard": shard})
        alike = [without_times(run)[-2:] for run in (other, through)]
        if ranks == 1:  # which shares prompts of all episodes, and not of its half
            alike = [[{k: v for k, v in line.items() if k not in SHARING} for line in lines] for lines in alike]
        _near(*alike, 1e-3)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_one_process_shards_nothing():
    assert not spreads(ModelConfig(shard="full"), Accelerator(cpu=True))


IN_MEMORY = r"offload keeps a sharded model in main memory, but .*set offload: false"
FOUR_BITS = {"compute_dtype": "bfloat16", "adapter": AdapterConfig(base="nf4")}


@pytest.mark.parametrize(
    ("model", "optim", "said"),
    [
        ({"offload": True}, {}, IN_MEMORY),
        ({"offload": True, "shard": "full", "adapter": AdapterConfig()}, {}, IN_MEMORY),
        ({"shard": "full", **FOUR_BITS}, {}, r"adapter.base is nf4.*shard is full; set shard: none"),
        ({"shard": "full"}, {"state": "8bit"}, r"model.shard and optim.state: 8bit do not go together"),
    ],
)
def test_what_cannot_be_sharded_or_kept_in_main_memory_is_refused(model, optim, said):
    with pytest.raises(ConfigError, match=said):
        TrainConfig(model=ModelConfig(**model), optim=OptimConfig(**optim))


@pytest.mark.slow
def test_processes_that_are_not_those_of_whole_machines_cannot_be_hybrid():
    for said in on_ranks(refused, 2):
        assert "the 2 processes are not a multiple of those of this machine (3:" in said
