"""A tiny random model, a tiny recipe book and a configuration: a whole run in seconds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import orjson
import torch
import yaml
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trainers.imitation.vocabulary import word_tokenizer
from trainers.policy.loss import Objective
from trainers.report.metrics import read_metrics
from trainers.steps import StepTable
from trainers.steps.table import Ragged

Module = TypeVar("Module", bound=torch.nn.Module)
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = (sys.executable, "-m", "accelerate.commands.launch")
BOTH = (*LAUNCH, "--config_file", str(ROOT / "configs/accelerate/cpu2.yaml"))
"""Launches two processes."""
BOOK = {"source": "generated", "goals": 40, "book_seed": 3, "max_distractors": 2}
WORDS = ", . : Crafting Goal craft get using inventory Observation action Invalid go end raise now exit sleep"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    from envsuite.textcraft.source import vocabulary

    made = word_tokenizer([*vocabulary(), WORDS], 512)
    made.unk_token = None  # a random model need not know the words of its environment
    return made


def model(name: str, size: int, seed: int = 0, heads: int = 4) -> PreTrainedModel:
    """A model of two layers with random weights, float32."""
    torch.manual_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    shape = {"vocab_size": size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": 2, "max_position_embeddings": 512}
    wide = {**shape, **ids, "initializer_range": 0.2}
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**wide)).train(False)
    if name == "mamba":
        return MambaForCausalLM(MambaConfig(vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=8, **ids))
    if name == "lfm2":
        layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        return Lfm2ForCausalLM(Lfm2Config(**wide, **layers)).train(False)
    if name == "qwen3_moe":
        experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**wide, **experts)).train(False)
    if name == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**wide, tie_word_embeddings=True)).train(False)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.2, **ids)
    ).train(False)


def in_float64(policy: Module) -> Module:
    """The model in float64, with its norms, which transformers computes in float32 whatever the format."""

    def exact(self: Any, states: torch.Tensor) -> torch.Tensor:
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    for module in policy.modules():
        if "variance_epsilon" in vars(module):
            module.forward = MethodType(exact, module)
    return policy.double()


def save_model(folder: Path, name: str = "qwen2", seed: int = 0, heads: int = 4) -> Path:
    """Model and tokenizer in ``folder``."""
    policy = model(name, len(tokenizer()), seed, heads)
    policy.config.eos_token_id = policy.generation_config.eos_token_id = tokenizer().eos_token_id
    policy.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of four iterations of a few short episodes, as a config file has it; dotted names change settings."""
    base: dict[str, Any] = {
        "name": "tiny",
        "output": str(folder / "runs"),
        "iterations": 4,
        "recipe": "gigpo",
        "model": {"path": str(folder / "model")},
        "envs": [{"id": "TextCraft-v0", "kwargs": dict(BOOK), "max_episode_steps": 3}],
        "prompt": {"think": False, "instructions": False, "memory": "full"},
        "rollout": {"tasks": 2, "group_size": 3, "slots": 4, "sampling": {"max_tokens": 6}},
        "optim": {"lr": 0.01, "warmup": 1, "schedule": "cosine", "minibatches": 2, "tokens_per_microbatch": 300},
        "evaluation": {
            "episodes": 4,
            "every": 2,
            "sampling": {"max_tokens": 6},
            "envs": [{"id": "TextCraft-v0", "split": "test", "kwargs": dict(BOOK), "max_episode_steps": 2}],
        },
        "checkpoint_every": 2,
        "report": False,
    }
    for key, value in changes.items():
        *path, last = key.split(".")
        section = base
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return base


def write_settings(folder: Path, **changes: Any) -> Path:
    """The settings as a file."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings(folder, **changes)), encoding="utf-8")
    return path


def environment(**more: str) -> dict[str, str]:
    """Of a child process: one thread, the repository's packages."""
    launched = ("ACCELERATE_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", **more}


