"""Where models come from: folders, GGUF files, a hub, and one message with the remedy where they do not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hub import COMMIT, Hub, serving
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http
from tiny_runs import model, save_model, tokenizer

from envsuite.core.errors import DataError
from trainers.policy.adapter import save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.loading import load_model
from trainers.policy.source import find


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model ``owner/tiny``, and an empty cache."""
    with serving(Hub({"owner/tiny": save_model(tmp_path / "tiny")})) as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", found.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None))  # between tries
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path / "tiny")
        yield found


def test_a_name_on_the_hub_is_downloaded_once_and_named_as_the_adapters_base(hub: Hub, tmp_path: Path) -> None:
    shutil.copyfile("model.safetensors", "consolidated.00.safetensors")
    config = ModelConfig(path="owner/tiny", adapter=AdapterConfig(rank=2))
    policy = load_model(config)
    assert torch.equal(policy.lm_head.weight, model("qwen2", len(tokenizer())).lm_head.weight)
    assert not any("consolidated" in path for path in hub.asked if "/resolve/" in path)
    downloaded = sum(path.endswith("model.safetensors") for path in hub.asked)
    load_model(config)
    assert sum(path.endswith("model.safetensors") for path in hub.asked) == downloaded > 0
    (tmp_path / "adapter").mkdir()
    save_adapter(policy, tmp_path / "adapter")
    told = find(str(tmp_path / "adapter"), "model.path")
    assert (told.name, told.revision, told.adapter) == ("owner/tiny", COMMIT, tmp_path / "adapter")
    hub.broken = True
    assert find("owner/tiny", "model.path").folder == told.folder, "a copy in the cache serves where the hub does not"


def _refused(name: str, *words: str) -> None:
    with pytest.raises(DataError) as refused:
        find(name, "model.path")
    said = str(refused.value)
    assert said.startswith(f"model.path {name}: ") and "\n" not in said and len(said) < 400, said
    assert all(word in said for word in words), said


def test_a_model_that_cannot_be_had_is_answered_with_the_remedy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    _refused("owner/tyni", "no such model on the hub", "spelling", "hf auth login")
    _refused("not a name", "no such folder", "no name on the hub")
    hub.gated.add("owner/tiny")
    _refused("owner/tiny", "is gated", "accept its terms", "hf auth login")
    hub.gated.clear()
    hub.broken = True
    _refused("owner/tiny", "hub", "again")
    hub.broken = False
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _refused("owner/tiny", "HF_HUB_OFFLINE is set", "unset it")


@pytest.mark.seconds
def test_a_download_that_is_cut_off_goes_on_when_the_run_is_started_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut.add("model.safetensors")
    _refused("owner/tiny", "cut off", "run again")
    hub.cut.clear()
    assert find("owner/tiny", "model.path").folder.joinpath("model.safetensors").is_file()


def test_a_full_disk_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, "http_get", full)
    _refused("owner/tiny", "disk is full", "HF_HOME")


def test_a_folder_with_a_shard_missing_is_refused(tmp_path: Path) -> None:
    policy = model("qwen2", len(tokenizer()))
    policy.save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    _refused(str(tmp_path), f"1 of {len(shards)} files", shards[1].name, "run it again")


def test_the_shipped_model_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = load_model(ModelConfig())
    assert policy.config.model_type == "llama"
    _refused("models/another", "no such folder")
