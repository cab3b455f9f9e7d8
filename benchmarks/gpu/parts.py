"""The parts of the benchmark, each in processes of its own: ``python -m benchmarks.gpu.parts PART`` (JSON)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import yaml
from accelerate import Accelerator
from transformers import PreTrainedModel

from benchmarks.gpu.shapes import SHAPES, episodes, made, saved
from envsuite.core.errors import EnvsuiteError
from envsuite.playing.engine import Sampling
from trainers.planning.hardware import GPUS
from trainers.policy.accumulation import Batch
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.kernels import choose_kernel
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.optimizer import make_optimizer
from trainers.policy.packing import micro_batches
from trainers.policy.sharding import shard, spreads
from trainers.policy.update import Updater
from trainers.processes.distributed import all_gather_object, make_accelerator
from trainers.report.metrics import read_metrics
from trainers.rollout.hf_engine import HFEngine

ADAPTER = {"rank": 32, "alpha": 32, "base": "bfloat16"}


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    tasks: int = 16
    """Groups of a step and of a generation."""
    members: int = 8
    """Episodes of a group."""
    steps: int = 50
    """Steps of an episode."""
    response: int = 64
    """Tokens of each response: random weights end none."""
    prompt: int = 512
    """Tokens of the prompts of ``update`` and ``generate``."""
    update_groups: int = 4
    """Groups of ``update``."""
    update_steps: int = 12
    """Steps of its episodes."""
    generated: int = 128
    """Tokens of each response of ``generate``."""
    tokens_per_microbatch: int = 16384
    """As ``optim.tokens_per_microbatch``."""
    iterations: int = 1
    """Iterations of ``step``; the last one counts."""


@dataclass(frozen=True)
class Part:
    """One measurement."""

    kind: str
    """``update``, ``generate``, ``step``, or ``vllm``: a step with that engine."""
    shape: str
    way: str
    """``full``, or ``lora`` on frozen weights in bfloat16."""
    attention: str = "sdpa"
    processes: int = 1
    """More than one: one a GPU, the policy sharded over them."""
    device: str = "cuda"
    size: Size = Size()

    @property
    def name(self) -> str:
        """Its name in the results."""
        spread = f" on {self.processes} processes" if self.processes > 1 else ""
        return f"{self.kind} {self.shape} {self.way} {self.attention}{spread}"

    @classmethod
    def of(cls, text: str) -> Part:
        """The part that ``json.dumps(asdict(part))`` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "size": Size(**fields["size"])})

    @property
    def settings(self) -> ModelConfig:
        """The settings ``model`` of a run."""
        return ModelConfig(
            compute_dtype="bfloat16",
            attention=self.attention,  # type: ignore[arg-type]
            gradient_checkpointing=self.shape == "7b",  # what fits 80 GB without is not computed again
            shard="full" if self.processes > 1 else "none",
            adapter=AdapterConfig(**ADAPTER) if self.way == "lora" else None,  # type: ignore[arg-type]
        )


def _model(part: Part, device: torch.device) -> PreTrainedModel:
    model = made(part.shape, device, torch.bfloat16 if part.way == "lora" else torch.float32)
    if part.settings.adapter is not None:
        add_adapter(model, part.settings.adapter, part.shape)
    choose_kernel(model, part.settings.attention)
    return model


class Measure:
    """Seconds and memory between its making and :meth:`done`; waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()

    def done(self) -> dict[str, float]:
        """Seconds, and the most memory: of tensors on the GPU and of what PyTorch holds there; else of the process."""
        if not self.cuda:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            return {"seconds": time.perf_counter() - self.began, "memory_gib": peak}
        torch.cuda.synchronize()
        return {
            "seconds": time.perf_counter() - self.began,
            "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        }


def update(part: Part, accelerator: Accelerator) -> dict[str, float]:
    """An optimiser step on episodes whose prompts extend each other; the second of two counts."""
    size, settings = part.size, part.settings
    model = _model(part, accelerator.device)
    weights = sum(parameter.numel() for name, parameter in model.named_parameters() if ".layers." in name)
    if settings.gradient_checkpointing:
        checkpoint_activations(model)
    policy = Policy(model, compute_dtype="bfloat16")
    if spreads(settings, accelerator):
        shard(policy, settings, accelerator)
    optim = OptimConfig(lr=1e-6, tokens_per_microbatch=size.tokens_per_microbatch)
    optimizer = make_optimizer(policy.parameters(), optim)
    updater = Updater(accelerator, policy, optimizer, optim, Objective())
    table = episodes(
        SHAPES[part.shape]["vocab_size"], groups=size.update_groups, members=size.members, steps=size.update_steps,
        prompt=size.prompt, response=size.response,
    )  # fmt: skip
    rank, ranks = accelerator.process_index, accelerator.num_processes
    own = table.take(np.flatnonzero(table.group_id % ranks == rank))
    batch = Batch(own, np.random.default_rng(1).normal(size=len(own.response.values)))
    for turn in range(2):
        measure = Measure(accelerator.device)
        updater.update(batch, np.random.default_rng(turn))
        told = measure.done()
    pieces = micro_batches(own, size.tokens_per_microbatch)
    parts = all_gather_object(accelerator, (sum(map(len, pieces)), len(own.response.values), told))
    computed, responses = (sum(each[i] for each in parts) for i in (0, 1))
    seconds = max(each[2]["seconds"] for each in parts)
    memory = {key: max(each[2][key] for each in parts) for key in told if key != "seconds"}
    head = SHAPES[part.shape]["vocab_size"] * SHAPES[part.shape]["hidden_size"]
    products = (6 if part.way == "full" else 4) * (weights * computed + head * responses) / ranks
    return {"seconds": seconds, **memory, "tokens_per_s": computed / seconds, **utilisation(products / seconds)}


def utilisation(rate: float) -> dict[str, float]:
    """Share that ``rate`` (operations a second in products, none twice) is of this GPU's, by its maker's data sheet."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    known = [gpu for label, gpu in GPUS.items() if label.replace("-", " ") in name.replace("-", " ")]
    return {"percent_of_peak": 100 * rate / known[-1].bfloat16} if known else {}


