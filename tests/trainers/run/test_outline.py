"""A sharded policy begins without weights: each process reads its own rows, and has what one that loads all has.

Checkpoints that all processes of a sharded run write: whole or not at all, and for any number of processes.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from accelerate import Accelerator
from architectures import COMPUTED
from memory import begin, large_model, peak
from ranks import on_ranks
from safetensors.torch import load_file, save_file
from tiny_runs import model, save_model, tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from envsuite.core.errors import DataError
from trainers.policy.adapter import adapter_tensors, add_adapter, keep_reference, save_adapter, set_adapter_tensors
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_model, load_outline
from trainers.policy.model import Policy
from trainers.policy.optimizer import ShardedOptimizerState, make_optimizer
from trainers.policy.outline import FileWeights, FirstProcessWeights, is_outline
from trainers.policy.sharding import shard, spreads, whole
from trainers.policy.stateful import OptimizerState
from trainers.policy.weight_files import WeightFiles
from trainers.processes.distributed import PeerFailed
from trainers.run import checkpoint, tensors
from trainers.run.checkpoint import CheckpointError
from trainers.run.export import export

LORA = AdapterConfig(rank=4, alpha=8)
ON_BFLOAT16 = AdapterConfig(rank=4, base="bfloat16")


def begun(accelerator: Accelerator, configs: list[ModelConfig]) -> list[str]:
    """How each policy was read; all of it is compared with the model that one process loads whole."""
    found = []
    for config in configs:
        torch.manual_seed(3)
        outline = load_outline(config)
        assert is_outline(outline.model)
        if config.adapter is not None:
            keep_reference(outline.model)
        policy = Policy(outline.model, compute_dtype=config.compute_dtype)
        shard(policy, config, accelerator, outline.weights)
        torch.manual_seed(3)
        loaded = load_model(config)
        if config.adapter is not None:
            keep_reference(loaded)
        one = Policy(loaded, compute_dtype=config.compute_dtype)
        parameters = [dict(each.named_parameters(remove_duplicate=False)) for each in (policy, one)]
        assert parameters[0].keys() == parameters[1].keys()
        for name, parameter in parameters[1].items():
            read = parameters[0][name]
            assert read.requires_grad == parameter.requires_grad and read.dtype == parameter.dtype, name
            assert torch.equal(whole(read), parameter), name
        buffers = [dict(each.named_buffers()) for each in (policy, one)]
        assert buffers[0].keys() == buffers[1].keys()
        assert all(torch.equal(buffers[0][name], buffer) for name, buffer in buffers[1].items())
        assert (policy.output is None) == (one.output is None)
        settings = [each.model.generation_config.to_dict() for each in (policy, one)]
        assert settings[0] == settings[1]
        found.append(outline.weights.reason if isinstance(outline.weights, FirstProcessWeights) else "")
    return found


def _saved(folder: Path, arch: str) -> str:
    kind, settings, shape = COMPUTED[arch]
    torch.manual_seed(0)
    kind(settings(**{**shape, "vocab_size": len(tokenizer())})).save_pretrained(folder / arch)
    tokenizer().save_pretrained(folder / arch)
    return str(folder / arch)


@pytest.mark.slow
def test_each_process_reads_its_own_rows_of_every_architecture(tmp_path):
    configs = [ModelConfig(path=_saved(tmp_path, arch), shard="full") for arch in COMPUTED]
    assert on_ranks(begun, 2, configs) == [[""] * len(configs)] * 2, "and none was loaded whole"


@pytest.mark.seconds
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_an_adapter_begins_as_in_one_process_on_weights_that_are_read_in_parts(tmp_path, ranks):
    path = str(save_model(tmp_path / "model"))
    trained = model("qwen2", len(tokenizer()))
    add_adapter(trained, LORA, path)
    set_adapter_tensors(trained, {n: torch.randn_like(t) for n, t in adapter_tensors(trained).items()})
    (tmp_path / "adapter").mkdir()
    save_adapter(trained, tmp_path / "adapter")
    tokenizer().save_pretrained(tmp_path / "adapter")
    configs = [
        ModelConfig(path=path, shard="full", adapter=LORA),
        ModelConfig(path=path, shard="full", adapter=ON_BFLOAT16, compute_dtype="bfloat16"),
        ModelConfig(path=str(tmp_path / "adapter"), shard="full", adapter=LORA),  # goes on, and is the reference
        ModelConfig(path=str(tmp_path / "adapter"), shard="full"),  # merged
    ]
    merged = "an adapter is merged into it"
    assert on_ranks(begun, ranks, configs) == [["", "", "", merged]] * ranks


def test_files_that_cannot_be_read_in_parts_are_loaded_by_the_first_process_and_say_why(tmp_path):
    path = save_model(tmp_path / "model", "llama")
    file = path / "model.safetensors"
    tensors = load_file(file)
    head = tensors.pop("lm_head.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    outline = load_outline(ModelConfig(path=str(path)))
    assert (
        isinstance(outline.weights, FirstProcessWeights)
        and outline.weights.reason == "the files have no lm_head.weight"
    )
    save_file({**tensors, "lm_head.weight": head[:-1]}, file, metadata={"format": "pt"})
    outline = load_outline(ModelConfig(path=str(path)))
    assert isinstance(outline.weights, FirstProcessWeights) and "lm_head.weight has shape" in outline.weights.reason


def test_several_files_with_an_index_are_read_like_one(tmp_path):
    path = save_model(tmp_path / "model")
    model("qwen2", len(tokenizer())).save_pretrained(path, max_shard_size="20KB")
    (path / "model.safetensors").unlink()
    outline = load_outline(ModelConfig(path=str(path)))
    assert isinstance(outline.weights, FileWeights)
    own = load_model(ModelConfig(path=str(path))).state_dict()
    for name, place in outline.weights.places.items():
        assert torch.equal(outline.weights.files.read(place, slice(0, 3)), own[name][:3]), name


# -- memory ----------------------------------------------------------------------------------------------------------


def taken(accelerator: Accelerator, path: str) -> float:
    """MB of main memory that this process takes at most, above its beginning, while its policy begins."""
    config = ModelConfig(path=path, shard="full")
    load_model(ModelConfig())  # whatever transformers imports
    before = begin()
    if accelerator.num_processes == 1:
        Policy(load_model(config))
    else:
        outline = load_outline(config)
        shard(Policy(outline.model), config, accelerator, outline.weights)
    return peak() - before


@pytest.mark.slow
def test_no_process_takes_more_than_its_share_and_four_layers(tmp_path):
    size, layer = large_model(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for ranks in (1, 2, 4):
        found = on_ranks(taken, ranks, str(tmp_path), timeout=300)
        print(f"{ranks} processes, model {size:.0f} MB, layer {layer:.0f} MB: {', '.join(f'{mb:.0f}' for mb in found)}")
        assert max(found) < size / ranks + (4 if ranks > 1 else 0) * layer + 40


@pytest.mark.parametrize("load", [load_model, load_outline])
def test_a_model_that_cannot_be_read_is_named_by_the_setting_that_gives_it(load, tmp_path):
    path = save_model(tmp_path / "teacher")
    (path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(DataError, match=f"^method.options.teacher {path}: cannot be loaded"):
        load(ModelConfig(path=str(path)), "method.options.teacher")


FACTS = {"iteration": 1, "config": {}}


def _begun(accelerator: Accelerator, path: str, steps: int) -> tuple[Policy, OptimizerState]:
    """A policy that has taken so many optimiser steps with gradients that depend on nothing but the step."""
    config = ModelConfig(path=path, shard="full")
    if spreads(config, accelerator):
        outline = load_outline(config)
        policy = Policy(outline.model)
        shard(policy, config, accelerator, outline.weights)
        state: type[OptimizerState] = ShardedOptimizerState
    else:
        policy, state = Policy(load_model(config)), OptimizerState
    optimizer = make_optimizer(policy.parameters(), OptimConfig(lr=0.01))
    for step in range(steps):
        for parameter in policy.parameters():
            parameter.grad = (parameter.detach() + step).sin()
        optimizer.step()
    optimizer.zero_grad()
    return policy, state(policy, optimizer)


def _held(policy: Policy, state: OptimizerState) -> dict[str, Tensor]:
    """All weights and moments, whole."""
    found = {name: whole(parameter).clone() for name, parameter in policy.named_parameters()}
    for name, parameter in policy.named_parameters():
        found |= {f"{name}/{key}": whole(value).clone() for key, value in state.optimizer.state[parameter].items()}
    return found


def wrote(accelerator: Accelerator, path: str, folder: str, steps: int = 2) -> dict[str, Tensor]:
    """What a checkpoint was written of."""
    policy, state = _begun(accelerator, path, steps)
    checkpoint.save(Path(folder), accelerator, policy.model, tokenizer(), {"optimizer": state}, FACTS)
    return _held(policy, state)


def read(accelerator: Accelerator, path: str, folder: str, steps: int = 1) -> dict[str, Tensor]:
    """What a policy and an optimiser, which has taken ``steps`` steps, become by reading the checkpoint."""
    policy, state = _begun(accelerator, path, steps)
    checkpoint.load(Path(folder), accelerator, policy.model, {"optimizer": state}, {})
    return _held(policy, state)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and the checkpoints of one process and of two."""
    folder = tmp_path_factory.mktemp("checkpoints")
    save_model(folder / "model")  # tied embeddings
    for ranks in (1, 2):
        on_ranks(wrote, ranks, str(folder / "model"), str(folder / f"iteration-{ranks}"))
    return folder


