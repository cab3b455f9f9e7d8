"""Where models come from: folders, GGUF files, a hub, and one message with the remedy where they do not."""

from __future__ import annotations

import errno
import json
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
from transformers import AutoTokenizer

from envsuite.core.errors import DataError
from trainers.policy.adapter import save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.source import find
from trainers.programs.export_model import main as export
from trainers.programs.imitate import main as imitate
from trainers.settings.words import read_file


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


def test_a_name_on_the_hub_is_downloaded_once_and_named_as_the_adapters_base(hub, tmp_path):
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


def test_a_model_that_cannot_be_had_is_answered_with_the_remedy(hub, monkeypatch):
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
def test_a_download_that_is_cut_off_goes_on_when_the_run_is_started_again(hub, monkeypatch):
    hub.cut.add("model.safetensors")
    _refused("owner/tiny", "cut off", "run again")
    hub.cut.clear()
    assert find("owner/tiny", "model.path").folder.joinpath("model.safetensors").is_file()


def test_a_full_disk_is_named(hub, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_download, "http_get", full)
    _refused("owner/tiny", "disk is full", "HF_HOME")


def test_a_folder_with_a_shard_missing_is_refused(tmp_path):
    policy = model("qwen2", len(tokenizer()))
    policy.save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    _refused(str(tmp_path), f"1 of {len(shards)} files", shards[1].name, "run it again")


def test_the_shipped_model_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = load_model(ModelConfig())
    assert policy.config.model_type == "llama"
    _refused("models/another", "no such folder")


# -- a chat template in place of the model's own, and models in installed packages -------------------------------------


OWN = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"


def test_the_template_replaces_the_model_s_own_and_goes_with_what_is_saved(tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text(OWN)
    assert load_tokenizer(ModelConfig(chat_template=str(file))).chat_template == OWN != load_tokenizer(ModelConfig())
    stages = "[{steps: 1, max_steps: 1, games: [{kwargs: {source: generated, goals: 60}}]}]"
    learnt, exported = tmp_path / "learnt", tmp_path / "exported"
    words = ["--output", str(learnt), "--stages", stages, "--batch", "1", "--prompt.memory", "full"]
    assert imitate([*words, "--model.path", "models/craft-1m", "--model.chat_template", str(file)]) == 0
    assert load_tokenizer(ModelConfig(path=str(learnt))).chat_template == OWN
    assert export([str(learnt), "--output", str(exported), "--merged"]) == 0
    assert AutoTokenizer.from_pretrained(exported).chat_template == OWN


def test_a_template_that_is_missing_or_cannot_be_rendered_is_named(tmp_path):
    with pytest.raises(DataError, match=r"model.chat_template smollm: no such file .* Did you mean 'smollm2'"):
        load_tokenizer(ModelConfig(chat_template="smollm"))
    file = tmp_path / "broken.jinja"
    file.write_text("{% for m in messages %}")
    with pytest.raises(DataError, match=r"model.chat_template .*broken.jinja: the chat template cannot render"):
        load_tokenizer(ModelConfig(chat_template=str(file)))


def test_a_model_in_an_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "some_weights"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for file in find("models/craft-1m", "model.path").folder.iterdir():
        (package / "model" / file.name).write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    config = ModelConfig(path="package:some_weights/model")
    assert load_tokenizer(config).chat_template and load_model(config).num_parameters() > 1_000_000
    assert find(config.path, "model.path").name == config.path, "adapters name the package, not a folder"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": config.path}))
    (adapter / "adapter_model.safetensors").touch()
    assert find(str(adapter), "model.path").folder == package / "model"
    with pytest.raises(DataError, match="no package 'llm_nobody' is installed"):
        find("package:llm_nobody/model.gguf", "model.path")
    with pytest.raises(DataError, match=r"some_weights/nothing: there is no such folder or file"):
        find("package:some_weights/nothing", "model.path")


def test_the_configurations_of_smollm2_have_the_same_prompts_and_adapter():
    first, then = (read_file(f"configs/{name}.yaml") for name in ("smollm2-imitate", "smollm2"))
    assert first["prompt"] == then["prompt"]
    assert first["output"] == then["model"].pop("path")
    own = first["model"]
    assert then["model"] == {key: own[key] for key in ("compute_dtype", "adapter")}