def train(
    *arguments: str, timeout: float = 300.0, program: Sequence[str] = (), status: int | None = None
) -> subprocess.CompletedProcess[str]:
    """``python -m trainers.train`` in a process of its own, which has to end with ``status`` if that is given."""
    words = [*(program or (sys.executable, "-m", "trainers.train")), *arguments]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert status in (None, done.returncode), f"{done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def begin(*words: str) -> subprocess.Popen[str]:
    """A process in the repository's folder, all of whose words come out of one pipe."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, cwd=ROOT, env=environment(), text=True, **pipes)


def without_times(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run that must not differ between two runs of the same settings."""
    return [
        {k: v for k, v in record.items() if not k.startswith(("time/", "idle/", "cpu/", "rate/", "memory/"))}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def trained(folder: Path, *arguments: str, **changes: Any) -> list[dict[str, Any]]:
    """The metrics, without times, of a run in this process, which may go on one that is there."""
    from trainers.train import main

    assert main(["--config", str(write_settings(folder, **changes)), *arguments]) == 0
    return without_times(folder / "runs" / "tiny")


def weights(checkpoint: Path) -> Mapping[str, bytes]:
    """Bytes of model, or adapter, and optimiser; of a sharded run in several files."""
    stem = "adapter_model" if (checkpoint / "adapter_config.json").is_file() else "model"
    return {
        file.name: file.read_bytes() for name in (stem, "optimizer") for file in checkpoint.glob(f"{name}*.safetensors")
    }


def rewrite(file: Path, content: bytes) -> None:
    """Change a file of a checkpoint, and its entry in the manifest."""
    file.write_bytes(content)
    manifest = file.with_name("manifest.json")
    body = orjson.loads(manifest.read_bytes())
    body["files"][file.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_bytes(orjson.dumps(body))


def summary(run: Path) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads((run / "summary.json").read_bytes())
    return body


def step_table(
    rng: np.random.Generator, size: int, groups: int = 3, members: int = 2, append: bool = True
) -> StepTable:
    """Random steps: prompts of a group begin alike; with ``append`` each prompt extends the step before."""
    rows: list[tuple[int, int, int, list[int], list[int]]] = []
    for group in range(groups):
        first = rng.integers(0, size, rng.integers(1, 12)).tolist()
        for member in range(members):
            prompt = list(first)
            for t in range(int(rng.integers(1, 4))):
                response = rng.integers(0, size, rng.integers(0 if t else 1, 6)).tolist()
                rows.append((group, group * members + member, t, prompt, response))
                more = rng.integers(0, size, rng.integers(1, 5)).tolist()
                prompt = [*prompt, *response, *more] if append else rng.integers(0, size, 5).tolist()
    order = rng.permutation(len(rows))
    rows = [rows[i] for i in order]
    keys = np.empty(len(rows), object)
    keys[:] = ["s"] * len(rows)
    return StepTable(
        group_id=np.array([r[0] for r in rows], np.int64),
        episode_id=np.array([r[1] for r in rows], np.int64),
        t=np.array([r[2] for r in rows], np.int64),
        reward=rng.normal(size=len(rows)),
        state_key=keys,
        valid=np.ones(len(rows), np.bool_),
        prompt=Ragged.of((r[3] for r in rows), np.int64),
        response=Ragged.of((r[4] for r in rows), np.int64),
        logprob=Ragged.of(([-1.0] * len(r[4]) for r in rows), np.float32),
    )


AGGREGATIONS = {
    "token-mean": Objective(aggregation="token-mean"),
    "token-sum": Objective(aggregation="token-sum"),
    "seq-mean-token-sum": Objective(aggregation="seq-mean-token-sum"),
    "seq-mean-token-mean": Objective(aggregation="seq-mean-token-mean", ratio="sequence"),
    "episodes": Objective(aggregation="seq-mean-token-mean", average="episodes"),
    "norm": Objective(aggregation="seq-mean-token-sum-norm", horizon=16, count_empty=True),
}


def gradient_cases() -> dict[str, tuple[Objective, StepTable, np.ndarray, int]]:
    """Objective, step table, advantages and micro-batch budget; each aggregation with groups spread unevenly."""
    cases = {}
    for number, (name, objective) in enumerate(AGGREGATIONS.items()):
        table = step_table(np.random.default_rng(number), 61, groups=5)
        advantage = np.random.default_rng(number + 100).normal(size=len(table.response.values))
        cases[name] = (objective, table, advantage, 40)
        cases[f"{name}-idle"] = (objective, table, advantage, 40)
    return cases


def share_of(case: str, table: StepTable, rank: int, ranks: int) -> np.ndarray:
    """Rows of a rank: groups 0 and 2 go to the last, all others to the first; in an idle case the last has none."""
    first = np.isin(table.group_id, [1, 3, 4]) | (ranks == 1) | case.endswith("-idle")
    return np.flatnonzero(first if rank == 0 else ~first)
