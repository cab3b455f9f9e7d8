"""A sharded policy begins without weights: each process reads its own rows, and has what one that loads all has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from architectures import COMPUTED
from memory import begin, large_model, peak
from ranks import on_ranks
from safetensors.torch import load_file, save_file
from tiny_runs import model, save_model, tokenizer

from envsuite.core.errors import DataError
from trainers.policy.adapter import adapter_tensors, add_adapter, keep_reference, save_adapter, set_adapter_tensors
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.loading import load_model, load_outline
from trainers.policy.model import Policy
from trainers.policy.outline import FileWeights, FirstProcessWeights, is_outline
from trainers.policy.sharding import shard, whole

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
def test_each_process_reads_its_own_rows_of_every_architecture(tmp_path: Path) -> None:
    configs = [ModelConfig(path=_saved(tmp_path, arch), shard="full") for arch in COMPUTED]
    assert on_ranks(begun, 2, configs) == [[""] * len(configs)] * 2, "and none was loaded whole"


@pytest.mark.seconds
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_an_adapter_begins_as_in_one_process_on_weights_that_are_read_in_parts(tmp_path: Path, ranks: int) -> None:
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


def test_files_that_cannot_be_read_in_parts_are_loaded_by_the_first_process_and_say_why(tmp_path: Path) -> None:
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


def test_several_files_with_an_index_are_read_like_one(tmp_path: Path) -> None:
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
def test_no_process_takes_more_than_its_share_and_four_layers(tmp_path: Path) -> None:
    size, layer = large_model(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for ranks in (1, 2, 4):
        found = on_ranks(taken, ranks, str(tmp_path), timeout=300)
        print(f"{ranks} processes, model {size:.0f} MB, layer {layer:.0f} MB: {', '.join(f'{mb:.0f}' for mb in found)}")
        assert max(found) < size / ranks + (4 if ranks > 1 else 0) * layer + 40


@pytest.mark.parametrize("load", [load_model, load_outline])
def test_a_model_that_cannot_be_read_is_named_by_the_setting_that_gives_it(load: Any, tmp_path: Path) -> None:
    path = save_model(tmp_path / "teacher")
    (path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(DataError, match=f"^method.options.teacher {path}: cannot be loaded"):
        load(ModelConfig(path=str(path)), "method.options.teacher")
