"""Log-probability and entropy of tokens under tempered logits, in float32, without copies that can be avoided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class TokenStats:
    """Log-probability and entropy of each response token of a micro-batch, under the distribution that samples."""

    logprob: Tensor
    """(T,) float32, of the softmax of logits / temperature."""
    entropy: Tensor
    """(T,) float32, in nats; it has a gradient."""


def token_stats(logits: Tensor, target: Tensor, temperature: float) -> TokenStats:
    """Statistics of ``softmax(logits / temperature)``.

    Args:
        logits: Shape (T, vocabulary), any floating type.
        target: Token ids, shape (T,).
        temperature: The sampler's temperature, above 0.
    """
    logprob, entropy = _Statistics.apply(logits, target, temperature)  # type: ignore[no-untyped-call]
    return TokenStats(logprob, entropy)


class _Statistics(torch.autograd.Function):
    """Saves the logits alone; the backward pass makes their gradient in one buffer."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scores = _scores(logits, temperature)
        total = scores.logsumexp(-1)
        logprob = scores.gather(-1, target[:, None])[:, 0] - total
        probability = (scores - total[:, None]).exp_()
        mean = probability.mul_(scores).sum(-1)
        ctx.save_for_backward(logits, target, total, mean)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprob, total - mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob: Tensor | None, entropy: Tensor | None) -> tuple[Tensor, None, None]:
        logits, target, total, mean = ctx.saved_tensors
        scores = _scores(logits, ctx.temperature)
        out = (scores - total[:, None]).exp_()
        weight = torch.zeros_like(total) if logprob is None else logprob
        if entropy is None:
            out.mul_(-weight[:, None])
        else:
            out.mul_((mean[:, None] - scores).mul_(entropy[:, None]).sub_(weight[:, None]))
        out.scatter_add_(-1, target[:, None], weight[:, None])
        if ctx.temperature != 1:
            out.div_(ctx.temperature)
        return out.to(logits.dtype), None, None


def _scores(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1 else logits / temperature
