"""What is compared on a GPU, and here on a pretended one."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from envsuite.playing.engine import Completion, Request, Sampling
from trainers.policy.accumulation import log_probabilities
from trainers.policy.attention import Scoring
from trainers.policy.config import ComputeDtype, OptimConfig
from trainers.policy.model import Policy
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.slot_attention import EFFICIENT, additive, attend
from trainers.steps import StepTable
from trainers.steps.table import Ragged


def kernel_sums(shape: str, dtype: torch.dtype, device: torch.device) -> None:
    """The engine's kernel gives the sums that merging needs: those of plain arithmetic."""
    torch.manual_seed(0)
    queries, keys = (1, 45) if shape == "one" else (37, 37) if shape == "causal" else (37, 45)
    query, key, value = (
        torch.randn(3, 4, length, 64, device=device, dtype=dtype) for length in (queries, keys, keys)
    )  # fmt: skip
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)[None, None]
    mask = additive(hidden, dtype) if shape in ("masked", "one") else None
    assert device.type in EFFICIENT
    out, total = attend(query, key, value, mask, Scoring(), causal=shape == "causal")
    scores = query.float() @ key.float().mT * 64**-0.5
    if shape == "causal":
        scores = scores + additive(hidden, torch.float32)
    elif mask is not None:
        scores = scores + mask.float()
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(total, scores.logsumexp(-1), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(out.float(), scores.softmax(-1) @ value.float(), rtol=tolerance, atol=tolerance)


def _episodes(done: list[Completion], prompts: list[np.ndarray]) -> StepTable:
    """Two turns of episodes as steps."""
    rows = sorted(done, key=lambda completion: completion.request_id)
    keys = np.full(len(rows), "s", object)
    number = np.array([row.request_id for row in rows], np.int64)
    return StepTable(
        group_id=number // 2 % 2, episode_id=number // 2, t=number % 2, reward=np.zeros(len(rows)), state_key=keys,
        valid=np.ones(len(rows), np.bool_),
        prompt=Ragged.of([prompts[row.request_id] for row in rows], np.int64),
        response=Ragged.of([row.token_ids for row in rows], np.int64),
        logprob=Ragged.of([row.logprobs for row in rows], np.float32),
    )  # fmt: skip


def engine_gap(model: PreTrainedModel, dtype: ComputeDtype, optim: OptimConfig) -> float:
    """The mean difference of log-probabilities between engine and trainer, of two turns of eight episodes."""
    size = model.config.vocab_size
    engine = HFEngine(model, max_batch=12, compute_dtype=dtype)
    rng, sampling = np.random.default_rng(3), Sampling(temperature=0.7, max_tokens=9)
    first = [rng.integers(size, size=length) for length in (90, 30)]
    prompts, done = {}, []
    for turn in range(2):
        for episode in range(8):
            number = 2 * episode + turn
            if turn:
                before = next(c for c in done if c.request_id == number - 1)
                prompts[number] = np.concatenate([prompts[number - 1], before.token_ids, rng.integers(size, size=5)])
            else:
                prompts[number] = first[episode % 2]
        engine.submit([Request(n, p, sampling, session=n // 2) for n, p in prompts.items() if n % 2 == turn])
        while engine.pending:
            done += engine.poll()
    table = _episodes(done, [prompts[number] for number in range(16)])
    policy = Policy(model, temperature=0.7, compute_dtype=dtype)
    return float(np.abs(log_probabilities(policy, table, optim) - table.logprob.values).mean())
