"""Muon on a CPU that multiplies bfloat16 slowly."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """Muon with ``adjust_lr_fn="match_rms_adamw"`` whose matrices are made orthogonal in float32.

    PyTorch's are in bfloat16, which takes two thirds of an imitation where the processor has no instructions for it.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Takes a step, as PyTorch's does: momentum of Nesterov, decay, and a rate by the size of the matrix."""
        for group in self.param_groups:
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                if "momentum_buffer" not in (state := self.state[weight]):
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"]
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(buffer, group["momentum"])
                direction = orthogonalize(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(direction, alpha=-0.2 * group["lr"] * math.sqrt(max(weight.shape)))


def orthogonalize(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Returns a matrix with the same singular vectors, whose singular values Newton-Schulz steps bring near 1."""
    if matrix.size(0) > matrix.size(1):
        return orthogonalize(matrix.T, coefficients, steps, eps).T
    a, b, c = coefficients
    result: Tensor = matrix / matrix.norm().clamp(min=eps)
    for _ in range(steps):
        gram = result @ result.T
        result = torch.addmm(result, torch.addmm(gram, gram, gram, beta=b, alpha=c), result, beta=a)
    return result
