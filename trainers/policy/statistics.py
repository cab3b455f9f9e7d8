"""Log-probability and entropy of tokens under tempered logits, in float32, a part of the tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainers.policy.precision import as_computed
from trainers.processes.memory import free

ELEMENTS = 2**26
"""Most logits that exist at a time: 256 MiB in float32, 441 tokens of a vocabulary of 152,000."""
_MORE, _BYTES = 8, 16
"""Most times as many in CUDA's backward pass, and bytes of each of them there: three times in float32, and rounded."""


@dataclass(frozen=True)
class TokenStats:
    """Log-probability and entropy of each response token of a micro-batch, under the distribution that samples."""

    logprob: Tensor
    """(T,) float32, of the softmax of logits / temperature."""
    entropy: Tensor
    """(T,) float32, in nats; it has a gradient."""
    balance: Tensor | None = None
    """The balance loss of a mixture's tokens, a scalar, where it is part of the loss."""

    def detach(self) -> TokenStats:
        """Returns the values without the graph that computed them."""
        balance = None if self.balance is None else self.balance.detach()
        return TokenStats(self.logprob.detach(), self.entropy.detach(), balance)


def token_stats(logits: Tensor, target: Tensor, temperature: float) -> TokenStats:
    """Statistics of ``softmax(logits / temperature)``.

    Args:
        logits: Shape (T, vocabulary), any floating type.
        target: Token ids, shape (T,).
        temperature: The sampler's temperature, above 0.
    """
    logprob, entropy = _LogitStatistics.apply(logits, target, temperature)  # type: ignore[no-untyped-call]
    return TokenStats(logprob, entropy)


@dataclass(frozen=True)
class OutputLayer:
    """A linear output layer, whose logits are computed a part of the tokens at a time and never exist whole."""

    layer: nn.Linear
    softcap: float | None = None
    """Bound of the logits, ``softcap * tanh(x / softcap)``, as Gemma has it."""
    elements: int = ELEMENTS
    """Most logits at a time. Where all fit they are kept for the backward pass, else it computes each part again."""

    def logits(self, states: Tensor) -> Tensor:
        """Logits of hidden states (T, D), in their format: (T, vocabulary)."""
        return _logits(states, self.layer.weight.to(states.dtype), _cast(self.layer.bias, states.dtype), self.softcap)

    def stats(self, states: Tensor, target: Tensor, temperature: float) -> TokenStats:
        """Statistics of ``softmax(logits / temperature)``.

        Args:
            states: Hidden states that predict ``target``, shape (T, D). Products run in the surrounding compute format.
            target: Token ids, shape (T,).
            temperature: The sampler's temperature, above 0.
        """
        (states,) = as_computed(states)
        rows = max(self.elements // self.layer.out_features, 1)
        logprob, entropy = _StateStatistics.apply(  # type: ignore[no-untyped-call]
            states, self.layer.weight, self.layer.bias, target, temperature, self.softcap, rows
        )
        return TokenStats(logprob, entropy)


class _LogitStatistics(torch.autograd.Function):
    """Saves the logits alone; the backward pass makes their gradient in one buffer."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprob, total, mean = _statistics(logits, target, temperature)
        ctx.save_for_backward(logits, target, total, mean)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprob, total - mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob: Tensor | None, entropy: Tensor | None) -> tuple[Tensor, None, None]:
        logits, target, total, mean = ctx.saved_tensors
        return _gradient(logits, target, total, mean, ctx.temperature, logprob, entropy).to(logits.dtype), None, None


class _StateStatistics(torch.autograd.Function):
    """Logits of ``rows`` tokens at a time, in both passes; the weight's gradient is summed up in its own format."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        softcap: float | None,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        factor, shift = weight.to(states.dtype), _cast(bias, states.dtype)
        parts, logits = [], None
        for state_part, target_part in zip(torch.split(states, rows), torch.split(target, rows), strict=True):
            logits = _logits(state_part, factor, shift, softcap)
            parts.append(_statistics(logits, target_part, temperature))
        logprob, total, mean = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(states, weight, bias, target, total, mean, logits if len(parts) == 1 else None)
        ctx.settings = (temperature, softcap, rows)
        ctx.set_materialize_grads(False)
        return logprob, total - mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob: Tensor | None, entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        states, weight, bias, target, total, mean, saved_logits = ctx.saved_tensors
        temperature, softcap, rows = ctx.settings
        wants_states, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        factor, shift = weight.to(states.dtype), _cast(bias, states.dtype)
        of_states = torch.empty_like(states) if wants_states else None
        of_weight = torch.zeros_like(weight) if wants_weight else None
        of_bias = torch.zeros_like(bias) if wants_bias else None
        if saved_logits is None:
            rows = _backward_rows(rows, weight)
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = _logits(states[part], factor, shift, softcap) if saved_logits is None else saved_logits
            gradient = _gradient(
                logits, target[part], total[part], mean[part], temperature,
                None if logprob is None else logprob[part], None if entropy is None else entropy[part],
            )  # fmt: skip
            if softcap is not None:
                gradient.mul_(1 - (logits.to(gradient.dtype) / softcap) ** 2)
            gradient = gradient.to(states.dtype)
            if of_states is not None:
                torch.mm(gradient, factor, out=of_states[part])
            if of_weight is not None:
                if states.dtype == weight.dtype:
                    of_weight.addmm_(gradient.T, states[part])
                else:
                    of_weight.add_(gradient.T @ states[part])
            if of_bias is not None:
                of_bias.add_(gradient.sum(0))
        return of_states, of_weight, of_bias, None, None, None, None


def _backward_rows(rows: int, weight: Tensor) -> int:
    """Tokens of a part where each adds to the weight's whole gradient: on CUDA those that a quarter of free memory has.

    More than ``rows`` change the gradient by rounding alone, and no log-probability, as the forward pass has its own.
    """
    if weight.device.type != "cuda":
        return rows
    return max(rows, min(_MORE * rows, int(free(weight.device) / 4 / (_BYTES * len(weight)))))


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    logits = F.linear(states, weight, bias)
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _statistics(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target, logarithm of the sum of exponentials, and mean score, each (T,)."""
    scores = _scores(logits, temperature)
    total = scores.logsumexp(-1)
    logprob = scores.gather(-1, target[:, None])[:, 0] - total
    return logprob, total, (scores - total[:, None]).exp_().mul_(scores).sum(-1)


def _gradient(
    logits: Tensor,
    target: Tensor,
    total: Tensor,
    mean: Tensor,
    temperature: float,
    logprob: Tensor | None,
    entropy: Tensor | None,
) -> Tensor:
    """Gradient of the logits, (T, vocabulary), given those of log-probability and entropy, (T,)."""
    scores = _scores(logits, temperature)
    out = (scores - total[:, None]).exp_()
    weight = torch.zeros_like(total) if logprob is None else logprob
    if entropy is None:
        out.mul_(-weight[:, None])
    else:
        out.mul_((mean[:, None] - scores).mul_(entropy[:, None]).sub_(weight[:, None]))
    out.scatter_add_(-1, target[:, None], weight[:, None])
    return out if temperature == 1 else out.div_(temperature)


def _scores(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1 else logits / temperature
