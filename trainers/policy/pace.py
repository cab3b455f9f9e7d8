"""How long a model takes for a token, measured before the work begins."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainers.policy.config import ComputeDtype
from trainers.policy.precision import computing

ENOUGH = 0.5
"""Seconds that the measured piece takes at least, unless it is as long as it may be."""
_FEWEST = 8


def seconds_per_token(model: PreTrainedModel, compute_dtype: ComputeDtype, most: int, *, train: bool) -> float:
    """Seconds of one token in a forward pass of a single sequence, whose length doubles until that takes long enough.

    Random state and gradients are left as they were without it: no gradient is there afterwards.

    Args:
        model: The model, on its device.
        compute_dtype: Number format of the pass.
        most: Most tokens of the sequence.
        train: With the backward pass.
    """
    tokens = min(_FEWEST, most)
    with torch.random.fork_rng(), computing(compute_dtype, model.device):
        while (seconds := _seconds(model, tokens, train)) < ENOUGH and tokens < most:
            tokens = min(2 * tokens, most)
    return seconds / tokens


def _seconds(model: PreTrainedModel, tokens: int, train: bool) -> float:
    ids = torch.arange(tokens, device=model.device)[None] % model.config.get_text_config(decoder=True).vocab_size
    began = time.perf_counter()
    with torch.set_grad_enabled(train):
        logits: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        if train:
            logits.float().logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