@pytest.mark.seconds
@pytest.mark.parametrize(
    "wrote_it, reads_it", [(1, 2), (2, 1), *(pytest.param(2, ranks, marks=pytest.mark.slow) for ranks in (2, 3))]
)
def test_weights_and_moments_are_bit_equal_on_another_number_of_processes(place, wrote_it, reads_it):
    path = str(place / "model")
    (expected,) = on_ranks(wrote, 1, path, str(place / "again" / "iteration-1"))
    for steps in (0, 1):  # an optimiser without moments, and one with others
        for found in on_ranks(read, reads_it, path, str(place / f"iteration-{wrote_it}"), steps):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_each_process_writes_its_share_as_transformers_names_it_and_the_manifest_lists_all(place):
    folder = place / "iteration-2"
    files = {file.name for file in folder.iterdir()}
    for stem in ("model", "optimizer"):
        assert {f"{stem}-0000{n}-of-00002.safetensors" for n in (1, 2)} < files
        sizes = [(folder / f"{stem}-0000{n}-of-00002.safetensors").stat().st_size for n in (1, 2)]
        assert max(sizes) < 0.75 * sum(sizes)  # the embeddings are much of so small a model
    manifest = orjson.loads((folder / "manifest.json").read_bytes())["files"]
    assert manifest.keys() == files - {"manifest.json"}
    assert {Path(name).suffix for name in files} <= {".json", ".safetensors", ".jinja"}, "nothing pickled"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded).__name__ == "Qwen2ForCausalLM" and loaded.generation_config.eos_token_id is not None
    one = load_model(ModelConfig(path=str(place / "iteration-1")))
    assert all(torch.equal(p, dict(loaded.named_parameters())[name]) for name, p in one.named_parameters())


