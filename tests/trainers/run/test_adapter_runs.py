"""Runs that train an adapter: they resume to the same end, and leave what peft, transformers and the evaluator read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_runs import model, summary, tokenizer, without_times, write_settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainers.programs.evaluate import main as evaluate
from trainers.programs.export_model import main as export
from trainers.train import main

LORA = {"rank": 4, "alpha": 8}
KL = {"objective": {"kl": "k3"}}


def _settings(place: Path, adapter: dict[str, Any] = LORA, **changes: Any) -> Path:
    settings = {"path": str(place / "model"), "adapter": adapter, "gradient_checkpointing": True}
    settings |= {"compute_dtype": "bfloat16"} if "base" in adapter else {}
    return write_settings(place, model=settings, method=KL, **changes)


@pytest.fixture
def run(place: Path) -> Path:
    """A run of two iterations that trained an adapter."""
    assert main(["--config", str(_settings(place, iterations=2))]) == 0
    return place / "runs" / "tiny"


def _logits(policy: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = policy(torch.tensor([[5, 6, 7, 8, 9]])).logits
    return out


def test_a_checkpoint_is_an_adapter_that_peft_and_transformers_load_and_names_its_base(run):
    checkpoint = run / "checkpoints" / "iteration-00002"
    body = orjson.loads((checkpoint / "adapter_config.json").read_bytes())
    assert body["base_model_name_or_path"] == str(run.parents[1] / "model")
    assert not (checkpoint / "model.safetensors").exists() and not (checkpoint / "config.json").exists()
    base = AutoModelForCausalLM.from_pretrained(run.parents[1] / "model")
    expected = _logits(base)
    by_transformers = _logits(AutoModelForCausalLM.from_pretrained(checkpoint))
    torch.testing.assert_close(by_transformers, _logits(PeftModel.from_pretrained(base, str(checkpoint))))
    assert float((by_transformers - expected).abs().max()) > 1e-3
    told = summary(run)["model"]
    assert told["trained"] == sum(tensor.numel() for tensor in _adapter(checkpoint).values()) < told["parameters"] / 4


def _adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def test_an_export_is_an_adapter_or_a_whole_model(run, tmp_path, capfd):
    alone, whole, short = tmp_path / "alone", tmp_path / "deep" / "whole", tmp_path / "short"
    assert export([str(run), "--output", str(alone)]) == 0
    assert sorted(file.name for file in alone.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert export([str(run / "checkpoints" / "iteration-00002"), "--output", str(whole), "--merged"]) == 0
    assert export([str(run), "--output", str(short), "--merged", "--dtype", "bfloat16"]) == 0
    expected = _logits(AutoModelForCausalLM.from_pretrained(alone))
    loaded = AutoModelForCausalLM.from_pretrained(whole)
    assert type(loaded).__name__ == "Qwen2ForCausalLM" and loaded.dtype == torch.float32
    torch.testing.assert_close(_logits(loaded), expected, rtol=0, atol=1e-5)
    rounded = AutoModelForCausalLM.from_pretrained(short)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(_logits(rounded).float(), expected, rtol=0, atol=0.2)
    for folder in (alone, whole):
        read = AutoTokenizer.from_pretrained(folder)
        assert read.chat_template == tokenizer().chat_template and read.get_vocab() == tokenizer().get_vocab()
    capfd.readouterr()
    for arguments, words in (
        ([str(run), "--output", str(alone)], "holds files already"),
        ([str(run), "--output", str(tmp_path / "x"), "--dtype", "float16"], "add --merged"),
        ([str(tmp_path), "--output", str(tmp_path / "x")], "neither a checkpoint, an adapter"),
    ):
        assert export(arguments) in (1, 2)
        assert words in capfd.readouterr().err
    (run.parents[1] / "model").rename(run.parents[1] / "gone")
    assert export([str(run), "--output", str(tmp_path / "x"), "--merged"]) == 1
    assert "names the base" in capfd.readouterr().err and not (tmp_path / "x").exists()


def test_a_run_that_trained_the_model_exports_the_model(place, tmp_path):
    assert main(["--config", str(write_settings(place, iterations=0))]) == 0
    assert export([str(place / "runs" / "tiny"), "--output", str(tmp_path / "model-again")]) == 0
    expected = model("qwen2", len(tokenizer()))
    assert torch.equal(_logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model-again")), _logits(expected))


def test_checkpoints_and_exports_are_evaluated_alike(run, tmp_path, capfd):
    assert export([str(run), "--output", str(tmp_path / "whole"), "--merged"]) == 0
    plain, own, found = write_settings(run.parents[1]), run / "config.yaml", []
    checkpoint = run / "checkpoints" / "iteration-00002"
    for config, path in ((own, checkpoint), (plain, checkpoint), (plain, tmp_path / "whole")):
        capfd.readouterr()
        assert evaluate(["--config", str(config), "--model.path", str(path)]) == 0
        (result,) = orjson.loads(capfd.readouterr().out)
        found.append({key: value for key, value in result.items() if key != "name" and not key.endswith("_s")})
    assert found[0] == found[1] == found[2]
    assert found[0]["strata"][0]["n"] == 4


@pytest.mark.slow
def test_a_run_goes_on_from_another_runs_adapter_which_is_its_reference(run):
    place, first = run.parents[1], run / "checkpoints" / "iteration-00002"
    more = {"method": KL, "model": {"path": str(first), "adapter": LORA}, "name": "next", "iterations": 2}
    config = write_settings(place, **more, **{"optim.lr": 1e-5})
    assert main(["--config", str(config)]) == 0
    assert all(record.get("train/kl", 0.0) < 1e-5 for record in without_times(place / "runs" / "next"))
    last = place / "runs" / "next" / "checkpoints" / "iteration-00002"
    body = orjson.loads((last / "adapter_config.json").read_bytes())
    assert body["base_model_name_or_path"] == str(place / "model"), "the adapter is to the base, not to the first run's"
    was, now = _adapter(first), _adapter(last)
    assert was.keys() == now.keys()
    assert 0 < max(float((was[key] - now[key]).abs().max()) for key in was) < 1e-3
    config = write_settings(place, **{**more, "iterations": 3}, **{"optim.lr": 1e-5})
    assert main(["--config", str(config), "--resume"]) == 0
    assert all(record.get("train/kl", 0.0) < 1e-5 for record in without_times(place / "runs" / "next"))