def generate(part: Part, accelerator: Accelerator) -> dict[str, float]:
    """Groups of identical prompts, sampled by the engine ``hf``; the second of two rounds counts."""
    size, device = part.size, accelerator.device
    engine = HFEngine(_model(part, device), max_batch=size.tasks * size.members, compute_dtype="bfloat16")
    rng = np.random.default_rng(0)
    for limit in (4, size.generated):
        prompts = [rng.integers(SHAPES[part.shape]["vocab_size"], size=size.prompt) for _ in range(size.tasks)]
        measure = Measure(device)
        done = engine.generate([p for p in prompts for _ in range(size.members)], Sampling(max_tokens=limit))
        told = measure.done()
    tokens = sum(len(completion.token_ids) for completion in done)
    return {**told, "tokens_per_s": tokens / told["seconds"], "step_ms": 1e3 * told["seconds"] / limit}


def step(part: Part, folder: Path) -> dict[str, float]:
    """Iterations of ``trainers.train`` on ALFWorld's built-in games, ended before they write a checkpoint."""
    size = part.size
    device = torch.device(part.device)
    model = saved(part.shape, folder, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    name = part.name.replace(" ", "-")
    run = folder / "runs" / name
    config = {
        "name": name, "output": str(folder / "runs"), "iterations": 1000, "recipe": "gigpo",
        "model": {
            "path": str(model), "compute_dtype": "bfloat16", "attention": part.attention,
            "shard": part.settings.shard, "adapter": ADAPTER if part.way == "lora" else None,
        },
        "envs": [{"id": "ALFWorld-v0", "kwargs": {"source": "builtin", "games": 200}, "max_episode_steps": size.steps}],
        "prompt": {"memory": "window(2)"},
        "rollout": {
            "tasks": size.tasks, "group_size": size.members, "slots": size.tasks * size.members // part.processes,
            "sampling": {"max_tokens": size.response}, "engine": "vllm" if part.kind == "vllm" else "hf",
        },
        "optim": {"tokens_per_microbatch": size.tokens_per_microbatch},
        "evaluation": {"envs": []},
        "checkpoint_every": 1000, "episodes_every": 0, "report": False,
    }  # fmt: skip
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(part.processes)]
    command = [sys.executable, *(words if part.processes > 1 else []), "-m", "trainers.train", "--config", str(file)]
    with (folder / f"{name}.log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while len(found := _iterations(run)) < size.iterations and child.poll() is None:
                time.sleep(0.5)
        finally:
            end(child)
    if len(found) < size.iterations:
        raise EnvsuiteError("trainers.train ended: " + (folder / f"{name}.log").read_text()[-2000:])
    told = found[size.iterations - 1]
    phases = {key: told[f"time/{key}"] for key in ("rollout", "engine", "env", "estimator", "update", "total")}
    memory = told["memory/gpu"] if device.type == "cuda" else told["memory/rss"]
    steps = told["train/episode_length"] * told["train/episodes"]
    return {
        "seconds": phases.pop("total"), **phases, "memory_gib": memory, "tokens": told["train/tokens"],
        "tokens_per_s": told["rate/tokens"], "env_steps": steps, "prompt_tokens": told["train/prompt_length"],
    }  # fmt: skip


def _iterations(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [record for record in read_metrics(file) if "time/total" in record] if file.exists() else []


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends a program that has not ended, with all that it started; nothing needs a checkpoint of it."""
    if child.poll() is None:
        started = psutil.Process(child.pid)
        for process in [*started.children(recursive=True), started]:
            process.kill()
    child.wait()


def run_limited(words: Sequence[str], log: Path, limit: float, environment: dict[str, str]) -> int | None:
    """Runs Python with ``words``; returns its exit status, or ``None`` where it was ended after ``limit`` seconds."""
    with log.open("w") as out:
        child = subprocess.Popen([sys.executable, *words], stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(child)


def outcome(part: Part, folder: Path) -> dict[str, Any]:
    """What the part measured, or why it did not."""
    try:
        if part.kind in ("step", "vllm"):
            return {"status": "ok", **step(part, folder)}
        accelerator = make_accelerator()
        return {"status": "ok", **(update if part.kind == "update" else generate)(part, accelerator)}
    except torch.cuda.OutOfMemoryError as error:
        return {"status": "out of memory", "message": str(error).splitlines()[0]}
    except EnvsuiteError as error:
        memory = "out of memory" in str(error).lower()
        return {"status": "out of memory" if memory else "not run", "message": str(error)[-1500:]}


def main() -> int:
    """Prints the outcome as the last line, in the first process."""
    part, folder = Part.of(sys.argv[1]), Path(sys.argv[2])
    told = outcome(part, folder)
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(f"\n{json.dumps({**told, 'part': asdict(part)})}\n")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