def test_export_makes_one_file_of_it(place, tmp_path):
    export(place / "iteration-2", tmp_path / "model", merged=False)
    found = WeightFiles(tmp_path / "model")
    assert (tmp_path / "model/model.safetensors").is_file()
    own = WeightFiles(place / "iteration-2").map_tensors()
    assert set(found.names) == own.keys()
    assert all(torch.equal(found.read(name), tensor) for name, tensor in own.items())


def test_a_file_of_any_process_that_is_damaged_is_named(place, tmp_path):
    for file in (place / "iteration-2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = tmp_path / "optimizer-00002-of-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(AssertionError, match=r"optimizer-00002-of-00002.safetensors: damaged"):
        on_ranks(read, 2, str(place / "model"), str(tmp_path))


def full_disk(accelerator: Accelerator, path: str, folder: str, failing: int) -> str:
    """The message of a process, one of which cannot write its part."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if accelerator.process_index == failing:
        tensors.write_part = full
    try:
        wrote(accelerator, path, folder, 3)
    except (CheckpointError, PeerFailed) as error:
        return str(error)
    raise AssertionError("it was written")


@pytest.mark.seconds
@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_cannot_write_leaves_the_older_checkpoint_and_the_others_name_it(place, tmp_path, failing):
    folder = tmp_path / "iteration-1"
    on_ranks(wrote, 2, str(place / "model"), str(folder))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    said = on_ranks(full_disk, 2, str(place / "model"), str(folder), failing)
    assert "could not be written" in said[failing] and "No space left" in said[failing]
    assert f"rank {failing}" in said[1 - failing]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


# -- memory ----------------------------------------------------------------------------------------------------------


def peaks(accelerator: Accelerator, path: str, folder: str) -> tuple[float, float]:
    """MB above what policy and optimiser take, at most: while a checkpoint is written, and while it is read."""
    begin()
    policy, state = _begun(accelerator, path, 1)
    before = begin()
    checkpoint.save(Path(folder), accelerator, policy.model, tokenizer(), {"optimizer": state}, FACTS)
    wrote_with = peak() - before
    before = begin()
    checkpoint.load(Path(folder), accelerator, policy.model, {"optimizer": state}, {})
    return wrote_with, peak() - before


@pytest.mark.slow
def test_no_process_holds_the_whole_state_to_write_or_to_read_it(tmp_path):
    size, layer = large_model(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    found = on_ranks(peaks, 2, str(tmp_path / "model"), str(tmp_path / "iteration-1"), timeout=300)
    for what, each in zip(("written", "read"), zip(*found, strict=True), strict=True):
        print(f"model {size:.0f} MB, {what}: {', '.join(f'{mb:.0f}' for mb in each)} MB")
        assert max(each) < 5 * size / 2 + 2 * layer
