"""``auto_ranks.py MOMENT``: a process that starts ``rollout.engine: auto`` with a vLLM in itself, which fails in one.

``memory``: there is too little before the start. ``start``: vLLM raises once all have made their groups. ``none``: no.
A stand-in takes vLLM's place: it waits for the other process at its start, as vLLM does, and computes nothing.
"""

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import torch
from policies import wide_llama
from tiny_runs import tokenizer

from trainers.policy.config import ModelConfig
from trainers.processes.distributed import make_accelerator
from trainers.rollout.config import RolloutConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import start_engine
from trainers.rollout.vllm import engine, inside, options
from trainers.settings import ConfigError


class OnGPU(EngineSetup):
    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


accelerator = make_accelerator(timeout=1.0)
fails = accelerator.process_index == 1


def share(*_: Any) -> float:
    if fails and sys.argv[1] == "memory":
        raise ConfigError("the GPU has too little memory")
    return 0.5


def start(words: list[str]) -> Any:
    torch.distributed.new_group()
    if fails and sys.argv[1] == "start":
        raise torch.OutOfMemoryError("CUDA out of memory")
    return SimpleNamespace(engine_core=SimpleNamespace(_finalizer=SimpleNamespace(detach=lambda: None)))


options.VLLMOptions.share = share
options.check_interpreter = lambda *_, **__: None
inside._start_vllm, inside._preserve_process = start, contextlib.nullcontext
engine.check_host = lambda *_: 512
setup = OnGPU(wide_llama(tied=True), tokenizer(), ModelConfig(), 4, accelerator)
rollout = RolloutConfig(engine="auto", engine_options={"place": "process"})
told: list[str] = []
chosen, _ = start_engine(rollout, setup, told.append)
accelerator.wait_for_everyone()
print(f"\nrank {accelerator.process_index}: {told[0]}", flush=True)
torch.distributed.destroy_process_group()
