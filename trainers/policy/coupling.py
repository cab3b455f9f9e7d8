"""How much a step of the policy at one state moves it at others: cosines between gradients of log π."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.rows import by_rows
from trainers.steps import StepTable

SMALL = 5_000_000
"""Most weights of a model whose gradients are taken as a whole; of a larger one those of its last layer are."""
_COMPONENTS = 1 << 20
"""Most components of a gradient that are compared: a random choice, the same for all."""


def gradient_cosines(policy: Policy, steps: StepTable) -> NDArray[np.float64]:
    """Returns the cosine between the gradients of log π(response | prompt) of each two steps, shape (pairs,).

    Args:
        policy: The policy that answered; the gradients are of its weights that are trained.
        steps: Steps, each with a response.
    """
    parameters = _choose_parameters(policy)
    rows = torch.stack(list(_gradients(policy, steps, parameters))) if len(steps) else torch.zeros(0, 1)
    unit = torch.nn.functional.normalize(rows, dim=1)
    return np.asarray((unit @ unit.T).numpy()[np.tril_indices(len(rows), -1)], np.float64)


def _choose_parameters(policy: Policy) -> list[nn.Parameter]:
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    layers = [module for module in policy.modules() if isinstance(module, GradientCheckpointingLayer)]
    if sum(parameter.numel() for parameter in parameters) <= SMALL or not layers:
        return parameters
    return [parameter for parameter in layers[-1].parameters() if parameter.requires_grad]


def _gradients(policy: Policy, steps: StepTable, parameters: list[nn.Parameter]) -> Iterator[Tensor]:
    """Yields the compared components of each step's gradient."""
    size, generator = sum(parameter.numel() for parameter in parameters), torch.Generator().manual_seed(0)
    indices = torch.randint(size, (_COMPONENTS,), generator=generator) if size > _COMPONENTS else None
    for row in range(len(steps)):
        (tree,) = micro_batches(steps.take(np.array([row])), 1 << 30, share_prefix=False, rows=by_rows(policy.model))
        logprob = policy(tree).logprob.sum()
        parts = torch.autograd.grad(logprob, parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.detach().flatten().float() for part in parts])
        yield (gradient if indices is None else gradient[indices.to(gradient.device)]).cpu()
