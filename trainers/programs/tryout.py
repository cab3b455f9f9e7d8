"""``python -m trainers.programs.tryout EXTRA...``: one small step of what each of the trainer's extras is for.

``envsuite doctor`` runs it. The model is that of configs/textcraft.yaml, which is shipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from envsuite.installation.tryout import Step, try_out
from trainers.policy.adapter import save_adapter
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loading import load_model
from trainers.policy.model import Policy
from trainers.policy.optimizer import make_optimizer
from trainers.policy.tree import TokenSequence, token_tree
from trainers.run.features.tracking.tracker import TRACKERS, TrackedRun

_TOKENS = 16


def _train_step(model: ModelConfig, optim: OptimConfig) -> Policy:
    """Loads the model, and takes an optimiser step."""
    policy = Policy(load_model(model)).train()
    optimizer = make_optimizer(policy.parameters(), optim)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    tree = token_tree([TokenSequence.of(np.arange(_TOKENS), np.arange(_TOKENS - 1), 0)])
    (-policy(tree).logprob.mean()).backward()
    optimizer.step()
    pairs = list(zip(before, policy.parameters(), strict=True))
    if not any((old != new).any() for old, new in pairs) or not all(new.isfinite().all() for _, new in pairs):
        raise RuntimeError("the weights after an optimiser step are those before it, or not finite")
    return policy


def _adapter(folder: Path) -> None:
    policy = _train_step(ModelConfig(adapter=AdapterConfig(rank=2, alpha=2)), OptimConfig(lr=1e-3))
    save_adapter(policy.model, folder)
    load_model(ModelConfig(path=str(folder)))


def _moments_in_8_bit(_: Path) -> None:
    with torch.compiler.set_stance("force_eager"):  # compiling its step takes minutes where the machine is busy
        _train_step(ModelConfig(), OptimConfig(lr=1e-3, state="8bit"))


def _tracker(name: str) -> Step:
    def step(folder: Path) -> None:
        os.environ.update(WANDB_MODE="offline", TRACKIO_DIR=str(folder))
        tracker = TRACKERS[name](TrackedRun("doctor", "doctor", folder, {}, "00000000", resumed=False))
        tracker.log(0, 0, {"train/entropy": 0.5})
        tracker.finish("finished")

    return step


def _gguf(folder: Path) -> None:
    import gguf

    weights, file = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(2, 32), folder / "a.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("a", gguf.quantize(weights, kind), raw_dtype=kind)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    (tensor,) = gguf.GGUFReader(file).tensors
    if not np.allclose(gguf.dequantize(tensor.data, kind).reshape(2, 32), weights, atol=0.01):
        raise RuntimeError("a tensor that was written is not what is read")


STEPS: Mapping[str, Step] = {
    "train": lambda _: _train_step(ModelConfig(), OptimConfig(lr=1e-3)),
    "lora": _adapter,
    "8bit": _moments_in_8_bit,
    "tensorboard": _tracker("tensorboard"),
    "wandb": _tracker("wandb"),
    "trackio": _tracker("trackio"),
    "gguf": _gguf,
}
"""By extra."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(try_out(STEPS, sys.argv[1:]))
