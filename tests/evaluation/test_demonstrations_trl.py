"""What Hugging Face ``datasets`` loads and TRL's ``SFTTrainer`` takes, with the packages themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from envsuite.cli import main
from envsuite.prompting.shipped import read_template

datasets = pytest.importorskip("datasets", reason="needs datasets: pip install 'envsuite[examples]'")

MASKED = (
    "{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}{% generation %}{{- message.content }}"
    "{%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}{{- '<|im_end|>' }}"
    "{% endgeneration %}{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}{{- '\n' }}{%- endfor %}"
)
"""A template that marks what the assistant says, with calls as JSON."""


def written(folder: Path, env_id: str, *arguments: str) -> Path:
    path = folder / f"{env_id}.jsonl"
    assert main(["export", "demos", env_id, "--n", "4", "--out", str(path), *arguments]) == 0
    return path


def loaded(path: Path, cache: Path) -> Any:
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))


@pytest.mark.parametrize("form", ["native", "tags"])
@pytest.mark.parametrize("env_id", ["TextCraft-v0", "PythonMath-v0", "WebShop-v0"])
def test_datasets_loads_what_was_written(env_id, form, tmp_path):
    path = written(tmp_path, env_id, "--form", form)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 4
    for row, read in zip(rows, loaded(path, tmp_path), strict=True):
        assert {key: read[key] for key in row if key != "messages"} == {k: v for k, v in row.items() if k != "messages"}
        assert [_without_none(message) for message in read["messages"]] == row["messages"]


def _without_none(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize("only_assistant", [False, True])
@pytest.mark.parametrize(("env_id", "form"), [("PythonMath-v0", "native"), ("WebShop-v0", "native"),
                                              ("TextCraft-v0", "tags")])  # fmt: skip
def test_sft_takes_a_set_and_trains(env_id, form, only_assistant, smol, tmp_path):
    trl = pytest.importorskip("trl", reason="needs trl: pip install 'envsuite[examples]'")
    path = written(tmp_path, env_id, "--form", form)
    template = smol.chat_template
    smol.chat_template = MASKED if only_assistant else read_template("smollm2", "chat_templates", "chat template")
    try:
        config = LlamaConfig(
            vocab_size=len(smol), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=8192,
        )  # fmt: skip
        settings = trl.SFTConfig(
            output_dir=str(tmp_path / "sft"), max_steps=2, per_device_train_batch_size=2, max_length=4096,
            assistant_only_loss=only_assistant, use_cpu=True, report_to=[], save_strategy="no", learning_rate=1e-2,
            bf16=False, logging_steps=1,
        )  # fmt: skip
        trainer = trl.SFTTrainer(
            model=LlamaForCausalLM(config), args=settings, processing_class=smol, train_dataset=loaded(path, tmp_path)
        )
        outcome = trainer.train()
    finally:
        smol.chat_template = template
    assert outcome.global_step == 2 and 0 < outcome.training_loss < 20
    row = trainer.train_dataset[0]
    text = smol.decode(row["input_ids"])
    first = json.loads(path.read_text().splitlines()[0])
    for tool in json.loads(first["tools"] or "[]"):
        assert json.dumps(tool["function"]["description"], ensure_ascii=False)[1:-1] in text
    for message in first["messages"]:
        for call in message.get("tool_calls", ()):
            assert f'"name": "{call["function"]["name"]}"' in text
    assert first["tools"] is not None if form == "native" else "<action>" in text
    learnt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    if only_assistant:
        said = smol.decode(learnt)
        assert first["messages"][1]["content"] not in said and said.count("<|im_end|>") == sum(
            message["role"] == "assistant" for message in first["messages"]
        )
    else:
        assert learnt == row["input_ids"]
