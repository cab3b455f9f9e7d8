"""Log-probabilities and gradients the naive way, a row at a time, and those of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.policy.packing import micro_batches
from trainers.policy.rows import by_rows
from trainers.steps import StepTable

Gradients = Mapping[str, torch.Tensor]


def row_logprobs(policy: torch.nn.Module, table: StepTable, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each response token, a row at a time, without cache, by the model's own attention."""
    parts = []
    for row in range(len(table)):
        prompt, response = table.prompt[row], torch.from_numpy(table.response[row]).long()
        if len(response):
            ids = torch.tensor([[*prompt, *response]])
            logits = policy(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
            parts.append(logits.log_softmax(-1).gather(1, response[:, None])[:, 0])
    return torch.cat(parts)


def batch_logprobs(
    policy: torch.nn.Module, table: StepTable, weight: torch.Tensor, budget: int, share: bool = True
) -> torch.Tensor:
    """Log-probability of each response token, by micro-batches; the gradient of their weighted sum is added up."""
    found = torch.full((len(weight),), torch.nan)
    for batch in micro_batches(table, budget, share, rows=by_rows(policy)):
        logprob, index = policy(batch).logprob, torch.from_numpy(batch.index)
        (logprob * weight[index]).sum().backward()
        found[index] = logprob.detach()
    return found


def taken_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of a model, which has none afterwards."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same_gradients(found: Gradients, wanted: Gradients, near: float = 1e-5, least: float = 0.0) -> None:
    """Fails unless gradients differ by less than ``near`` of the largest one, or of ``least``."""
    assert found.keys() == wanted.keys() and found
    scale = max(least, *(float(gradient.abs().max()) for gradient in wanted.values()))
    assert scale > 0
    for key, gradient in wanted.items():
        assert float((found[key] - gradient).abs().max()) < near * scale, key


class Largest(TorchDispatchMode):
    """The most elements of one result with a number for each word of the vocabulary, weights aside."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.words, self.elements = len(weight), 0
        self._weight = weight.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(value, torch.Tensor) or value.shape[-1:] != (self.words,):
                continue
            if value.untyped_storage().data_ptr() != self._weight:
                self.elements = max(self.elements, value.numel())
        return out
