"""A chat template in place of the model's own, and models in installed packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from envsuite.core.errors import DataError
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.source import find
from trainers.programs.export_model import main as export
from trainers.programs.imitate import main as imitate
from trainers.settings.words import read_file

OWN = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"


def test_the_template_replaces_the_model_s_own_and_goes_with_what_is_saved(tmp_path: Path) -> None:
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


def test_a_template_that_is_missing_or_cannot_be_rendered_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model.chat_template smollm: no such file .* Did you mean 'smollm2'"):
        load_tokenizer(ModelConfig(chat_template="smollm"))
    file = tmp_path / "broken.jinja"
    file.write_text("{% for m in messages %}")
    with pytest.raises(DataError, match=r"model.chat_template .*broken.jinja: the chat template cannot render"):
        load_tokenizer(ModelConfig(chat_template=str(file)))


def test_a_model_in_an_installed_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_configurations_of_smollm2_have_the_same_prompts_and_adapter() -> None:
    first, then = (read_file(f"configs/{name}.yaml") for name in ("smollm2-imitate", "smollm2"))
    assert first["prompt"] == then["prompt"]
    assert first["output"] == then["model"].pop("path")
    own = first["model"]
    assert then["model"] == {key: own[key] for key in ("compute_dtype", "adapter")}
