"""The optimiser's step, guarded against gradients that are not finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import nn

from envsuite.core.errors import EnvsuiteError
from trainers.policy.sharding import local, total_norm
from trainers.processes.distributed import all_gather_object

_LOG = logging.getLogger(__name__)


class DivergenceError(EnvsuiteError, RuntimeError):
    """Training or sampling met numbers that are not finite; the message names the first and what to try.

    Args:
        message: Text for the user.
        weights_good: Whether the weights at hand are finite, so that a checkpoint of them is worth writing.
    """

    def __init__(self, message: str, *, weights_good: bool) -> None:
        super().__init__(message)
        self.weights_good = weights_good


REMEDIES: Mapping[str, str] = {
    "advantage": "look at method.options, the shapers and the rewards of the environment",
    "log-probability of the engine": "look at the engine's number format",
    "log-probability": "the logits of the policy overflow: try a lower optim.lr, more optim.warmup or float32",
    "log-probability of the reference": "look at the reference model's number format",
    "loss": "try a lower optim.lr, more optim.warmup, or narrower method.objective.clip_low and clip_high",
    "gradient": "try a lower optim.lr, more optim.warmup, or narrower method.objective.clip_low and clip_high",
    "weight": "try a lower optim.lr",
}
"""Remedy by the kind of the first quantity that was not finite."""
MOST_SKIPPED = 3
"""Steps skipped in a row after which the run stops."""
_NORM = "gradient: its norm"
"""Where no part of the gradient that this process has is to blame."""


@dataclass
class GuardedStep:
    """Clips the gradient and takes the optimiser's step; skips it where loss or gradient of any process is not finite.

    A skipped step leaves weights and optimiser as they were.

    Args:
        accelerator: The run's accelerator.
        module: As ``accelerator.prepare`` returned it.
        optimizer: As ``accelerator.prepare`` returned it.
        max_grad_norm: Gradients are scaled down to this norm.
        label: Name of ``module`` in messages.
    """

    accelerator: Accelerator
    module: nn.Module
    optimizer: torch.optim.Optimizer
    max_grad_norm: float
    label: str
    skipped_in_a_row: int = field(default=0, init=False)
    begun_steps: int = field(default=0, init=False)
    """Steps that were begun: each may have changed weights, whether it was finished or not."""

    def __call__(self, culprit: str | None = None, rate: float | None = None) -> float | None:
        """Takes the step, and clears the gradient; every process must call this.

        Args:
            culprit: The first quantity of this process's passes that was not finite, if one was: a key of
                :data:`REMEDIES`, and after a colon where it was.
            rate: Learning rate of the step; by default the optimiser's own.

        Returns:
            Norm of the gradient before clipping; ``None`` where the step was skipped.

        Raises:
            DivergenceError: It was the last of so many in a row that the run stops.
        """
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        # Looked at before clipping, which spreads what is not finite over all parameters.
        norm = total_norm(p.grad for p in parameters if p.grad is not None)
        value = float(norm)
        if culprit is None and not math.isfinite(value):
            culprit = self._culprit()
        culprits = [name for name in all_gather_object(self.accelerator, culprit) if name is not None]
        if culprits:
            self._skip(culprits)
            return None
        nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        if rate is not None:
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):  # of an optimiser that compiles its step
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
        self.begun_steps += 1
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.skipped_in_a_row = 0
        return value

    def check_weights(self) -> None:
        """Checks the weights, before they are sampled from or saved; every process must call this.

        Raises:
            DivergenceError: A weight is not finite, or so large that its square is not.
        """
        norm = total_norm(p.detach() for p in self.module.parameters() if p.requires_grad)
        if not all(all_gather_object(self.accelerator, bool(torch.isfinite(norm)))):
            rate = max(group["lr"] for group in self.optimizer.param_groups)
            raise DivergenceError(
                f"{self.label}: a weight is not finite, or beyond 1e18, after an optimiser step at learning rate "
                f"{rate:g}; {REMEDIES['weight']}. The weights are not saved: earlier checkpoints are as they were",
                weights_good=False,
            )

    def _skip(self, culprits: list[str]) -> None:
        self.optimizer.zero_grad()
        self.skipped_in_a_row += 1
        order = list(REMEDIES)
        first = min(culprits, key=lambda name: (order.index(name.partition(":")[0]), name == _NORM))
        _LOG.warning("%s: an optimiser step was skipped, not finite: %s", self.label, first)
        if self.skipped_in_a_row >= MOST_SKIPPED:
            raise DivergenceError(
                f"{self.label}: {self.skipped_in_a_row} optimiser steps in a row were skipped, as "
                f"loss or gradient was not finite. First not finite: {first}; {REMEDIES[first.partition(':')[0]]}",
                weights_good=True,
            )

    def _culprit(self) -> str:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and not bool(torch.isfinite(local(parameter.grad)).all()):
                return f"gradient: {name.removeprefix('module.')}"
        return _NORM
