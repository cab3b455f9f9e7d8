"""A policy that changes, and what a plain forward pass says of it."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel


def change(policy: PreTrainedModel, name: str = "", by: float = 0.05) -> None:
    """Adds noise to what is trained, where its name starts with ``name``."""
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if key.startswith(name) and parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * by)


def logprobs(policy: PreTrainedModel, prompt: list[int], response: list[int], temperature: float = 1.0) -> np.ndarray:
    """Log-probability of each response token in one forward pass."""
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].numpy()
