"""Experts that engine and trainer choose apart in mixtures with random weights, and what following the engine's gives.

    python -m benchmarks.routing

Episodes of two turns, eight to a task, are sampled by the engine hf; then the trainer computes their log-probabilities
with its own choice of experts, and with the engine's. ``tokens`` and ``choices`` are the metrics ``rerouted_tokens``
and ``rerouted_choices``, the gap is |engine's - trainer's| log-probability of response tokens. ``noting`` is what the
engine's noting of experts costs: CPU seconds with over those without, the least of several rounds in turns.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from envsuite.playing.engine import Sampling
from trainers.policy.config import ComputeDtype
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.routing import Routing
from trainers.rollout import hf_engine
from trainers.rollout.hf_engine import HFEngine
from trainers.steps import Ragged, StepTable

VOCABULARY = 512
GROUP, TURNS = 8, 2
_WIDE = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096, "moe_intermediate_size": 64,
    "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64},
    "glm4_moe": {"n_routed_experts": 32, "num_experts_per_tok": 4, "first_k_dense_replace": 1},
}
"""Families by name, with their own settings."""


@dataclass(frozen=True)
class Sampled:
    """Rows that an engine sampled."""

    table: StepTable
    seconds: float
    """CPU time of the engine."""


def made(name: str) -> PreTrainedModel:
    """A model of a family with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**_WIDE, **MODELS[name]})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.train(False)


@contextmanager
def nothing_noted(model: PreTrainedModel) -> Iterator[Routing]:
    """Leaves the routers alone."""
    yield Routing(False)


def sampled(model: PreTrainedModel, dtype: ComputeDtype, tasks: int, tokens: int) -> Sampled:
    """Episodes of ``tasks`` prompts, :data:`GROUP` of each, ``tokens`` in each answer."""
    engine = HFEngine(model, max_batch=tasks * GROUP, compute_dtype=dtype)
    draw = np.random.default_rng(0)
    common = draw.integers(0, VOCABULARY, 64).tolist()
    starts = [[*common, *draw.integers(0, VOCABULARY, 64).tolist()] for _ in range(tasks)]
    prompts = [start for start in starts for _ in range(GROUP)]
    rows: list[tuple[list[int], Any]] = []
    began = time.process_time()
    for turn in range(TURNS):
        answers = engine.generate(prompts, Sampling(max_tokens=tokens, ignore_eos=True), seed=turn)
        rows += zip(prompts, answers, strict=True)
        prompts = [[*prompt, *answer.token_ids.tolist(), *draw.integers(0, VOCABULARY, 16).tolist()]
                   for prompt, answer in zip(prompts, answers, strict=True)]  # fmt: skip
    seconds = time.process_time() - began
    count, experts = len(rows), np.empty(len(rows), object)
    experts[:] = [answer.experts for _, answer in rows]
    zero = np.zeros(count, np.int64)
    table = StepTable(
        group_id=zero, episode_id=np.arange(count), t=zero, reward=np.zeros(count),
        state_key=np.full(count, "", object), valid=np.ones(count, np.bool_),
        prompt=Ragged.of([prompt for prompt, _ in rows], np.int32),
        response=Ragged.of([answer.token_ids for _, answer in rows], np.int32),
        logprob=Ragged.of([answer.logprobs for _, answer in rows], np.float32), experts=experts,
    )  # fmt: skip
    return Sampled(table, seconds)


def compared(policy: Policy, table: StepTable) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Gap of each response token, and the counts of tokens that go elsewhere."""
    gaps, counts = np.zeros(len(table.response.values)), np.zeros(4, np.int64)
    with torch.no_grad():
        for tree in micro_batches(table, 4096, share_prefix=True):
            gaps[tree.index] = policy(tree).logprob.double().numpy() - table.logprob.values[tree.index]
            counts += policy.rerouted.numpy()
    return np.abs(gaps), counts


def noting(model: PreTrainedModel, dtype: ComputeDtype, tasks: int, tokens: int, rounds: int) -> float:
    """The engine's least time with noted experts over that without, of some rounds in turns."""
    own, silent = [], []
    for _ in range(rounds):
        own.append(sampled(model, dtype, tasks, tokens).seconds)
        with patch.object(hf_engine, "routing", nothing_noted):
            silent.append(sampled(model, dtype, tasks, tokens).seconds)
    return min(own) / min(silent) if rounds else math.nan


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="(default: all)")
    parser.add_argument("--formats", nargs="+", choices=get_args(ComputeDtype), default=["bfloat16"])
    parser.add_argument("--tasks", type=int, default=4, help="prompts of eight episodes each (default: 4)")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer (default: 32)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of the noting's cost (default: 3)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | format | trainer's experts | tokens, % | choices, % | gap, mean | gap, max | noting |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for name in given.models:
        model = made(name)
        for dtype in given.formats:
            table = sampled(model, dtype, given.tasks, given.tokens).table
            cost = noting(model, dtype, given.tasks, given.tokens, given.rounds)
            for replay in (False, True):
                policy = Policy(model, compute_dtype=dtype, replay=replay)
                gaps, (every, tokens, choices, others) = compared(policy, table)
                print(
                    f"| {name} | {dtype} | {'replayed' if replay else 'own'} | {100 * tokens / every:.2f} "
                    f"| {100 * others / choices:.2f} | {gaps.mean():.2g} | {gaps.max():.2g} | {cost:.3f} |"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
