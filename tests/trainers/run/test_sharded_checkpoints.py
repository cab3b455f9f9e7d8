"""Checkpoints that all processes of a sharded run write: whole or not at all, and for any number of processes."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from accelerate import Accelerator
from memory import begin, large_model, peak
from ranks import on_ranks
from tiny_runs import save_model, tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from trainers.policy.config import ModelConfig, OptimConfig
from trainers.policy.loading import load_model, load_outline
from trainers.policy.model import Policy
from trainers.policy.optimizer import ShardedOptimizerState, make_optimizer
from trainers.policy.sharding import shard, spreads, whole
from trainers.policy.stateful import OptimizerState
from trainers.policy.weight_files import WeightFiles
from trainers.processes.distributed import PeerFailed
from trainers.run import checkpoint, tensors
from trainers.run.checkpoint import CheckpointError
from trainers.run.export import export

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
def test_weights_and_moments_are_bit_equal_on_another_number_of_processes(
    place: Path, wrote_it: int, reads_it: int
) -> None:
    path = str(place / "model")
    (expected,) = on_ranks(wrote, 1, path, str(place / "again" / "iteration-1"))
    for steps in (0, 1):  # an optimiser without moments, and one with others
        for found in on_ranks(read, reads_it, path, str(place / f"iteration-{wrote_it}"), steps):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_each_process_writes_its_share_as_transformers_names_it_and_the_manifest_lists_all(place: Path) -> None:
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


def test_export_makes_one_file_of_it(place: Path, tmp_path: Path) -> None:
    export(place / "iteration-2", tmp_path / "model", merged=False)
    found = WeightFiles(tmp_path / "model")
    assert (tmp_path / "model/model.safetensors").is_file()
    own = WeightFiles(place / "iteration-2").map_tensors()
    assert set(found.names) == own.keys()
    assert all(torch.equal(found.read(name), tensor) for name, tensor in own.items())


def test_a_file_of_any_process_that_is_damaged_is_named(place: Path, tmp_path: Path) -> None:
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
def test_a_process_that_cannot_write_leaves_the_older_checkpoint_and_the_others_name_it(
    place: Path, tmp_path: Path, failing: int
) -> None:
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
def test_no_process_holds_the_whole_state_to_write_or_to_read_it(tmp_path: Path) -> None:
    size, layer = large_model(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    found = on_ranks(peaks, 2, str(tmp_path / "model"), str(tmp_path / "iteration-1"), timeout=300)
    for what, each in zip(("written", "read"), zip(*found, strict=True), strict=True):
        print(f"model {size:.0f} MB, {what}: {', '.join(f'{mb:.0f}' for mb in each)} MB")
        assert max(each) < 5 * size / 2 + 2 * layer
