"""``python -m benchmarks.critic``: time of a critic of two layers beside one of all layers of a deep model.

Each reads the values of the same steps and learns them once, as an iteration with ``vetta`` does. The model has random
weights: depth and tokens decide the time, not what it knows.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.vetta import VETTA
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.steps import Ragged, StepTable

VOCABULARY = 2_000


def deep(layers: int, width: int) -> PreTrainedModel:
    """A model of the shape of Qwen3 with random weights, float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=width // 4, max_position_embeddings=4096,
    )  # fmt: skip
    model: PreTrainedModel = Qwen3ForCausalLM(config)
    model.train(False)
    return model


def step_table(rows: int, prompt: int, response: int) -> StepTable:
    """Rows of random tokens, four steps an episode."""
    rng, row = np.random.default_rng(0), np.arange(rows)
    prompts, responses = (
        Ragged(rng.integers(VOCABULARY, size=rows * length), np.arange(rows + 1) * length)
        for length in (prompt, response)
    )
    keys = np.full(rows, "state", object)
    logprob = Ragged(np.zeros(rows * response, np.float32), responses.offsets)
    reward = rng.random(rows)
    return StepTable(
        row // 8, row // 4, row % 4, reward, keys, np.ones(rows, np.bool_),
        prompt=prompts, response=responses, logprob=logprob,
    )  # fmt: skip


def seconds(critic: Critic, steps: StepTable) -> float:
    """CPU seconds of reading the values and of one pass of learning."""
    start = time.process_time()
    read = critic.columns(steps)
    critic.learn(VETTA().taught(read), np.random.default_rng(0))
    return time.process_time() - start


def main() -> None:
    """Prints the seconds of both, best of the rounds, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critic", description=__doc__)
    parser.add_argument("--layers", type=int, default=28, help="layers of the model (28)")
    parser.add_argument("--width", type=int, default=128, help="its width (128)")
    parser.add_argument("--rows", type=int, default=16, help="steps (16), of 256 tokens and 32 of response")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured, in turns (3)")
    given = parser.parse_args()
    model, steps = deep(given.layers, given.width), step_table(given.rows, 256, 32)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config, optim, run = ModelConfig(path=folder), OptimConfig(tokens_per_microbatch=2048), Accelerator(cpu=True)
        critics = {
            kind: Critic(CriticConfig(kind=kind), run, model, config, optim, VETTA().values, seed=0)
            for kind in ("model", "truncated")
        }
    for _ in range(given.rounds):
        for kind, critic in critics.items():
            best[kind] = min(best.get(kind, np.inf), seconds(critic, steps))
    for kind, critic in critics.items():
        print(f"{kind:10} {best[kind]:7.2f} s {sum(p.numel() for p in critic.module.parameters()):12,} parameters")
    print(f"ratio      {best['truncated'] / best['model']:7.3f}   layers {2 / given.layers:.3f}")


if __name__ == "__main__":
    main()
